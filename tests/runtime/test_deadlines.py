"""Deadlines as an application says them: after a time, or at a moment, of jobs, successors and flows."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.testing.invariants import violations

PAST = dt.datetime(2020, 2, 29, tzinfo=dt.UTC)
FUTURE = dt.datetime(2222, 7, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.fixture
def t(app: fanin.App) -> Any:
    class Tasks:
        @app.task
        def note(text: str) -> str:
            return text

        @app.task
        def total(parts: fanin.Joined[str]) -> int:
            return len(parts)

    return Tasks


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def test_a_deadline_is_a_moment(app: fanin.App, t: Any) -> None:
    jobs = [
        app.map(t.note, ["a"], give_up_at=FUTURE),
        app.submit_with(t.note, ("a",), give_up_at=FUTURE.timestamp()),
        app.map(t.note, ["a"], stream=True, give_up_at=FUTURE),
    ]
    with app.open(t.note, give_up_at=FUTURE) as fed:
        fed.add("a")
    flow = app.flow("night", give_up_at=FUTURE)
    flow.step(t.note, "a")
    run = flow.start()
    assert {job.row().give_up_at for job in [*jobs, fed]} | {run.row().give_up_at} == {FUTURE.timestamp()}
    work(app)
    assert {job.status for job in [*jobs, fed]} | {run.status} == {"completed"}


@pytest.mark.parametrize(("give_up", "status"), [("proceed", "completed"), ("abandon", "failed")])
def test_a_moment_that_has_passed_ends_at_once_what_it_is_for(
    app: fanin.App, t: Any, give_up: str, status: str
) -> None:
    job = app.map(t.note, ["a"], then=t.total, give_up_at=PAST, give_up=give_up)
    flow = app.flow("night", give_up_at=PAST, give_up=give_up)
    flow.step(t.note, "a")
    run = flow.start()
    work(app)
    assert (job.status, job.progress().succeeded, run.status) == (status, 0, status)
    assert (job.successor is not None) is (give_up == "proceed")


def test_a_successor_has_a_deadline_of_its_own(app: fanin.App, t: Any) -> None:
    late = app.map(t.note, ["a"], then=fanin.Successor(t.total, give_up_after=0))
    early = app.submit_with(t.note, ("a",), then=fanin.Successor(t.total, give_up_after="1h"))
    work(app)
    assert late.successor is not None
    assert (late.status, late.successor.status, late.successor.row().outcome) == ("completed", "failed", "gave_up")
    assert early.successor is not None
    row = early.successor.row()
    assert row.give_up_at is not None
    assert (row.status, round(row.give_up_at - row.created_at)) == ("completed", 3600)


def test_a_moment_is_a_part_of_the_request(app: fanin.App, t: Any) -> None:
    def asked(at: Any) -> list[Callable[[], object]]:
        flow = app.flow("night", key="flow", give_up_at=at)
        flow.step(t.note, "a")
        return [lambda: app.map(t.note, ["a"], key="job", give_up_at=at), flow.start]

    for ask in asked(FUTURE):
        assert ask() == ask()
    for ask in [*asked(PAST), *asked(None)]:
        with pytest.raises(fanin.KeyConflict):
            ask()


@pytest.mark.parametrize("at", [dt.datetime(2030, 1, 1), math.nan, math.inf, 1e300, "2030-01-01", True])
def test_what_is_no_moment_is_refused(app: fanin.App, t: Any, at: Any) -> None:
    for ask in (lambda: app.map(t.note, ["a"], give_up_at=at), lambda: app.flow("night", give_up_at=at)):
        with pytest.raises(fanin.BadOption, match=r"give_up_at=.*: give a datetime with a time zone"):
            ask()
    with pytest.raises(fanin.BadOption, match="give one of them"):
        app.map(t.note, ["a"], give_up_at=FUTURE, give_up_after=1)
    with pytest.raises(fanin.BadOption, match="give_up_after=-1: must be zero or more"):
        fanin.Successor(t.total, give_up_after=-1)
    assert app.jobs() == []


def test_the_async_twin_says_the_same(migrated_url: str) -> None:
    async def run() -> None:
        async with fanin.AsyncApp(migrated_url) as app:

            @app.task
            async def note(text: str) -> str:
                return text

            @app.task
            async def total(parts: fanin.Joined[str]) -> int:
                return len(parts)

            job = await app.map(note, ["a"], then=fanin.Successor(total, give_up_after="1h"), give_up_at=FUTURE)
            assert (await job.row()).give_up_at == FUTURE.timestamp()
            made = app.flow("night", give_up_at=FUTURE)
            made.step(note, "a")
            assert (await (await made.start()).row()).give_up_at == FUTURE.timestamp()

    asyncio.run(run())
