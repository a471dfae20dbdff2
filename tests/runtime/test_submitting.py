"""What a submit writes: all at once, streamed, within the caller's transaction, under a key, or nothing."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanin
from tests.runtime.working import until, working


def test_too_many_parts_are_refused_before_anything_is_written(migrated_url: str) -> None:
    """F020: also from a generator without an end"""
    with fanin.App(migrated_url, max_parts=1_000) as app:

        @app.task
        def work(x: int) -> int:
            return x

        def endless() -> Iterator[int]:
            n = 0
            while True:
                yield (n := n + 1)

        with pytest.raises(fanin.LimitExceeded, match="more than 1000 parts"):
            app.map(work, endless())
        assert app.jobs() == []
        with pytest.raises(fanin.LimitExceeded, match="more than 1000 parts"):
            app.map(work, endless(), stream=True)
        (row,) = app.jobs()
        assert row.status == "open"
        app.job(row.id).cancel()


def test_a_stream_whose_generator_fails_is_finished_by_the_same_request(app: fanin.App) -> None:
    """F017"""
    calls: list[int] = []

    @app.task
    def work(x: int) -> int:
        calls.append(x)
        return x

    def items(stop: int | None) -> Iterator[int]:
        for n in range(5_000):
            if n == stop:
                raise OSError("the source is gone")
            yield n

    with working(app):
        with pytest.raises(OSError, match="the source is gone"):
            app.map(work, items(4_500), stream=True, key="k")
        job = app.job("k")
        until(lambda: job.progress().succeeded == 4_000, "what was written runs already")
        assert job.status == "open"
        assert app.map(work, items(None), stream=True, key="k") == job
        assert job.result(60) == list(range(5_000))
        assert app.map(work, items(None), stream=True, key="k") == job
        with pytest.raises(fanin.KeyConflict):
            app.map(work, range(4_999), stream=True, key="k")
    assert sorted(calls) == list(range(5_000))
    assert job.account()["events"] == 1


def test_a_stream_that_continues_with_other_items_is_refused(app: fanin.App) -> None:
    """F090: the parts that stand already are compared, not only counted"""

    @app.task
    def work(x: int) -> int:
        return x

    def items(first: int, stop: int | None) -> Iterator[int]:
        for n in range(5_000):
            if n == stop:
                raise OSError("the source is gone")
            yield first + n

    with pytest.raises(OSError, match="the source is gone"):
        app.map(work, items(0, 4_500), stream=True, key="k")
    with pytest.raises(fanin.KeyConflict, match="part 0 of the open job k"):
        app.map(work, items(7, None), stream=True, key="k")
    options: dict[str, Any]
    for options in ({"tolerate": 1}, {"queue": "q"}, {"attempts": 9}, {"priority": 3}):
        with pytest.raises(fanin.KeyConflict, match="other options"):
            app.map(work, items(0, None), stream=True, key="k", **options)
    assert app.map(work, items(0, None), stream=True, key="k", run=True).result(60) == list(range(5_000))


def test_a_stream_holds_few_large_payloads_at_once(app: fanin.App) -> None:
    @app.task
    def work(x: str) -> int:
        return len(x)

    tracemalloc.start()
    try:
        job = app.map(work, ("x" * 500_000 for _ in range(120)), stream=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000, f"{peak:,} bytes for 60 MB that were streamed"
    job.cancel()
    until(lambda: sweep(app) and job.progress().remaining == 0, "swept")


def sweep(app: fanin.App) -> bool:
    from fanin.runtime import upkeep

    upkeep.once(app.store, 0)
    return True


@pytest.mark.slow
def test_two_hundred_thousand_parts_from_a_generator_need_little_memory(app: fanin.App) -> None:
    """F019"""

    @app.task
    def work(x: str) -> str:
        return x

    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def said(name: str) -> int:
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith(name))

    app.jobs()
    forget.write_text("5")  # the peak starts anew
    before = said("VmRSS:")
    job = app.map(work, (f"item {n:050}" for n in range(200_000)))
    grown = said("VmHWM:") - before
    assert grown < 80_000_000, f"{grown:,} bytes"
    assert job.progress().total == 200_000


def test_results_are_read_in_pages(app: fanin.App) -> None:
    @app.task
    def work(x: int) -> str:
        return f"{x:02000}"

    @app.task
    def after(found: fanin.Joined[str]) -> int:
        tracemalloc.start()
        try:
            count = sum(1 for _ in found)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert count == len(found)
        return peak

    job = app.map(work, range(6_000), then=after)
    with working(app):
        job.wait(60)
        follower = until(lambda: job.successor, "a successor")
        peak = follower.result(60)
    assert peak < 6_000_000, f"{peak:,} bytes for 12 MB of results"


@pytest.mark.parametrize("commit", [True, False])
def test_a_job_within_the_callers_transaction_shares_its_fate(app: fanin.App, migrated_url: str, commit: bool) -> None:
    """F021"""
    calls: list[int] = []

    @app.task
    def work(x: int) -> int:
        calls.append(x)
        return x

    with working(app):
        with transaction(app, migrated_url, commit) as connection:
            job = app.map(work, [1], within=connection, key="k")
            assert app.jobs() == [], "nobody else sees it yet"
        if commit:
            assert job.result(90) == 1
        else:
            with pytest.raises(fanin.UnknownJob):
                app.job("k")
            app.map(work, [2]).wait(90)  # the worker has looked since
    assert calls == ([1] if commit else [2])


class transaction:
    """The caller's own: psycopg on PostgreSQL, apsw on SQLite."""

    def __init__(self, app: fanin.App, url: str, commit: bool) -> None:
        self.commit = commit
        if app.store.dialect == "pg":
            import psycopg

            self.connection: Any = psycopg.connect(url.partition("?")[0])
        else:
            import apsw

            self.connection = apsw.Connection(url.removeprefix("sqlite:///"))
            self.connection.execute("BEGIN IMMEDIATE")

    def __enter__(self) -> Any:
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.connection.execute("COMMIT" if self.commit else "ROLLBACK")
        self.connection.close()


def test_a_stdlib_connection_is_taken_where_this_process_has_the_file_open_in_no_other_way(tmp_path: Any) -> None:
    import subprocess
    import sys

    script = """
import sqlite3, sys, fanin
url = sys.argv[1]
app = fanin.App(url)
@app.task(name="work")
def work(x: int) -> int:
    return x
with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
    connection.execute("CREATE TABLE orders (n)")
    connection.execute("INSERT INTO orders VALUES (1)")
    job = app.map(work, [1, 2], within=connection, key="k")
    print(job.id)
connection.close()
"""
    url = f"sqlite:///{tmp_path / 'fanin.db'}"
    with fanin.App(url) as app:
        app.task(name="work")(lambda x: x)
        assert app.jobs() == []
        done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        job = app.job("k")
        assert job.id == done.stdout.strip()
        assert job.wait(90, run=True).result() == [1, 2]

        import sqlite3

        here = sqlite3.connect(tmp_path / "fanin.db")
        with pytest.raises(fanin.UnsafeStore, match="another copy of SQLite"):
            app.map(app.tasks["work"], [1], within=here)
        here.close()


def test_a_connection_that_cannot_serve_is_refused_with_the_reason(app: fanin.App, tmp_path: Any) -> None:
    import apsw
    import psycopg

    app.task(name="t")(lambda x: x)
    for wrong in (object(), "a string", apsw.Connection(":memory:")):
        with pytest.raises(fanin.BadOption, match="within="):
            app.map(app.tasks["t"], [1], within=wrong)
    with pytest.raises(fanin.BadOption, match="choose"):
        app.map(app.tasks["t"], [1], within=object(), stream=True)
    if app.store.dialect == "pg":
        with psycopg.connect(app.url.partition("?")[0], autocommit=True) as connection:
            with pytest.raises(fanin.BadOption, match="commits every statement"):
                app.map(app.tasks["t"], [1], within=connection)
            with connection.transaction():
                app.map(app.tasks["t"], [1], within=connection, key="k")
        app.job("k").cancel()
        until(lambda: sweep(app) and app.job("k").progress().remaining == 0, "swept")
    assert len(app.jobs()) <= 1


def test_the_same_key_is_the_same_job_and_other_content_is_a_conflict(app: fanin.App) -> None:
    """F089, F090"""

    @app.task
    def work(x: int) -> int:
        return x

    @app.task
    def other(x: int) -> int:
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> int:
        return sum(found)

    job = app.map(work, range(10), key="k")
    found: list[str] = []
    barrier = threading.Barrier(8)

    def again() -> None:
        barrier.wait(90)
        found.append(app.map(work, range(10), key="k").id)
        found.append(app.map(work, range(3), key="new").id)

    threads = [threading.Thread(target=again) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert len(found) == 16
    assert set(found) == {job.id, app.job("new").id}
    different: list[tuple[Any, Any, dict[str, Any]]] = [
        (work, range(11), {}), (work, reversed(range(10)), {}), (other, range(10), {}),
        (work, range(10), {"tolerate": 1}),
        (work, range(10), {"then": after}), (work, range(10), {"queue": "q"}), (work, range(10), {"attempts": 9}),
    ]  # fmt: skip
    for task, items, options in different:
        with pytest.raises(fanin.KeyConflict):
            app.map(task, items, key="k", **options)
    app.run_worker(until_idle=True)
    assert list(job.results()) == list(range(10))
    with pytest.raises(fanin.KeyConflict):
        app.map(work, range(11), key="k")
    assert app.map(work, range(10), key="k") == job
