"""Nested jobs that end in one batch: all go up in its transaction, or by ranks, where the order of locks asks it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fanin.domain.model import NESTED, Claim, Report, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import close, finish
from fanin.protocol.steps import Apart
from fanin.runtime.executors import Running
from fanin.runtime.settling import Settling
from fanin.runtime.task import Task
from fanin.stores.base import Store
from fanin.testing.tap import Tap, tap
from tests.protocol.helpers import QUEUE, TASK, claim, done, ending, failed, job, make, part, settle, states, verdicts
from tests.protocol.test_nested import begin


def nothing() -> None:
    """What the task would do."""


class Commits(Tap):
    count = 0

    def committed(self) -> None:
        Commits.count += 1


def waiting(store: Store, parts: int, **options: Any) -> tuple[str, list[Claim]]:
    """A job, each part of which waits for a job of one part. The claims of these, in the order of the waiting parts."""
    job_id = make(store, parts, **options)
    held = claim(store, parts)
    nested = {begin(store, one)[1]: one.idx for one in held}
    return job_id, sorted(claim(store, parts), key=lambda last: nested[last.job_id])


def transact(store: Store, *reports: Report) -> tuple[list[Verdict], int]:
    """What a worker hears of a batch, in the order of the parts, and how many commits it took."""
    task: Task[..., None] = Task(nothing, name=TASK)
    said = [(Running(report.claim, task, store, time.monotonic()), report) for report in reports]
    Commits.count = 0
    tap(store, Commits)
    answers, claims = Settling(store, [QUEUE], {TASK: 60.0}, "w").transact(0, said, 0)
    assert claims == []
    return [answer.verdict for report in reports for said_of, answer in answers if said_of is report], Commits.count


def test_they_go_up_in_one_transaction(store: Store) -> None:
    job_id, lasts = waiting(store, 3)
    verdicts, commits = transact(store, *map(done, lasts))
    assert (verdicts, commits) == ([Verdict.LAST] * 3, 1)
    assert ending(store, job_id) == ("completed", "all_ok")
    assert [part(store, job_id, n)["result"] for n in range(3)] == [NESTED + last.job_id for last in lasts]


def test_they_go_up_through_several_levels(store: Store) -> None:
    job_id = make(store, 2)
    held = claim(store, 2)
    for one in held:
        begin(store, one)
    for one in claim(store, 2):
        begin(store, one)
    lasts = claim(store, 2)
    assert transact(store, *map(done, lasts)) == ([Verdict.LAST] * 2, 1)
    assert ending(store, job_id) == ("completed", "all_ok")


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (Policy(tolerate=1), "with_failures"),
        (Policy(fail_fast=True), "too_many_failures"),
        (Policy(quorum=1), "partial"),
    ],
    ids=["tolerated", "fail fast", "quorum"],
)
def test_the_policy_above_judges_what_goes_up_together(store: Store, policy: Policy, outcome: str) -> None:
    job_id, lasts = waiting(store, 3, policy=policy, failure_events=True)
    assert verdicts(store, failed(lasts[0]), done(lasts[1])) == [Verdict.LAST] * 2
    if outcome == "with_failures":
        settle(store, done(lasts[2]))
    assert job(store, job_id).outcome == outcome
    assert states(store, job_id)[:2] == ["failed", "succeeded"]


def test_what_stands_above_in_a_job_that_was_closed_is_let_go(store: Store) -> None:
    job_id, lasts = waiting(store, 2)
    store.run(lambda: close.cancel(0, job_id))
    assert verdicts(store, *map(done, lasts)) == [Verdict.LAST] * 2
    assert states(store, job_id) == ["pending", "pending"]


def test_ranks_go_up_one_after_the_other(store: Store) -> None:
    """The batch holds the counter above already, and could not take it in the order of locks."""
    job_id = make(store, 4)
    *held, other = claim(store, 4)
    for one in held:
        begin(store, one)
    lasts = claim(store, 3)
    reports = [done(last) for last in (*lasts, other)]
    with pytest.raises(Apart):
        store.run(lambda: finish.settle(0, reports, "w"))
    assert transact(store, *reports) == ([Verdict.LAST] * 3 + [Verdict.LAST], 2)
    assert ending(store, job_id) == ("completed", "all_ok")


def test_one_does_not_go_up_beside_the_row_of_a_job_that_goes_on(store: Store) -> None:
    """Then each job is settled by itself, also of one rank."""
    beside = make(store, 65, stripes=2)
    *below, _ = claim(store, 65)
    job_id, (last,) = waiting(store, 1)
    assert beside < job_id
    reports = [*map(done, below), done(last)]
    with pytest.raises(Apart):
        store.run(lambda: finish.settle(0, reports, "w"))
    assert transact(store, *reports)[1] == 2
    assert ending(store, job_id) == ("completed", "all_ok")
