"""A new run of an ended job, for the parts that have no result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fanin.domain import identity, limits
from fanin.domain.errors import NotAllowedNow, UnknownJob, UnknownPart
from fanin.domain.model import Claim
from fanin.domain.policy import Policy
from fanin.protocol import close, redrive, submit
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    events,
    failed,
    job,
    make,
    make_open,
    new_job,
    part,
    retried,
    run_all,
    say,
    settle,
    snapshot,
    states,
    successors,
    sweep,
    sweep_all,
    verdicts,
)


def again(
    store: Store,
    job_id: str,
    run: int = 1,
    attempts: int = 2,
    chosen: Sequence[int] | None = None,
    give_up_after: float | None = None,
) -> int:
    return store.run(lambda: redrive.redrive(0, job_id, run, attempts, chosen, give_up_after))


def one_failed(store: Store, parts: int = 3, **options: Any) -> str:
    """A job that ended with its part 1 failed and the others succeeded."""
    job_id = make(store, parts, **options)
    settle(store, *[failed(c) if c.idx == 1 else done(c, str(c.idx)) for c in claim_all(store)])
    return job_id


def test_a_redrive_opens_a_new_run_for_the_failed_parts_alone(store: Store) -> None:
    job_id = one_failed(store)
    assert again(store, job_id, attempts=2) == 2
    assert ending(store, job_id) == ("running", None)
    assert states(store, job_id) == ["succeeded", "pending", "succeeded"]
    row = part(store, job_id, 1)
    assert (row["attempt"], row["attempts_allowed"]) == (1, 3)
    (held,) = claim(store)
    assert (held.idx, held.attempt) == (1, 2)
    assert [v.value for v in verdicts(store, done(held))] == ["last"]
    assert ending(store, job_id) == ("completed", "all_ok")
    assert [e["run"] for e in events(store, job_id)] == [1, 2]
    assert [e["outcome"] for e in events(store, job_id)] == ["too_many_failures", "all_ok"]


def test_the_attempt_never_falls_so_no_token_of_an_earlier_run_is_heard(store: Store) -> None:
    job_id = make(store, 1, attempts=1)
    old: list[Claim] = []
    for run in range(1, 5):
        (held,) = claim(store)
        assert held.attempt == run
        assert {v.value for v in verdicts(store, *map(done, old))} <= {"lost"}
        settle(store, failed(held))
        old.append(held)
        assert again(store, job_id, run=run, attempts=1) == run + 1
    # The newest old token still stands on the part, which waits: its holder has said "failed", not "again".
    assert {v.value for v in verdicts(store, *map(failed, old))} == {"lost"}
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")
    assert len(events(store, job_id)) == 5


def test_every_run_that_completes_has_a_successor_of_its_own(store: Store) -> None:
    job_id = one_failed(store, policy=Policy(tolerate=1), then=THEN)
    assert ending(store, job_id) == ("completed", "with_failures")
    again(store, job_id)
    run_all(store)
    assert sorted(successors(store, job_id)) == sorted(identity.successor_id(job_id, "then", run) for run in (1, 2))


def test_a_run_that_failed_leaves_no_successor_and_the_next_one_does(store: Store) -> None:
    job_id = one_failed(store, then=THEN)
    assert successors(store, job_id) == []
    again(store, job_id)
    run_all(store)
    assert successors(store, job_id) == [identity.successor_id(job_id, "then", 2)]


def test_the_parts_of_a_cancelled_job_that_were_swept_run_again(store: Store) -> None:
    job_id = make(store, 130, stripes=2)
    settle(store, *map(done, claim(store, 10)))
    cancel(store, job_id)
    assert sweep_all(store) == 120
    assert again(store, job_id) == 2
    assert states(store, job_id).count("pending") == 120
    assert {v.value for v in run_all(store)} == {"last"}
    assert ending(store, job_id) == ("completed", "all_ok")


def test_parts_that_the_sweeper_has_not_reached_go_on_in_the_new_run(store: Store) -> None:
    job_id = make(store, 130, stripes=2)
    (held, *_) = claim(store, 10)
    cancel(store, job_id)
    sweep(store, job_id, 1)
    assert again(store, job_id) == 2
    assert store.read(lambda: close.unswept(0)) == []
    assert sweep(store, job_id, 0) == 0
    assert [v.value for v in verdicts(store, done(held))] == ["ok"]
    run_all(store)
    assert states(store, job_id).count("succeeded") == 121
    assert ending(store, job_id) == ("running", None)


def test_chosen_parts_run_again_and_the_others_stay_failed(store: Store) -> None:
    job_id = make(store, 5, policy=Policy(tolerate=5))
    settle(store, *map(failed, claim(store)))
    assert again(store, job_id, chosen=[1, 3]) == 2
    assert states(store, job_id) == ["failed", "pending", "failed", "pending", "failed"]
    run_all(store)
    assert ending(store, job_id) == ("completed", "with_failures")
    assert (job(store, job_id).succeeded_parts, job(store, job_id).failed_parts) == (2, 3)


@pytest.mark.parametrize(
    ("chosen", "refusal", "said"),
    [
        ([0], NotAllowedNow, "are neither failed nor abandoned"),
        ([1, 0], NotAllowedNow, "are neither failed nor abandoned"),
        ([99], UnknownPart, "has no part 99: they count from 0"),
        ([1, -1], UnknownPart, "has no part -1: they count from 0"),
    ],
)
def test_a_chosen_part_that_has_a_result_or_does_not_exist_is_refused(
    store: Store, chosen: list[int], refusal: type[Exception], said: str
) -> None:
    job_id = one_failed(store)
    before = snapshot(store)
    with pytest.raises(refusal, match=said):
        again(store, job_id, chosen=chosen)
    assert snapshot(store) == before


def test_a_job_without_a_failed_part_is_left_as_it_is(store: Store) -> None:
    job_id = make(store, 2)
    run_all(store)
    before = snapshot(store)
    assert again(store, job_id) == 0
    assert snapshot(store) == before


def test_a_redrive_that_is_said_again_opens_one_run(store: Store) -> None:
    job_id = one_failed(store)
    assert again(store, job_id, run=1) == 2
    before = snapshot(store)
    assert again(store, job_id, run=1) == 2
    assert snapshot(store) == before
    run_all(store)
    assert again(store, job_id, run=1) == 2
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_running_or_an_open_job_cannot_be_redriven(store: Store) -> None:
    running, opened = make(store, 1), make_open(store)
    for job_id, status in ((running, "running"), (opened, "open")):
        with pytest.raises(NotAllowedNow, match=f"is {status} \\(run 1\\)"):
            again(store, job_id)


def test_a_job_that_does_not_exist_cannot_be_redriven(store: Store) -> None:
    with pytest.raises(UnknownJob):
        again(store, "00000000-0000-7000-8000-000000000000")


def test_a_refused_job_has_nothing_to_redrive(store: Store) -> None:
    job_id = make(store, 1, depth=limits.JOB_DEPTH_LEVELS, then=THEN)
    run_all(store)
    (child,) = successors(store, job_id)
    assert again(store, child) == 0
    assert ending(store, child) == ("failed", "refused")


def test_a_new_run_may_have_a_new_deadline(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, give_up_after=10.0)
    clock.advance(11)
    store.run(lambda: close.give_up(0, job_id))
    sweep_all(store)
    assert again(store, job_id) == 2
    assert job(store, job_id).give_up_at is None
    cancel(store, job_id)
    sweep_all(store)
    assert again(store, job_id, run=2, give_up_after=100.0) == 3
    clock.advance(101)
    assert store.read(lambda: close.overdue(0)) == [job_id]


def test_a_new_run_fails_as_the_first_one_did(store: Store) -> None:
    job_id = one_failed(store, policy=Policy(fail_fast=True))
    sweep_all(store)
    again(store, job_id, attempts=1)
    (held, *_) = claim(store)
    assert [v.value for v in verdicts(store, retried(held))] == ["last"]
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert part(store, job_id, held.idx)["attempt"] == 2


def test_a_quorum_that_stands_already_is_met_by_the_first_success_of_the_new_run(store: Store) -> None:
    job_id = make(store, 4, policy=Policy(quorum=2), then=THEN)
    settle(store, *map(done, claim(store, 2)))
    assert ending(store, job_id) == ("completed", "partial")
    sweep_all(store)
    again(store, job_id)
    assert [v.value for v in verdicts(store, done(claim(store)[0]))] == ["last"]
    assert ending(store, job_id) == ("completed", "partial")
    assert (job(store, job_id).succeeded_parts, len(successors(store, job_id))) == (3, 2)


def test_a_job_that_was_closed_while_open_is_sealed_by_its_redrive(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 3)
    cancel(store, job_id)
    sweep_all(store)
    assert again(store, job_id) == 2
    assert job(store, job_id).sealed_parts == 3
    with pytest.raises(NotAllowedNow):
        append(store, job_id, 3, 1)
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_job_with_a_plan_that_was_closed_before_all_parts_came_can_be_redriven(store: Store) -> None:
    wanted = new_job(store, planned=10, give_up_after=60.0)
    store.run(lambda: submit.open_job(wanted))
    append(store, wanted.id, 0, 3)
    cancel(store, wanted.id)
    sweep_all(store)
    assert again(store, wanted.id) == 2
    run_all(store)
    assert ending(store, wanted.id) == ("completed", "all_ok")


def test_ten_thousand_abandoned_parts_run_again(store: Store) -> None:
    job_id = make(store, 10_000, stripes=4)
    cancel(store, job_id)
    assert sweep_all(store) == 10_000
    assert again(store, job_id) == 2
    assert say(store, "SELECT sum(remaining), sum(abandoned) FROM fanin.job_stripe") == [(10_000, 0)]
    assert len(claim_all(store)) == 10_000
