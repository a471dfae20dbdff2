"""Flows that are run again: what had failed waits for what stands before it, and keeps its own options."""

from __future__ import annotations

from typing import Any

import pytest

import fanin
from fanin.protocol import purge
from fanin.runtime import upkeep
from tests.runtime.test_flows import Book, book, states, t, work

__all__ = ["book", "t"]


def deadlines(app: fanin.App, run: fanin.FlowRun) -> dict[str, float]:
    """When the job of each step is given up; 0 for never."""
    jobs = {step.name: app.job(step.job_id).row() for step in run.steps() if step.job_id is not None}
    return {name: job.give_up_at or 0.0 for name, job in jobs.items()}


def test_steps_that_are_run_again_have_their_own_deadline_again(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"note first", "total", "fetch a", "note other"}
    flow = app.flow("again", fail_fast=False)
    first = flow.step(t.note, "first", name="first", give_up_after="1h")
    flow.step(t.note, "other", name="other", after=first, on="any", give_up_after="2h")
    flow.map(t.fetch, ["a"], name="pages", give_up_after="3h")
    flow.step(t.note, "without", name="without")
    run = flow.start()
    before = deadlines(app, run)
    assert {name: at > 0 for name, at in before.items()} == {"first": True, "pages": True, "without": False}
    work(app)
    assert run.status == "failed"
    assert run.redrive() == 2
    after = deadlines(app, run)
    assert before["first"] < after["first"]
    assert before["pages"] < after["pages"]
    assert after["pages"] - after["first"] == pytest.approx(7200, abs=60)


@pytest.fixture
def seen(app: fanin.App, book: Book) -> Any:
    """Tasks that say what they were told."""

    class Tasks:
        @app.task(attempts=1)
        def one(number: int) -> int:
            book(f"one {number}")
            return number

        @app.task(attempts=1)
        def double(number: int) -> int:
            book(f"double {number}")
            return 2 * number

        @app.task(attempts=1)
        def rung(said: fanin.Joined[Any]) -> None:
            pass

        @app.task(attempts=1)
        def after(found: fanin.Joined[int] | None) -> int:
            if found is None:
                book("after nothing")
                return 0
            book(f"after {found.outcome} {found.run}: {sorted(found)}")
            return sum(found)

        @app.task(attempts=1)
        def alarm(found: fanin.Joined[int]) -> str:
            book(f"alarm {found.failed}")
            return "rung"

    return Tasks


def again(app: fanin.App, run: fanin.FlowRun, book: Book, *failing: str) -> list[str]:
    """What handlers did in the next run of the flow."""
    book.failing = set(failing)
    book.lines.clear()
    assert run.redrive() == run.row().run
    work(app)
    return book.lines


def test_a_failed_step_waits_for_the_one_before_it_and_is_told_how_that_has_ended_now(
    app: fanin.App, seen: Any, book: Book
) -> None:
    book.failing = {"one 2", "after too_many_failures 1: [1]", "alarm 1"}
    flow = app.flow("again", fail_fast=False)
    numbers = flow.map(seen.one, [1, 2], name="numbers", fail_fast=False)
    flow.step(seen.after, after=numbers, on="any")
    flow.step(seen.alarm, after=numbers, on="failed")
    run = flow.start()
    work(app)
    assert states(run) == {"numbers": "failed", "after": "failed", "alarm": "failed"}
    assert again(app, run, book, "after all_ok 2: [1, 2]") == ["one 2", "after all_ok 2: [1, 2]"]
    assert (run.status, states(run)) == ("failed", {"numbers": "done", "after": "failed", "alarm": "skipped"})
    assert again(app, run, book) == ["after all_ok 2: [1, 2]"]
    assert (run.status, states(run)) == ("completed", {"numbers": "done", "after": "done", "alarm": "skipped"})
    assert run.result("after") == 3


def test_a_step_maps_over_what_the_one_before_it_has_left_now(app: fanin.App, seen: Any, book: Book) -> None:
    book.failing = {"one 2", "double 1"}
    flow = app.flow("again", fail_fast=False)
    doubled = flow.map(seen.double, flow.map(seen.one, [1, 2, 3], fail_fast=False), on="any", fail_fast=False)
    flow.step(seen.after, after=doubled, on="failed")
    flow.step(seen.rung, after=doubled)
    book.failing.add("after too_many_failures 1: [6]")
    run = flow.start()
    work(app)
    assert states(run) == {"one": "failed", "double": "failed", "after": "failed", "rung": "skipped"}
    first = run.job("double")
    after = "after too_many_failures 1: [2, 6]"
    assert sorted(again(app, run, book, "double 2", after)) == [after, "double 1", "double 2", "double 3", "one 2"]
    assert states(run) == {"one": "done", "double": "failed", "after": "failed", "rung": "skipped"}
    second = run.job("double")
    assert (second.row().run, second.progress().succeeded, second.id != first.id) == (1, 2, True)
    assert again(app, run, book) == ["double 2"], "nothing has changed before it: what was done stays"
    assert (run.status, sorted(run.job("double").result())) == ("completed", [2, 4, 6])
    assert states(run) == {"one": "done", "double": "done", "after": "skipped", "rung": "done"}
    assert run.job("double") == second
    assert first.row().status == "failed"
    tree = app.store.read(lambda: purge.flow_tree([run._bucket], (run._bucket, run.id)))
    assert {first.id, second.id} <= {job_id for _, job_id in tree}


def test_a_step_that_waits_for_another_when_its_flow_is_stopped_is_told_the_present_when_it_runs(
    app: fanin.App, seen: Any, book: Book
) -> None:
    book.failing = {"one 1", "after too_many_failures 1: []"}
    flow = app.flow("again", fail_fast=False)
    first = flow.map(seen.one, [1], name="first")
    behind = flow.step(seen.after, after=first, on="any", name="behind")
    flow.step(seen.after, after=behind, name="last")
    run = flow.start()
    work(app)
    assert states(run) == {"first": "failed", "behind": "failed", "last": "skipped"}
    book.failing = set()
    book.meanwhile["one 1"] = run.cancel
    run.redrive()
    assert states(run) == {"first": "running", "behind": "waiting", "last": "waiting"}
    work(app)
    upkeep.once(app.store, run._bucket)
    assert (run.status, states(run)) == ("cancelled", {"first": "failed", "behind": "failed", "last": "skipped"})
    assert again(app, run, book) == ["one 1", "after all_ok 3: [1]", "after all_ok 2: [1]"]
    assert (run.status, states(run)) == ("completed", {"first": "done", "behind": "done", "last": "done"})


def test_what_was_skipped_again_is_told_of_nothing_and_what_stands_behind_goes_on(
    app: fanin.App, seen: Any, book: Book
) -> None:
    """``alarm`` ran and failed in the first run, is skipped in the second, and is not too old in the third."""
    book.failing = {"one 1", "one 2", "alarm 1", "after too_many_failures 1: []", "after nothing"}
    flow = app.flow("again", fail_fast=False)
    one = flow.map(seen.one, [1], name="one")
    two = flow.map(seen.one, [2], name="two")
    alarm = flow.step(seen.alarm, after=one, on="failed", name="alarm")
    flow.step(seen.after, after=[two], on="any", name="other")
    flow.step(seen.rung, after=alarm, on="any", name="behind")
    run = flow.start()
    work(app)
    assert states(run) == {"one": "failed", "two": "failed", "alarm": "failed", "other": "failed", "behind": "done"}
    assert sorted(again(app, run, book, "one 2", "after too_many_failures 2: []")) == [
        "after too_many_failures 2: []", "one 1", "one 2",
    ]  # fmt: skip
    assert states(run) == {"one": "done", "two": "failed", "alarm": "skipped", "other": "failed", "behind": "done"}
    assert "step alarm was skipped: it starts if failed, and one was done" in [
        moment.text for moment in run.explain().timeline
    ]
    assert again(app, run, book) == ["one 2", "after all_ok 3: [2]"]
    assert run.status == "completed"
    assert states(run) == {"one": "done", "two": "done", "alarm": "skipped", "other": "done", "behind": "done"}


def test_an_effect_of_a_step_that_is_told_something_else_is_still_the_same_one(
    app: fanin.App, seen: Any, book: Book
) -> None:
    """It may have been done: the key of a part is the same in every run."""
    keys = []

    @app.task(attempts=1)
    def mails(found: fanin.Joined[int]) -> None:
        part = fanin.current()
        keys.append((str(part.idempotency_key), part.last_checkpoint, list(found)))
        part.checkpoint(1)
        book("mails")

    book.failing = {"one 1", "mails"}
    flow = app.flow("again", fail_fast=False)
    flow.step(mails, after=flow.map(seen.one, [1], name="one"), on="any")
    run = flow.start()
    work(app)
    book.failing = set()
    again(app, run, book, "mails")
    again(app, run, book)
    ((key, *first), (again_key, *second), (last_key, *third)) = keys
    assert key == again_key == last_key
    assert (first, second, third) == ([None, []], [None, [1]], [1, [1]])
    assert run.status == "completed"
