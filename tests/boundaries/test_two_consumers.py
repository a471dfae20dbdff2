"""Consumers that are processes: the same event reaches two of them together, and one is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.boundaries.clerks import Clerk, Psycopg, Sqlite3


def start(clerk: Clerk, key: str, barrier: Path, parties: int, *dies: str) -> subprocess.Popen[str]:
    words = [type(clerk).__name__, clerk.address, key, str(barrier), str(parties), *dies]
    command = [sys.executable, "-m", "tests.boundaries.consumer", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


@pytest.mark.clerks(Psycopg, Sqlite3)
def test_F055_the_same_event_reaches_two_consumers_together(clerk: Clerk, tmp_path: Path) -> None:
    """one of them applies it; of one that is killed between change and commit nothing stays, and it is applied later"""
    both = [start(clerk, "together", tmp_path / "one", 2) for _ in range(2)]
    assert sorted(process.communicate(timeout=120)[0].strip() for process in both) == ["False", "True"]

    killed = start(clerk, "killed", tmp_path / "two", 1, "dies")
    assert killed.wait(120) == -9
    assert clerk.ledger() == ["billing together"]
    again = [start(clerk, "killed", tmp_path / "three", 2) for _ in range(2)]
    assert sorted(process.communicate(timeout=120)[0].strip() for process in again) == ["False", "True"]
    assert clerk.ledger() == ["billing killed", "billing together"]
