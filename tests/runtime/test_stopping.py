"""Stopping a worker: what runs gets its grace, the rest goes back without costing an attempt, nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from tests.runtime import process_tasks
from tests.runtime.rows import execute
from tests.runtime.working import is_gone, until, working


def parts(app: fanin.App, job: fanin.Job) -> list[tuple[str, bool, int, int]]:
    """(status, ready, attempt, attempts left to it) of each part."""
    columns = "status, ready, attempt, attempts_allowed - attempt"
    rows = execute(app.store, f"SELECT {columns} FROM {{part}} WHERE job_id = '{job.id}' ORDER BY idx")
    return [(status, bool(ready), attempt, left) for status, ready, attempt, left in rows]


def test_a_stopping_worker_lets_running_handlers_end_and_claims_nothing_new(app: fanin.App) -> None:
    """F040"""
    begun, go_on = threading.Semaphore(0), threading.Event()

    @app.task
    def work(x: int) -> int:
        begun.release()
        assert go_on.wait(90)
        return x

    job = app.map(work, range(10))
    with working(app, concurrency=2) as worker:
        for _ in range(2):
            assert begun.acquire(timeout=90)
        worker.stop()
        go_on.set()
        worker.join()
    assert [status for status, *_ in parts(app, job)] == ["succeeded"] * 2 + ["pending"] * 8
    assert not begun.acquire(blocking=False)


def test_what_outlasts_the_grace_is_given_back_and_costs_no_attempt(app: fanin.App) -> None:
    """F040, F041"""
    begun, go_on = threading.Event(), threading.Event()

    @app.task(attempts=1)
    def stubborn(x: int) -> int:
        begun.set()
        assert go_on.wait(60)
        return x

    job = app.map(stubborn, [1])
    for round_ in (1, 2, 3):
        begun.clear()
        with working(app, grace=0.0) as worker:
            assert begun.wait(90)
            worker.stop()
            worker.join()
        assert parts(app, job) == [("pending", True, round_, 1)]
    go_on.set()
    assert job.wait(90, run=True).status == "completed"
    assert [entry["what"] for entry in job.history()] == ["released"] * 3


def test_parts_that_no_thread_has_begun_go_back_at_once(app: fanin.App) -> None:
    """F040: claimed ahead of the handlers, still in the queue"""
    begun, go_on = threading.Event(), threading.Event()

    @app.task(attempts=1)
    def work(x: int) -> int:
        if x >= 600:
            begun.set()
            assert go_on.wait(60)
        return x

    job = app.map(work, range(2_000))
    with working(app, concurrency=1, grace=30.0) as worker:
        assert begun.wait(90)
        until(lambda: sum(p[0] == "running" for p in parts(app, job)) > 1, "parts were claimed ahead")
        worker.stop()
        until(lambda: sum(p[0] == "running" for p in parts(app, job)) == 1, "all but the begun part were given back")
        go_on.set()
        worker.join()
    standing = parts(app, job)
    assert {status for status, *_ in standing} == {"succeeded", "pending"}
    assert all(left == 1 and ready for status, ready, _, left in standing if status == "pending")


def test_an_async_handler_that_outlasts_the_grace_is_cancelled_and_given_back(app: fanin.App) -> None:
    """F040"""
    begun, cancelled = threading.Event(), threading.Event()

    @app.task(attempts=1)
    async def endless(x: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    for _ in range(20):  # the release must be heard whoever is faster, the loop or the worker
        begun.clear()
        cancelled.clear()
        job = app.map(endless, [1])
        with working(app) as worker:
            assert begun.wait(90)
            worker.stop(now=True)
            worker.join()
        assert cancelled.wait(90)
        assert parts(app, job) == [("pending", True, 1, 1)]
        job.cancel()


def test_a_process_that_outlasts_the_grace_is_killed_and_its_part_given_back(app: fanin.App, tmp_path: Path) -> None:
    """F040"""
    app.tasks.update(process_tasks.app.tasks)
    started = tmp_path / "started"
    job = app.map(process_tasks.waits_for_ever, [started])
    with working(app, concurrency=1) as worker:
        until(started.exists, "the child has begun")
        worker.stop(now=True)
        worker.join()
    assert is_gone(int(started.read_text())), "its child goes on"
    assert parts(app, job) == [("pending", True, 1, 3)]


@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_a_worker_leaves_no_thread_and_no_file_open(app: fanin.App, kind: str, tmp_path: Path) -> None:
    """F063: a program may start and stop workers all day"""
    app.tasks.update(process_tasks.app.tasks)

    @app.task(name="thread")
    def sync(x: int) -> int:
        return x

    @app.task(name="async")
    async def coroutine(x: int) -> int:
        return x

    task = process_tasks.double if kind == "process" else app.tasks[kind]

    def left() -> tuple[int, int]:
        """Threads and open files after a worker has come and gone, and the application has closed its connections."""
        with working(app, concurrency=2) as worker:
            app.map(task, range(3)).wait(90)
            worker.stop()
            worker.join()
        until(lambda: not [t for t in threading.enumerate() if t.name.startswith("fanin-")], "its threads have ended")
        app.close()
        return threading.active_count(), len(os.listdir("/proc/self/fd"))

    rounds = 1 if kind == "process" else 3  # a child takes a second to start
    first = [left() for _ in range(rounds)]
    last = [left() for _ in range(rounds)]
    assert min(threads for threads, _ in last) <= max(threads for threads, _ in first)
    assert min(files for _, files in last) <= max(files for _, files in first)


def test_waiting_again_and_again_with_run_keeps_the_number_of_open_files(app: fanin.App) -> None:
    @app.task
    def work(x: int) -> int:
        return x

    def once() -> int:
        app.map(work, range(3), run=True).wait(90)
        return len(os.listdir("/proc/self/fd"))

    first = max(once() for _ in range(3))
    last = min(once() for _ in range(20))
    assert last < first + 10


def test_ctrl_c_in_the_thread_of_the_worker_gives_back_what_it_holds(app: fanin.App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task(attempts=1)
    def work(x: int) -> int:
        begun.set()
        assert go_on.wait(60)
        return x

    job = app.map(work, [1])

    def interrupt() -> bool:
        if begun.is_set():
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        Worker(app).run(until=interrupt)
    assert parts(app, job) == [("pending", True, 1, 1)]
    go_on.set()


def test_a_worker_whose_processes_cannot_be_started_says_so_before_it_claims(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.tasks.update(process_tasks.app.tasks)
    monkeypatch.setitem(sys.modules, "pebble", None)
    with pytest.raises(fanin.BadOption, match=r"pip install 'fanin\[process\]'"):
        Worker(app)


KILLED_WORKER = """
import sys, fanin
from fanin.runtime.worker import Worker
from tests.runtime import process_tasks
if __name__ == "__main__":
    app = fanin.App(sys.argv[1])
    app.tasks.update(process_tasks.app.tasks)
    Worker(app, concurrency=1).run()
"""


def test_the_child_of_a_killed_worker_ends_too(app: fanin.App, migrated_url: str, tmp_path: Path) -> None:
    """F042: it would go on beside the next attempt"""
    app.tasks.update(process_tasks.app.tasks)
    started = tmp_path / "started"
    job = app.map(process_tasks.waits_for_ever, [started])
    (tmp_path / "script.py").write_text(KILLED_WORKER)
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    worker = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), migrated_url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )
    try:
        until(started.exists, "the child has begun")
    finally:
        worker.kill()
        worker.wait(90)
    assert is_gone(int(started.read_text()))
    job.cancel()
    until(lambda: upkeep.once(app.store, 0) or job.progress().remaining == 0, "swept")


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_worker_keeps_nothing_of_what_it_has_done(app: fanin.App, kind: str) -> None:
    @app.task(name="thread")
    def sync(x: int) -> str:
        return "r" * 1_000

    @app.task(name="async")
    async def coroutine(x: int) -> str:
        return "r" * 1_000

    with working(app) as worker:
        app.map(app.tasks[kind], range(1_000)).wait(60)
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            app.map(app.tasks[kind], range(4_000)).wait(60)
            until(lambda: not worker._held, "all are let go")
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        executor: Any = worker._executors[kind]
        assert not (executor._busy if kind == "thread" else executor._waiting)
    assert after - before < 1_000_000, f"{after - before:,} bytes after 4 MB of results"


def test_whoever_waited_for_a_job_does_not_wait_for_what_else_was_begun(app: fanin.App) -> None:
    """`close` does: nothing is cut off, and nothing is done twice."""
    begun, go_on = threading.Event(), threading.Event()

    @app.task(attempts=1)
    def slow(x: int) -> int:
        begun.set()
        assert go_on.wait(90)
        return x

    @app.task
    def quick(x: int) -> int:
        assert begun.wait(90)
        return x

    other = app.map(slow, [1])
    assert list(app.map(quick, [1, 2], run=True).result()) == [1, 2]  # the other one is still running
    (left,) = app.leaving
    assert left.is_alive()
    go_on.set()
    app.close()
    assert (app.leaving, left.is_alive()) == ([], False)
    assert parts(app, other) == [("succeeded", False, 1, 0)]


def test_the_end_of_a_process_waits_for_what_a_waiting_program_has_begun(tmp_path: Path) -> None:
    program = f"""
import threading, fanin
app = fanin.App("sqlite:///{tmp_path / "left.db"}")
begun, gone = threading.Event(), threading.Event()

@app.task(attempts=1)
def slow(x: int) -> int:
    begun.set()
    assert gone.wait(9)
    return x

@app.task
def quick(x: int) -> int:
    assert begun.wait(9)
    return x

app.map(slow, [1], key="slow")
print(app.map(quick, [1], run=True).result())
gone.set()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    with fanin.App(f"sqlite:///{tmp_path / 'left.db'}") as app:
        assert app.job("slow").progress().succeeded == 1
