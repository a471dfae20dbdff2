"""Flows that are run again: what had failed waits for what stands before it, and keeps its own options."""

from __future__ import annotations

from typing import Any

import pytest

import fanin
from tests.runtime.test_flows import Book, book, t, work

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
