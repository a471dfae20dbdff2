"""The benchmark itself: it runs, and it refuses to praise a run that lost something. Nothing here looks at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw
import pytest

from bench import end_to_end, limit, raw_sqlite
from bench.databases import Database
from bench.end_to_end import Void
from bench.settings import Setting, Work
from bench.tasks import Tasks

ROOT = Path(__file__).parents[2]
SMALL = ["--database", "sqlite", "--parts", "60", "--workers", "2", "--repeat", "1", "--json"]


def rows(*words: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_small_run_has_all_figures() -> None:
    (row,) = rows(*SMALL)
    assert (row["database"], row["workers"], row["parts"], row["work"]) == ("SQLite", 2, 60, "nothing")
    for name in ("submit_parts_per_second", "parts_per_second", "limit_parts_per_second", "share_of_limit"):
        assert row[name] > 0, name
    assert row["statements_per_part"] >= row["commits_per_part"] > 0
    assert row["efficiency"] is None


@pytest.mark.parametrize("mode", ["async", "process"])
def test_handlers_that_take_time_are_compared_with_their_ideal_too(mode: str) -> None:
    (row,) = rows(*SMALL, "--sleep", "0.001", "--mode", mode)
    assert row["efficiency"] > 0
    assert row["share_of_limit"] >= row["efficiency"]


def test_one_part_per_commit_takes_a_commit_for_every_part() -> None:
    (row,) = rows(*SMALL, "--batch", "1")
    assert row["commits_per_part"] >= 1


def test_several_jobs_are_all_joined() -> None:
    (row,) = rows(*SMALL, "--jobs", "3", "--parts", "20")
    assert (row["jobs"], row["parts"]) == (3, 20)
    assert len(row["runs"]) == 1


def test_the_ideal_of_sleeping_handlers_is_full_waves() -> None:
    assert Setting(parts=9, workers=2, concurrency=4, work=Work(sleep=0.5)).ideal_seconds == 1.0


def test_the_ideal_of_computing_threads_is_one_core_for_each_worker() -> None:
    alone = Setting(parts=10, workers=1, concurrency=4, work=Work(cpu=0.5))
    assert alone.ideal_seconds == 5.0


def test_a_run_in_which_the_successor_misses_a_part_is_void(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fanin.db"
    tasks = Tasks(url)
    job = tasks.app.map(tasks.part, range(5), then=tasks.joined)
    tasks.app.run_worker(until_idle=True)
    end_to_end.judge(tasks.app, job.id, 5)
    with pytest.raises(Void, match="6 parts were submitted"):
        end_to_end.judge(tasks.app, job.id, 6)
    tasks.app.close()


def test_a_run_that_leaves_a_broken_rule_is_void(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/fanin.db"
    with Tasks(url).app as app:
        app.jobs()
    end_to_end.check(url)
    tasks = Tasks(url)
    tasks.app.map(tasks.part, range(5))
    tasks.app.close()
    connection = apsw.Connection(str(tmp_path / "fanin.db"))
    connection.execute("UPDATE fanin_job_stripe SET remaining = 4, succeeded = 1")
    connection.close()
    with pytest.raises(Void, match="rule c1 is broken"):
        end_to_end.check(url)


def test_a_raw_run_that_loses_a_result_is_void(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = raw_sqlite.RawSqlite.results
    monkeypatch.setattr(raw_sqlite.RawSqlite, "results", lambda self: list(whole(self))[1:])
    with pytest.raises(Void, match="9 of 10 results"):
        limit.measure(Database("SQLite", str(tmp_path)), parts=10, workers=1)


def test_a_raw_run_with_one_part_per_commit_ends_once(tmp_path: Path) -> None:
    figures = limit.measure(Database("SQLite", str(tmp_path)), parts=10, workers=2, batch=1)
    assert figures["total_seconds"] is not None
