"""The worker: leases, time-outs, queues, names, and when it thinks that nothing is left."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.runtime.worker import Worker
from tests.runtime import process_tasks
from tests.runtime.rows import execute
from tests.runtime.working import Renewals, finish_for_rival, is_gone, take_over, until, working


def lost_leases(app: fanin.App) -> int:
    ((count,),) = execute(app.store, "SELECT count(*) FROM {attempt_log} WHERE what IN ('lease_lost', 'refused')")
    return int(count)


def test_a_handler_that_computes_keeps_its_lease(app: fanin.App, renewals: Renewals) -> None:
    """F030, F033: in pure Python, holding the interpreter lock, twice at once, until its lease was renewed thrice"""

    @app.task(attempts=1)
    def compute(x: int) -> int:
        part = fanin.current()
        until(lambda: sum(range(1_000)) and renewals.enough(part), "it is renewed", pause=0)
        return x

    job = app.map(compute, range(2))
    with working(app, concurrency=2), working(app, concurrency=2):
        assert job.result(60) == [0, 1]
    assert job.account()["attempts"] == 2
    assert lost_leases(app) == 0


def test_a_handler_that_blocks_the_event_loop_keeps_its_lease_and_those_of_the_others(
    app: fanin.App, renewals: Renewals
) -> None:
    """F034"""

    calls: list[int] = []

    @app.task(attempts=1)
    async def block(x: int) -> int:
        calls.append(x)
        if x == 0:
            part = fanin.current()
            until(lambda: renewals.enough(part), "it is renewed")
        else:
            await asyncio.sleep(0)
        return x

    job = app.map(block, range(5))
    with working(app, concurrency=5), working(app, concurrency=5):
        assert job.result(60) == [0, 1, 2, 3, 4]
    assert sorted(calls) == [0, 1, 2, 3, 4]
    assert lost_leases(app) == 0


@pytest.mark.usefixtures("renewals")
def test_a_thread_learns_that_its_lease_is_gone_and_its_result_is_refused(
    app: fanin.App, caplog: pytest.LogCaptureFixture
) -> None:
    """F023, F036: the flag rises, heartbeat and checkpoint raise, the later report is LOST and no error"""
    begun, asked = threading.Event(), threading.Event()
    seen: list[str] = []

    @app.task(name="t")
    def work(x: int) -> int:
        part = fanin.current()
        begun.set()
        until(lambda: part.cancelled, "the lease is known to be lost")
        for call in (part.heartbeat, lambda: part.checkpoint(1)):
            try:
                call()
            except fanin.LeaseLost:
                seen.append("LeaseLost")
        asked.set()
        return x

    job = app.map(work, [7])
    with caplog.at_level(logging.INFO, "fanin"), working(app) as worker:
        assert begun.wait(90)
        take_over(app, job)
        assert asked.wait(90)
        until(lambda: worker.lost, "the report was refused")
        finish_for_rival(app, job, 0, 2, "99")
    assert seen == ["LeaseLost", "LeaseLost"]
    assert list(job.results()) == [99]
    assert [(e["what"], e["attempt"]) for e in job.history()] == [("stopped", 1), ("refused", 1)]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_handler_hears_of_a_lost_lease_at_its_next_heartbeat(app: fanin.App) -> None:
    """F031: however long the lease"""
    begun, taken = threading.Event(), threading.Event()
    outcomes: list[str] = []

    @app.task(lease=3600, name="t")
    def work(x: int) -> int:
        begun.set()
        assert taken.wait(90)
        try:
            fanin.current().heartbeat()
        except Exception:
            outcomes.append("a broad except caught it")
        outcomes.append("went on")
        return x

    job = app.map(work, [7])
    with working(app) as worker:
        assert begun.wait(90)
        take_over(app, job)
        taken.set()
        until(lambda: worker.lost, "the handler has stopped")
        finish_for_rival(app, job, 0, 2, "99")
    assert outcomes == []


@pytest.mark.usefixtures("renewals")
def test_a_coroutine_that_lost_its_lease_is_cancelled(app: fanin.App) -> None:
    """F036"""
    begun, ended = threading.Event(), threading.Event()

    @app.task(name="t")
    async def work(x: int) -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise
        return x

    job = app.map(work, [7])
    with working(app) as worker:
        assert begun.wait(90)
        take_over(app, job)
        assert ended.wait(90)
        until(lambda: worker.lost, "the part was let go")
        finish_for_rival(app, job, 0, 2, "99")
    assert list(job.results()) == [99]


@pytest.mark.usefixtures("renewals")
def test_a_coroutine_cancelled_before_its_first_step_is_let_go(app: fanin.App) -> None:
    """F036: it never ran, so it cannot say so itself"""
    begun, go_on = threading.Event(), threading.Event()

    @app.task(name="t")
    async def work(x: int) -> int:
        if x == 0:
            begun.set()
            assert go_on.wait(90)
        return x

    job = app.map(work, [0, 1])
    with working(app, concurrency=2) as worker:
        assert begun.wait(90)
        until(lambda: len(worker._held) == 2, "both are claimed")
        take_over(app, job, 1)
        until(lambda: any(r.part.cancelled for r in list(worker._held.values())), "its lease is known to be lost")
        go_on.set()
        until(lambda: not worker._held, "both are let go")
        finish_for_rival(app, job, 1, 2, "99")
    assert list(job.results()) == [0, 99]


@pytest.mark.usefixtures("renewals")
def test_a_process_that_lost_its_lease_is_killed(app: fanin.App, tmp_path: Path) -> None:
    app.tasks.update(process_tasks.app.tasks)
    started = tmp_path / "started"
    job = app.map(process_tasks.waits_for_ever, [started])
    with working(app, concurrency=1) as worker:
        until(started.exists, "the child has begun")
        take_over(app, job)
        assert is_gone(int(started.read_text()))
        until(lambda: worker.lost, "the part was let go")
        finish_for_rival(app, job, 0, 2, "null")
    assert list(job.results()) == [None]


def test_a_thread_past_its_time_is_replaced_and_not_heard(app: fanin.App) -> None:
    go_on, late = threading.Event(), threading.Event()

    begun = threading.Event()

    @app.task(timeout=600, attempts=2, backoff=0)
    def work(x: int) -> int:
        if x == 0 and fanin.current().attempt == 1:
            begun.set()
            assert go_on.wait(90)
            late.set()
            return -1
        return x

    job = app.map(work, range(4))
    with working(app, concurrency=1) as worker:
        assert begun.wait(90)
        (hanging,) = [running for running in list(worker._held.values()) if running.claim.idx == 0]
        hanging.deadline = 0.0  # its time is over
        assert job.result(90) == [0, 1, 2, 3]  # one thread, and it hangs: a new one does the rest
        go_on.set()
        assert late.wait(90)
        again = app.map(work, [5])
        assert again.result(90) == 5
        until(lambda: handlers(worker) <= 1, "the late thread has ended")
    (entry,) = job.history()
    assert (entry["what"], entry["attempt"]) == ("retried", 1)
    assert "TimeoutError" in entry["error"]
    assert worker.lost == 0


def handlers(worker: Worker) -> int:
    executor: Any = worker._executors["thread"]
    return int(executor._threads)


def test_handlers_that_end_about_when_their_time_does_leave_one_thread_each(app: fanin.App) -> None:
    """F046: the end and the time-out race; whichever is first counts, and no thread is doubled"""

    @app.task(timeout=0.1, attempts=1)
    def work(x: int) -> int:
        part = fanin.current()
        if x == 0:
            until(lambda: part.cancelled, "its time is over")
        else:
            time.sleep(0.1 + (x % 7 - 1) * 0.04)
        return x

    job = app.map(work, range(60), tolerate=60, fail_fast=False)
    with working(app, concurrency=4) as worker:
        job.wait(60)
        until(lambda: handlers(worker) == 4, "as many threads as at the start")
        assert app.map(work, [1], tolerate=1).wait(90).progress().remaining == 0
    progress = job.progress()
    assert progress.succeeded + progress.failed == 60
    assert progress.failed > 0


@pytest.mark.parametrize("give_up", [True, False])
def test_a_coroutine_past_its_time_is_cancelled(app: fanin.App, give_up: bool) -> None:
    ended: list[int] = []

    @app.task(timeout=0.1, attempts=2, backoff=0, give_up_on=(TimeoutError,) if give_up else ())
    async def work(x: int) -> int:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(fanin.current().attempt)
        return x

    (failure,) = app.map(work, [1], run=True).wait(90).failures()
    assert (failure.type, failure.attempt) == ("TimeoutError", 1 if give_up else 2)
    assert ended == ([1] if give_up else [1, 2])


def test_a_time_out_of_the_handlers_own_is_told_from_ours(app: fanin.App) -> None:
    @app.task(timeout=60, attempts=1)
    async def work(x: int) -> int:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
        return x

    (failure,) = app.map(work, [1], run=True).wait(90).failures()
    assert failure.type == "TimeoutError"
    assert "the attempt took longer" not in failure.message


def test_a_process_past_its_time_is_killed(app: fanin.App) -> None:
    app.tasks.update(process_tasks.app.tasks)
    with working(app, concurrency=1):
        pid = app.submit(process_tasks.process_id).result(90)
        (failure,) = app.submit(process_tasks.overruns).wait(90).failures()
        assert (failure.type, failure.attempt) == ("TimeoutError", 1)
        assert is_gone(pid)


def test_the_next_attempt_resumes_from_the_checkpoint(app: fanin.App) -> None:
    @app.task(attempts=5, backoff=0)
    def work(x: int) -> list[int]:
        part = fanin.current()
        done: list[int] = part.last_checkpoint or []
        for step in range(len(done), 4):
            done.append(step * x)
            part.checkpoint(done)
            if part.attempt == step + 1:
                raise ValueError(step)
        return done

    job = app.map(work, [10, 20], run=True)
    assert job.result(90) == [[0, 10, 20, 30], [0, 20, 40, 60]]
    assert job.account()["retried"] == 8


def test_what_a_handler_sees_of_its_part(app: fanin.App) -> None:
    """F092"""

    @app.task(attempts=2, backoff=0)
    def work(x: int) -> list[Any]:
        part = fanin.current()
        if part.attempt == 1:
            raise ValueError(part.idempotency_key)
        return [part.job_id, part.idx, part.attempt, part.idempotency_key, part.cancelled, part.last_checkpoint]

    job = app.map(work, range(3), run=True)
    for idx, (job_id, seen, attempt, key, cancelled, checkpoint) in enumerate(job.result(90)):
        assert (job_id, seen, attempt, cancelled, checkpoint) == (job.id, idx, 2, False, None)
        assert any(key in (entry["error"] or "") for entry in job.history()), "the key changed with the attempt"
    with pytest.raises(fanin.Refused, match="only for use inside"):
        fanin.current()
