"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path, migrated_url: str) -> Iterator[Terminal]:
    """A terminal in an empty folder, once on SQLite and once on PostgreSQL."""
    folder = tmp_path / "here"
    folder.mkdir()
    opened = Terminal(folder, migrated_url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in an empty folder whose database is a file there that does not exist yet."""
    folder = tmp_path / "here"
    folder.mkdir()
    opened = Terminal(folder, "sqlite:///fanin.db")
    yield opened
    opened.close()
