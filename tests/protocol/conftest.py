"""A clock beside the store of ``tests/conftest.py``."""

from __future__ import annotations

import pytest

from fanin.stores.base import Store
from tests.protocol.helpers import Clock


@pytest.fixture
def clock(store: Store) -> Clock:
    return Clock(store)
