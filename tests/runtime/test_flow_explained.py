"""What `FlowRun.explain` tells: all that happened, by whom and why, in the order of time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.runtime.upkeep import once
from fanin.testing.invariants import violations
from fanin.testing.state import execute

FAILED = "1 of 1 parts failed, tolerated 0"


class Troubles:
    """What fails now."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    def __call__(self, what: str) -> None:
        if what in self.failing:
            raise fanin.Permanent(f"{what} fails")


@pytest.fixture
def troubles() -> Troubles:
    return Troubles()


@pytest.fixture
def t(app: fanin.App, troubles: Troubles) -> Any:
    class Tasks:
        @app.task(attempts=1)
        def do(text: str) -> str:
            troubles(text)
            return text

        @app.task(attempts=1)
        def three(text: str) -> list[str]:
            return ["x", "y", "z"]

        @app.task(attempts=1)
        def undo(text: str) -> None:
            troubles(f"undo {text}")

    return Tasks


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def told(run: fanin.FlowRun) -> list[str]:
    """The lines without ids of jobs and what becomes of events."""
    lines = [line.text for line in run.explain().timeline]
    assert lines[0].startswith("created: ")
    times = [line.at for line in run.explain().timeline]
    assert max(abs(a - b) for a, b in zip(times, sorted(times), strict=True)) < 1.0  # but within a transaction
    lines = [re.sub(r"job [0-9a-f-]+", "job J", line) for line in lines[1:]]
    return [re.sub(r"; its event is waiting| of [\w.<>]+$", "", line) for line in lines]


def test_both_runs_of_a_flow_are_told_with_who_ran_it_again(app: fanin.App, t: Any, troubles: Troubles) -> None:
    troubles.failing = {"y"}
    flow = app.flow("again")
    flow.step(t.do, "last", name="last", after=flow.map(t.do, flow.step(t.three, "", name="first"), name="each"))
    run = flow.start()
    work(app)
    assert told(run) == [
        "step first started: job J", "step first ended: job J completed",
        "step each started: job J", "step each ended: job J failed: 1 of 3 parts failed, tolerated 0",
        "step last was skipped: it starts if ok, and each has failed",
        "run 1 ended: failed (1 done, 1 failed, 1 skipped): step 'each': job J failed (too_many_failures): "
        "1 of 3 parts failed, tolerated 0",
    ]  # fmt: skip
    troubles.failing = set()
    assert run.redrive(reason="y is mended", by="kim") == 2
    work(app)
    assert run.status == "completed"
    assert told(run) == [
        "step first started: job J", "step first ended: job J completed",
        "step each started: job J", "step each ended: job J failed: 1 of 3 parts failed, tolerated 0",
        "run 1 ended: failed (1 done, 1 failed, 1 skipped): step 'each': job J failed (too_many_failures): "
        "1 of 3 parts failed, tolerated 0",
        "flow redriven by kim: y is mended",
        "step each runs again",
        "step each ended: job J completed",
        "step last started: job J", "step last ended: job J completed",
        "run 2 ended: completed (3 done)",
    ]  # fmt: skip
    ends = [(line.what, line.run) for line in run.explain().timeline if line.what in ("ended", "redriven")]
    assert ends == [("ended", 1), ("redriven", 2), ("redriven", 2), ("ended", 2)]


def test_undos_are_told_with_what_people_did_about_them(app: fanin.App, t: Any, troubles: Troubles) -> None:
    troubles.failing = {"last", "undo second", "undo third"}
    flow = app.flow("undone")
    first = flow.step(t.do, "first", name="first", undo=fanin.manual("call the bank"))
    second = flow.step(t.do, "second", name="second", after=first, undo=t.undo)
    third = flow.step(t.do, "third", name="third", after=second, undo=t.undo)
    flow.step(t.do, "last", name="last", after=third)
    run = flow.start()
    work(app)
    run.undo_again("third", "try again", by="kim")
    work(app)
    run.abandon_undo("third", "too late", by="kim")
    work(app)
    run.resolve("second", "saw it", nothing_to_undo=True, by="lee")
    work(app)
    run.resolve("first", "called them", by="lee")
    work(app)
    assert run.status == "compensated"
    why = f"step 'last': job J failed (too_many_failures): {FAILED}"
    assert told(run)[7:] == [
        f"step last ended: job J failed: {FAILED}",
        "the undo of step third started: job J",
        f"the undo of step third ended: job J failed: {FAILED}",
        f"run 1 needs a person for step third: {why}; the undo of step 'third' failed: "
        f"job J failed (too_many_failures): {FAILED}",
        "the undo of step third was begun again by kim: try again",
        f"the undo of step third ended: job J failed: {FAILED}",
        f"run 1 needs a person for step third: {why}; the undo of step 'third' failed: "
        f"job J failed (too_many_failures): {FAILED}",
        "the undo of step third was given up by kim: too late",
        "the undo of step second started: job J",
        f"the undo of step second ended: job J failed: {FAILED}",
        f"run 1 needs a person for step second: {why}; the undo of step 'second' failed: "
        f"job J failed (too_many_failures): {FAILED}",
        "step second was found to need no undo by lee: saw it",
        f"run 1 needs a person for step first: {why}",
        "step first was undone by hand by lee: called them",
        f"run 1 ended: compensated (1 not_undone, 2 nothing_to_undo, 1 undone): {why}; given up, so not undone: third",
    ]
    deeds = [(line.what, line.worker) for line in run.explain().timeline if line.worker]
    assert deeds == [("undo_again", "kim"), ("not_undone", "kim"), ("nothing_to_undo", "lee"), ("undone", "lee")]


@pytest.mark.parametrize("kind", ["cancelled", "failed", "late"])
def test_a_step_that_was_skipped_with_a_stop_is_not_laid_to_what_was_stopped(
    app: fanin.App, t: Any, troubles: Troubles, kind: str
) -> None:
    troubles.failing = {"bad"}
    flow = app.flow("stopped", give_up_after="1h" if kind == "late" else None)
    approve = flow.step(t.do, "approve", name="approve", queue="nobody serves it")
    ship = flow.step(t.do, "ship", name="ship", after=approve)
    flow.step(t.do, "bill", name="bill", after=ship)
    if kind == "failed":
        flow.step(t.do, "next", name="next", after=flow.step(t.do, "bad", name="bad"))
    run = flow.start()
    work(app)
    STOPS[kind](app, run)
    work(app)
    lines = told(run)
    why = {
        "cancelled": "the flow was cancelled", "failed": "the flow was stopped, since step bad had failed",
        "late": "the flow gave up at its deadline",
    }[kind]  # fmt: skip
    assert f"step ship was skipped: {why}" in lines
    assert f"step bill was skipped: {why}" in lines
    assert ("step next was skipped: it starts if ok, and bad has failed" in lines) is (kind == "failed")
    assert "step approve ended: job J cancelled: its flow has been stopped" in lines
    if kind == "cancelled":
        at = lines.index("flow cancelled by kim: the customer called")
        assert at < lines.index(f"step ship was skipped: {why}")
        assert lines[-1] == "run 1 ended: cancelled (1 failed, 2 skipped): the customer called"


def pass_deadline(app: fanin.App, run: fanin.FlowRun) -> None:
    execute(app.store, f"UPDATE fanin.flow SET give_up_at = {run.row().created_at} WHERE id = '{run.id}'")
    upkeep(app)


def upkeep(app: fanin.App) -> None:
    for bucket in range(app.store.buckets):
        while once(app.store, bucket):
            pass


STOPS: dict[str, Callable[[fanin.App, fanin.FlowRun], object]] = {
    "cancelled": lambda app, run: run.cancel("the customer called", by="kim"),
    "failed": lambda app, run: upkeep(app),
    "late": pass_deadline,
}


def test_what_was_done_to_the_job_of_a_step_is_told_too(app: fanin.App, t: Any, troubles: Troubles) -> None:
    flow = app.flow("watched")
    flow.map(t.do, ["a", "b"], name="each")
    run = flow.start()
    run.job("each").pause("look first", by="kim")
    run.job("each").resume(by="lee")
    run.job("each").cancel("not this one", by="lee")
    assert told(run)[1:4] == [
        "step each: paused by kim: look first",
        "step each: resumed by lee",
        "step each: cancelled by lee: not this one",
    ]
    assert told(run)[4] == "step each ended: job J cancelled: not this one"


def test_there_must_be_a_flow_to_tell_of(app: fanin.App) -> None:
    nowhere = "01980000-0000-7000-8000-0000000000ff"
    with pytest.raises(fanin.UnknownJob, match=f"there is no flow {nowhere}"):
        fanin.FlowRun(app, nowhere).explain()
