"""A test that leaves a broken invariant behind fails, shown by a run of pytest inside the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PLANTS = """
import apsw
import pytest

{mark}
def test_it(store, store_url):
    connection = apsw.Connection(store_url.removeprefix("sqlite:///"))
    connection.execute(
        "INSERT INTO fanin_part (bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, "
        " attempt, attempts_allowed, due_at, payload) "
        "VALUES (0, 'no-such-job', 0, 0, 'pending', 1, 'q', 't', 0, 0, 0, 1, 0, '')"
    )
    connection.close()
"""


def run(tmp_path: Path, mark: str) -> tuple[int, str]:
    (tmp_path / "test_it.py").write_text(PLANTS.format(mark=mark))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", os.devnull, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"FANIN_TEST_PG": "off"},
    )
    return done.returncode, done.stdout


def test_a_broken_invariant_fails_the_test_that_left_it(tmp_path: Path) -> None:
    status, said = run(tmp_path, mark="")
    assert status == 1
    assert "Every part belongs to a stripe of its job" in said
    assert "no-such-job" in said


def test_planted_corruption_is_allowed_where_the_test_says_so(tmp_path: Path) -> None:
    status, said = run(tmp_path, mark="@pytest.mark.plants_corruption")
    assert status == 0, said
