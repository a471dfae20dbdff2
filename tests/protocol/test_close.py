"""Cancel, give up, and the sweep of what a closed job leaves behind."""

from __future__ import annotations

import pytest

from fanin.domain import limits
from fanin.domain.errors import UnknownJob
from fanin.domain.policy import Policy
from fanin.protocol import close, read
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
    part,
    released,
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


def give_up(store: Store, job_id: str) -> bool:
    return store.run(lambda: close.give_up(0, job_id))


def overdue(store: Store) -> list[str]:
    return store.read(lambda: close.overdue(0))


def test_a_cancelled_job_has_ended_with_the_reason_and_without_a_successor(store: Store) -> None:
    job_id = make(store, 100, stripes=2, then=THEN)
    held = claim_all(store)
    settle(store, done(held[0]), failed(held[99]))
    assert cancel(store, job_id, "not needed") is True
    assert ending(store, job_id) == ("cancelled", "cancelled")
    row = job(store, job_id)
    assert (row.reason, row.succeeded_parts, row.failed_parts, row.abandoned_parts) == ("not needed", 1, 1, 98)
    assert successors(store, job_id) == []


def test_a_cancel_without_a_reason_gives_one(store: Store) -> None:
    job_id = make(store, 1)
    cancel(store, job_id)
    assert job(store, job_id).reason == "cancelled by an operator"


def test_a_cancel_that_is_said_again_changes_nothing(store: Store) -> None:
    job_id = make(store, 1)
    cancel(store, job_id, "first")
    before = snapshot(store)
    assert cancel(store, job_id, "second") is False
    assert snapshot(store) == before


def test_a_cancel_after_the_end_changes_nothing(store: Store) -> None:
    job_id = make(store, 1)
    run_all(store)
    assert cancel(store, job_id) is False
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_job_that_does_not_exist_cannot_be_closed(store: Store) -> None:
    nobody = "00000000-0000-7000-8000-000000000000"
    with pytest.raises(UnknownJob, match=nobody):
        cancel(store, nobody)
    with pytest.raises(UnknownJob, match=nobody):
        give_up(store, nobody)


def test_a_close_touches_no_part(store: Store) -> None:
    job_id = make(store, 3)
    claim(store, 1)
    before = say(store, "SELECT * FROM fanin.part ORDER BY idx")
    cancel(store, job_id)
    assert say(store, "SELECT * FROM fanin.part ORDER BY idx") == before


@pytest.mark.parametrize(
    ("give", "status", "outcome", "children"),
    [("proceed", "completed", "partial", 1), ("abandon", "failed", "gave_up", 0)],
)
def test_a_passed_deadline_ends_the_job_by_its_policy(
    store: Store, clock: Clock, give: str, status: str, outcome: str, children: int
) -> None:
    job_id = make(store, 3, policy=Policy(give_up=give), give_up_after=30.0, then=THEN)
    held = claim(store)
    settle(store, done(held[0]))
    assert overdue(store) == []
    assert give_up(store, job_id) is False
    assert ending(store, job_id) == ("running", None)
    clock.advance(31)
    assert overdue(store) == [job_id]
    assert give_up(store, job_id) is True
    assert ending(store, job_id) == (status, outcome)
    assert (job(store, job_id).succeeded_parts, job(store, job_id).abandoned_parts) == (1, 2)
    assert len(successors(store, job_id)) == children
    assert overdue(store) == []
    assert give_up(store, job_id) is False
    assert [v.value for v in verdicts(store, done(held[1]))] == ["closed"]


def test_a_job_that_proceeds_without_any_result_says_so(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, policy=Policy(give_up="proceed"), give_up_after=1.0, then=THEN)
    clock.advance(2)
    give_up(store, job_id)
    assert ending(store, job_id) == ("completed", "partial")
    assert events(store, job_id)[0]["succeeded"] == 0


def test_a_job_that_ended_in_time_is_not_given_up(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, give_up_after=30.0)
    run_all(store)
    clock.advance(31)
    assert overdue(store) == []
    assert give_up(store, job_id) is False
    assert ending(store, job_id) == ("completed", "all_ok")


def test_an_open_job_whose_creator_never_seals_it_is_given_up(store: Store, clock: Clock) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    clock.advance(limits.OPEN_SECONDS + 1)
    assert overdue(store) == [job_id]
    assert give_up(store, job_id) is True
    assert ending(store, job_id) == ("failed", "gave_up")
    assert sweep_all(store) == 2
    assert states(store, job_id) == ["abandoned"] * 2


def test_jobs_without_a_deadline_are_never_overdue(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    clock.advance(10 * limits.OPEN_SECONDS)
    assert overdue(store) == []
    assert give_up(store, job_id) is False


def test_the_deadlines_that_passed_first_are_given_up_first(store: Store, clock: Clock) -> None:
    late, early = make(store, 1, give_up_after=20.0), make(store, 1, give_up_after=10.0)
    clock.advance(30)
    assert overdue(store) == [early, late]


def test_a_sweep_abandons_what_is_live_and_leaves_what_has_ended(store: Store) -> None:
    job_id = make(store, 5)
    held = claim(store, 4)
    settle(store, done(held[0]), failed(held[1]), retried(held[2]))
    cancel(store, job_id)
    assert store.read(lambda: close.unswept(0)) == [(job_id, 0)]
    assert sweep_all(store) == 3
    assert states(store, job_id) == ["succeeded", "failed", "abandoned", "abandoned", "abandoned"]
    stripes = say(store, "SELECT created, remaining, succeeded, failed, abandoned FROM fanin.job_stripe")
    assert stripes == [(5, 0, 1, 1, 3)]
    assert store.read(lambda: close.unswept(0)) == []
    assert claim(store) == []


def test_a_sweep_goes_in_bounded_steps(store: Store) -> None:
    job_id = make(store, limits.SWEEP_PARTS + 3)
    cancel(store, job_id)
    assert [sweep(store, job_id, 0) for _ in range(3)] == [limits.SWEEP_PARTS, 3, 0]


def test_an_open_stripe_is_not_swept(store: Store) -> None:
    job_id = make(store, 3)
    before = snapshot(store)
    assert sweep(store, job_id, 0) == 0
    assert sweep(store, job_id, 9) == 0
    assert snapshot(store) == before


def test_each_stripe_is_swept_for_itself(store: Store) -> None:
    job_id = make(store, 192, stripes=3)
    cancel(store, job_id)
    assert sweep(store, job_id, 1) == 64
    assert store.read(lambda: close.unswept(0)) == [(job_id, 0), (job_id, 2)]
    progress = store.read(lambda: read.progress(0, job_id))
    assert progress is not None
    assert (progress.remaining, progress.abandoned) == (0, 192)
    assert sweep_all(store) == 128


def test_no_part_of_a_closed_job_is_handed_out(store: Store) -> None:
    job_id, other = make(store, 200, stripes=2), make(store, 2)
    cancel(store, job_id)
    assert [c.job_id for c in claim(store, 2)] == [other, other]
    assert claim(store) == []
    assert sweep(store, job_id, 0) == 128
    assert claim(store) == []


def test_a_part_given_back_to_a_closed_job_is_abandoned(store: Store) -> None:
    job_id = make(store, 3)
    given, again, held = claim(store)
    cancel(store, job_id)
    settle(store, released(given), retried(again))
    assert claim(store) == []
    assert sweep_all(store) == 3
    assert {v.value for v in verdicts(store, done(held), released(held), retried(held))} == {"closed"}
    assert part(store, job_id, 0)["status"] == "abandoned"
    assert len(events(store, job_id)) == 1
