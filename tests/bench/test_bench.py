"""The benchmark itself: it runs, and it refuses to praise a run that lost something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import end_to_end, limit
from bench.databases import Database
from bench.end_to_end import Void
from bench.program import Tasks

ROOT = Path(__file__).parents[2]
SMALL = ["--database", "sqlite", "--parts", "300", "--workers", "2", "--repeat", "1", "--json"]


def rows(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_small_run_has_all_figures() -> None:
    (row,) = rows(*SMALL)
    assert (row["database"], row["workers"], row["parts"]) == ("SQLite", 2, 300)
    for name in ("submit_parts_per_second", "parts_per_second", "limit_parts_per_second", "share_of_limit"):
        assert row[name] > 0, name
    assert row["efficiency"] is None


def test_sleeping_handlers_are_compared_with_their_ideal_and_not_with_the_limit() -> None:
    (row,) = rows(*SMALL, "--sleep", "0.001")
    assert 0 < row["efficiency"] <= 1
    assert row["share_of_limit"] is None


def test_a_run_in_which_the_successor_misses_a_part_is_void(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fanin.db"
    tasks = Tasks(url)
    job = tasks.app.map(tasks.part, range(5), then=tasks.joined)
    tasks.app.run_worker(until_idle=True)
    end_to_end.judge(url, job.id, 5)
    with pytest.raises(Void, match="6 parts were submitted"):
        end_to_end.judge(url, job.id, 6)
    tasks.app.close()


def test_a_raw_run_that_loses_a_result_is_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = limit.RawSqlite.results
    monkeypatch.setattr(limit.RawSqlite, "results", lambda self: list(whole(self))[1:])
    with pytest.raises(Void, match="9 of 10 results"):
        limit.measure(Database("SQLite", str(tmp_path)), parts=10, workers=1)
