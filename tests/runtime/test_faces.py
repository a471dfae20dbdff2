"""The application and the job as callers see them, sync and async."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
import time
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.runtime.worker import Worker
from tests.runtime.working import until, working


def public(kind: type) -> dict[str, Any]:
    return {n: v for n, v in vars(kind).items() if not n.startswith("_") and not isinstance(v, staticmethod)}


@pytest.mark.parametrize(
    ("sync", "twin"),
    [
        (fanin.App, fanin.AsyncApp),
        (fanin.Job, fanin.AsyncJob),
        (fanin.Schedule, fanin.AsyncSchedule),
        (fanin.Flow, fanin.AsyncFlow),
        (fanin.FlowRun, fanin.AsyncFlowRun),
    ],
)
def test_the_async_twin_has_the_same_names_and_parameters(sync: type, twin: type) -> None:
    ours, theirs = public(sync), public(twin)
    attributes = {"store", "tasks", "effects", "schedules", "max_parts", "leaving"}  # of the instance in App
    assert set(ours) - set(theirs) == set()
    assert set(theirs) - set(ours) <= attributes
    for name in [*ours, *(["__init__"] if sync not in (fanin.Schedule, fanin.Flow) else [])]:
        one, other = getattr(sync, name), getattr(twin, name)
        if isinstance(one, property):
            assert isinstance(other, property), name
            continue
        said = [(p.name, p.kind, p.default) for p in inspect.signature(one).parameters.values()]
        assert said == [(p.name, p.kind, p.default) for p in inspect.signature(other).parameters.values()], name


def test_results_come_in_the_order_of_the_parts_whatever_order_they_ended_in(app: fanin.App) -> None:
    """F006"""
    turn = threading.Condition()
    left = [7]

    @app.task(attempts=3, backoff=0)
    def work(x: int) -> int:
        with turn:
            assert turn.wait_for(lambda: left[0] == x, 30)  # the last part ends first
            left[0] -= 1
            turn.notify_all()
        if x in (2, 5) and fanin.current().attempt == 1:
            left[0] = x
            raise ValueError(x)
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[tuple[int, int]]:
        return list(found.items())

    job = app.map(work, range(8), then=after)
    with working(app, concurrency=10):
        job.wait(90)
        follower = until(lambda: job.successor, "a successor")
        assert follower.result(90) == [(n, n) for n in range(8)]
    assert list(job.results()) == list(range(8))


def test_waiting_has_a_limit_and_the_job_goes_on(app: fanin.App) -> None:
    @app.task
    def work(x: int) -> int:
        return x

    job = app.map(work, [1])
    started = time.monotonic()
    with pytest.raises(fanin.WaitTimeout, match="it goes on"):
        job.wait(0.2)
    assert time.monotonic() - started >= 0.2
    with pytest.raises(fanin.WaitTimeout):
        job.wait(0)
    assert job.wait(90, run=True) == job
    assert job.result() == 1


def test_a_wait_that_runs_the_parts_itself_does_not_wait_for_the_grace_of_its_worker(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Worker.__init__.__kwdefaults__ or {}, "grace", 3600.0)
    begun, go_on = threading.Event(), threading.Event()

    @app.task
    def work(x: int) -> int:
        begun.set()
        assert go_on.wait(90)
        return x

    job = app.map(work, [1], run=True)
    while not begun.is_set():
        with pytest.raises(fanin.WaitTimeout):
            job.wait(0.3)
    go_on.set()
    assert job.result(90) == 1
    assert {e["what"] for e in job.history()} == {"released"}


def test_a_job_without_parts_has_ended_when_it_is_made_and_its_successor_runs(app: fanin.App) -> None:
    """F003"""

    @app.task
    def work(x: int) -> None:
        return None

    @app.task
    def after(found: fanin.Joined[None]) -> list[Any]:
        return [len(found), list(found)]

    empty = app.map(work, [], then=after)
    one = app.map(work, [1], then=after)
    assert empty.status == "completed"
    app.run_worker(until_idle=True)
    for job, expected in ((empty, [0, []]), (one, [1, [None]])):
        assert job.successor is not None
        assert job.successor.result() == expected
        assert job.account()["events"] == 1


def test_a_failed_job_says_which_part_and_is_redriven(app: fanin.App) -> None:
    """F010, F013"""
    broken = {3, 5}
    calls: list[int] = []

    @app.task(attempts=1)
    def work(x: int) -> int:
        calls.append(x)
        if x in broken:
            raise ValueError(f"no {x}")
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> int:
        return sum(found)

    job = app.map(work, range(8), then=after, run=True)
    with pytest.raises(fanin.JobFailed, match=r"part 3 .*ValueError: no 3"):
        job.result(90)
    assert job.successor is None
    assert [f.idx for f in job.failures()] == [3, 5]
    broken.clear()
    assert job.redrive() == 2
    with pytest.raises(fanin.NotAllowedNow):
        job.redrive()
    assert job.result(90) == list(range(8))
    assert sorted(calls) == sorted([*range(8), 3, 5])
    until(lambda: job.successor, "a successor")
    assert job.redrive() == 0
    events = [payload for _, _, kind, payload, *_ in job.events() if kind == "job.finished"]
    assert len(events) == 2


def test_a_job_started_by_a_part_knows_its_parent_and_is_made_once(app: fanin.App) -> None:
    """F018: the splitter dies after its fan-out and is run again"""

    @app.task
    def leaf(x: int) -> int:
        return x

    @app.task(attempts=3, backoff=0)
    def split(n: int) -> str:
        part = fanin.current()
        child = app.map(leaf, range(n), key=f"child of {part.idempotency_key}")
        if part.attempt < 3:
            raise ValueError("after the fan-out")
        return child.id

    job = app.map(split, [3, 0], run=True)
    ids = job.result(90)
    children = job.children()
    assert sorted(child.id for child in children) == sorted(ids)
    for child in children:
        child.wait(90, run=True)
        row = child.row()
        assert (row.parent_id, row.root_id, row.depth) == (job.id, job.id, 1)
    assert sorted(child.progress().total for child in children) == [0, 3]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_jobs_within_jobs_stop_at_the_limit(app: fanin.App, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """F020"""
    monkeypatch.setattr(limits, "JOB_DEPTH_LEVELS", 4)

    def body(x: int) -> int:
        app.map(app.tasks["down"], [x + 1])
        return x

    async def coroutine(x: int) -> int:
        return body(x)

    function: Any = coroutine if kind == "async" else body
    task: Any = app.task(name="down", attempts=5)(function)
    app.map(task, [0])
    app.run_worker(until_idle=True)
    rows = app.jobs(limit=100)
    assert sorted(row.depth for row in rows) == [0, 1, 2, 3, 4]
    (deepest,) = [row for row in rows if row.depth == 4]
    (failure,) = app.job(deepest.id).failures()
    assert (failure.type, failure.attempt) == ("LimitExceeded", 1)
    assert "the limit is 4" in failure.message


def test_a_forked_child_opens_connections_of_its_own(app: fanin.App) -> None:
    """F043"""

    @app.task
    def work(x: int) -> int:
        return os.getpid()

    app.map(work, [1], run=True).wait(90)
    job = app.map(work, range(40))
    pids = []
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                app.map(work, range(5), key=f"of {os.getpid()}")
                app.run_worker(until_idle=True)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    assert set(job.result(90)) <= set(pids)
    for pid in pids:
        assert app.job(f"of {pid}").status == "completed"
    assert app.map(work, [1], run=True).result(90) == os.getpid()


def test_the_async_application_does_what_the_other_does(migrated_url: str) -> None:
    async def story() -> None:
        async with fanin.AsyncApp(migrated_url) as app:

            @app.task(attempts=1)
            async def work(x: int) -> int:
                if x == 13:
                    raise ValueError("unlucky")
                return x * 2

            @app.task
            def after(found: fanin.Joined[int]) -> int:
                return sum(found)

            async def items() -> Any:
                for n in range(20):
                    yield n

            job = await app.map(work, items(), then=after, tolerate=1, key="k", meta={"a": 1})
            assert await app.map(work, range(20), then=after, tolerate=1, key="k", meta={"a": 1}) == job
            with pytest.raises(fanin.WaitTimeout):
                await job.wait(0.05)
            worker = asyncio.create_task(app.run_worker())
            await job.wait(90)
            assert await job.status == "completed"
            assert [r async for r in job.results()] == [2 * n for n in range(20) if n != 13]
            assert [f.idx for f in await job.failures()] == [13]
            follower = await job.successor
            assert follower is not None
            assert await follower.result(90) == sum(2 * n for n in range(20) if n != 13)
            assert await (await app.submit(work, 4)).result(90) == 8
            streamed = await app.map(work, items(), stream=True, key="s", tolerate=1)
            assert len(await streamed.result(90)) == 19
            assert await job.meta() == {"a": 1}
            assert (await job.account())["events"] == 1
            assert await (await app.job("k")).progress() == await job.progress()
            assert await job.cancel() is False
            assert await app.repair("k") == await app.repair("k", dry_run=True) == fanin.Repaired(looked=1)
            with pytest.raises(fanin.UnknownJob):
                await app.job("nothing of this name")
            worker.cancel()
            with pytest.raises(asyncio.CancelledError):
                await worker

    asyncio.run(story())
