"""A clock beside the store of ``tests/conftest.py``, and a crew of worker processes that never outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.crew import Crew
from tests.protocol.helpers import clock
from tests.runtime.working import renewals

__all__ = ["clock", "crew", "renewals"]


@pytest.fixture
def crew(migrated_url: str, tmp_path: Path) -> Iterator[Crew]:
    """Worker processes on the database of the test; the handlers do what files in its folder tell them."""
    made = Crew(migrated_url, tmp_path)
    yield made
    made.close()
