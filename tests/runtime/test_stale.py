"""What is too old when it would start, as an application says it."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import fanin
from fanin.testing.invariants import violations


@pytest.fixture
def t(app: fanin.App) -> Any:
    class Tasks:
        seen: ClassVar[list[str]] = []

        @app.task(attempts=1)
        def names(count: int) -> list[str]:
            return [f"n{n}" for n in range(count)]

        @app.task(attempts=1)
        def note(text: str) -> str:
            Tasks.seen.append(text)
            return text

        @app.task(attempts=1)
        def total(parts: fanin.Joined[str]) -> int:
            Tasks.seen.append("total")
            return len(parts)

    return Tasks


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


@pytest.mark.parametrize(("stale", "step", "flow"), [("skip", "skipped", "completed"), ("fail", "failed", "failed")])
def test_steps_that_are_too_old_do_not_run(app: fanin.App, t: Any, stale: str, step: str, flow: str) -> None:
    plan = app.flow("old", fail_fast=False)
    found = plan.step(t.names, 2)
    plan.map(t.note, found, stale_after=0, stale=stale)
    plan.step(t.note, "call", name="call", after=found, stale_after="0s", stale=stale)
    plan.step(t.note, "first", name="first", stale_after=0, stale=stale)
    run = plan.start()
    work(app)
    states = {one.name: one.status for one in run.steps()}
    assert states == {"names": "done", "note": step, "call": step, "first": step}
    assert (run.status, t.seen) == (flow, [])
    assert "too old" in str(run.job("call").row().reason)


def test_what_starts_in_time_is_run(app: fanin.App, t: Any) -> None:
    plan = app.flow("young")
    plan.map(t.note, plan.step(t.names, 2), stale_after="1h", stale="fail")
    run = plan.start()
    work(app)
    assert (run.status, sorted(t.seen)) == ("completed", ["n0", "n1"])


def test_a_successor_that_is_too_old_is_skipped(app: fanin.App, t: Any) -> None:
    job = app.map(t.note, ["a"], then=fanin.Successor(t.total, stale_after=0, stale="skip"))
    work(app)
    assert job.successor is not None
    assert (job.row().status, job.successor.row().status) == ("completed", "cancelled")
    assert t.seen == ["a"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stale": "no"}, "stale='no': give one of run, skip, fail"),
        ({"stale": "skip"}, "say from which age on"),
        ({"stale_after": "1h"}, "say what follows"),
        ({"stale_after": -1, "stale": "skip"}, "stale_after"),
    ],
)
def test_what_makes_no_sense_is_refused(app: fanin.App, t: Any, options: dict[str, Any], said: str) -> None:
    plan = app.flow("bad")
    with pytest.raises(fanin.BadOption, match=said):
        plan.step(t.note, "a", **options)
    with pytest.raises(fanin.BadOption, match=said):
        plan.map(t.note, plan.step(t.names, 1, name="names"), **options)
    with pytest.raises(fanin.BadOption, match=said):
        fanin.Successor(t.total, **options)
    with pytest.raises(fanin.BadOption, match="stands after no other"):
        plan.map(t.note, ["a"], name="items", stale_after="1h", stale="skip")
    assert app.jobs() == []
