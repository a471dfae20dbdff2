"""The guards stand in the SQL itself: a statement said alone, to rows in a state that is not its own, changes nothing.

The code before a statement mostly knows already that it must not be said; these tests go past that code. What guards
and locks are worth between two transactions is in ``tests/races``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.domain import limits
from fanin.domain.policy import Policy
from fanin.protocol import close, counting, ending, finish, growth, lease, outbox, purge, redrive, submit, success
from fanin.protocol.steps import Statement
from fanin.stores.base import Store
from tests.protocol import flows
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    cancel,
    claim,
    done,
    failed,
    make,
    make_open,
    released,
    retried,
    run_all,
    say,
    send,
    settle,
    snapshot,
    states,
    sweep,
    sweep_all,
)


def running(store: Store) -> str:
    """Two parts, one of them failed, one held."""
    job_id = make(store, 2)
    first, _ = claim(store)
    settle(store, failed(first))
    return job_id


def unclaimed(store: Store) -> str:
    """A job of one part that is too old to start."""
    return make(store, 1, stale_after=-1.0, stale="skip")


def claimed_in_time(store: Store) -> str:
    job_id = make(store, 1, stale_after=60.0, stale="skip")
    claim(store)
    return job_id


def waits_for_a_person(store: Store) -> str:
    flow_id = flows.start(store, {"a": "", "b": "a"}, manual=["a"])
    flows.end(store, flow_id, "a")
    flows.fail(store, flow_id, "b")
    return flow_id


def opened(store: Store) -> str:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    return job_id


def completed(store: Store) -> str:
    job_id = make(store, 2)
    run_all(store)
    return job_id


def ended_with_failures(store: Store) -> str:
    job_id = make(store, 2, policy=Policy(tolerate=1))
    first, second = claim(store)
    settle(store, failed(first), done(second))
    return job_id


def cancelled(store: Store) -> str:
    """Closed, and not swept yet."""
    job_id = make(store, 2)
    claim(store, 1)
    cancel(store, job_id)
    return job_id


def cancelled_open(store: Store) -> str:
    job_id = opened(store)
    cancel(store, job_id)
    return job_id


def judged(store: Store) -> str:
    return make(store, 2, policy=Policy(quorum=1))


def refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> str:
    """A successor that was born refused, because it would have stood too deep."""
    monkeypatch.setattr(limits, "JOB_DEPTH_LEVELS", 0)
    make(store, 1, then=THEN)
    run_all(store)
    ((job_id,),) = say(store, "SELECT id FROM fanin.job WHERE outcome = 'refused'")
    return str(job_id)


def seals_the_job(job_id: str) -> Statement:
    return submit.SQL.seal_job(bucket=0, id=job_id, created=2, open_stripes=1, request_hash=None, keep=True)


def counts_down(job_id: str) -> Statement:
    return counting.SQL.count_down(bucket=0, job_id=job_id, stripe=0, succeeded=1, failed=0, locked=False)


def expects(succeeded: int) -> Callable[[str], Statement]:
    return lambda job_id: success.SQL.count_expected(bucket=0, job_id=job_id, stripe=0, succeeded=succeeded)


def ends(job_id: str) -> Statement:
    return ending.SQL.end_job(
        bucket=0, job_id=job_id, status="failed", outcome="gave_up", reason=None, succeeded=0, failed=0, abandoned=0
    )


def adds(job_id: str) -> Statement:
    return submit.SQL.add_created(bucket=0, job_id=job_id, rows=[(0, 1)])


def sweeps(job_id: str) -> Statement:
    return close.SQL.sweep_parts(bucket=0, job_id=job_id, stripe=0, limit=10)


def revives(job_id: str) -> Statement:
    return redrive.SQL.revive_parts(bucket=0, job_id=job_id, attempts=1, chosen=[1])


def reopens(job_id: str) -> Statement:
    return redrive.SQL.reopen_job(bucket=0, job_id=job_id, open_stripes=1, created=2, give_up_after=None)


def finds_ended_parts(job_id: str) -> Statement:
    return redrive.SQL.lock_ended_parts(bucket=0, job_id=job_id, everything=False, chosen=[1])


CASES: dict[str, tuple[Callable[[Store], str], Callable[[str], Statement]]] = {
    "an append to a sealed job": (running, adds),
    "an append to a closed job": (cancelled_open, adds),
    "the seal of sealed stripes": (running, lambda job_id: submit.SQL.seal_stripes(bucket=0, job_id=job_id)),
    "the seal of closed stripes": (cancelled_open, lambda job_id: submit.SQL.seal_stripes(bucket=0, job_id=job_id)),
    "the start of a running job": (running, seals_the_job),
    "the start of an ended job": (completed, seals_the_job),
    "a count in a closed stripe": (cancelled, counts_down),
    "a count in a stripe whose successes are judged": (judged, counts_down),
    "an expected count in a closed stripe": (cancelled, expects(1)),
    "an expected count in a stripe whose successes are judged": (judged, expects(1)),
    "an expected count of more parts than are left": (running, expects(2)),
    "no stripe of an ended job": (
        completed,
        lambda job_id: counting.SQL.count_stripes(bucket=0, job_id=job_id, emptied=0),
    ),
    "more stripes than are open": (
        running,
        lambda job_id: counting.SQL.count_stripes(bucket=0, job_id=job_id, emptied=2),
    ),
    "the close of closed stripes": (cancelled, lambda job_id: counting.SQL.close_stripes(bucket=0, job_id=job_id)),
    "the end of a completed job": (completed, ends),
    "the end of a cancelled job": (cancelled, ends),
    "the sweep of an open stripe": (
        running,
        lambda job_id: close.SQL.lock_closed_stripe(bucket=0, job_id=job_id, stripe=0),
    ),
    "the count of the swept in an open stripe": (
        running,
        lambda job_id: close.SQL.count_swept(bucket=0, job_id=job_id, stripe=0, swept=1),
    ),
    "the age of a part that was claimed": (
        claimed_in_time,
        lambda job_id: close.SQL.lock_unstarted(bucket=0, job_id=job_id),
    ),
    "a start of a part that nobody has claimed": (
        unclaimed,
        lambda job_id: close.SQL.start_in_time(bucket=0, job_id=job_id),
    ),
    "the removal of a flow that waits for a person": (
        waits_for_a_person,
        lambda flow_id: purge.SQL.remove_flow(bucket=0, flow_id=flow_id),
    ),
    "the sweep of ended parts": (ended_with_failures, sweeps),
    "the redrive of a running part": (running, revives),
    "the redrive of a succeeded part": (ended_with_failures, revives),
    "the lock of a running part for a redrive": (running, finds_ended_parts),
    "the lock of a succeeded part for a redrive": (ended_with_failures, finds_ended_parts),
    "a new run of a running job": (running, reopens),
    "a new run of an open job": (opened, reopens),
}


@pytest.mark.parametrize("case", CASES)
def test_a_statement_said_in_the_wrong_state_finds_no_row(store: Store, case: str) -> None:
    stage, said = CASES[case]
    job_id = stage(store)
    before = snapshot(store)
    assert send(store, said(job_id)) == []
    assert snapshot(store) == before


def test_a_refused_job_gets_no_new_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = refused(store, monkeypatch)
    before = snapshot(store)
    assert send(store, reopens(job_id)) == []
    assert snapshot(store) == before


# The token of a report, a renewal and a checkpoint; each half of it alone is not enough.


def tokens(store: Store, clock: Clock) -> dict[str, Any]:
    """(attempt, claim id) pairs that do not hold part 0, which is in its second attempt."""
    make(store, 1)
    (first,) = claim(store)
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    (second,) = claim(store)
    return {
        "job_id": second.job_id,
        "wrong": [(first.attempt, second.claim_id), (second.attempt, first.claim_id), (first.attempt, first.claim_id)],
    }


@pytest.mark.parametrize("verb", ["succeed", "fail", "retry", "release"])
def test_a_report_needs_both_halves_of_the_token(store: Store, clock: Clock, verb: str) -> None:
    held = tokens(store, clock)
    result = "1" if verb == "succeed" else None
    before = snapshot(store)
    for attempt, claim_id in held["wrong"]:
        rows = [(held["job_id"], 0, attempt, claim_id, verb, result, 0.0)]
        assert send(store, finish.SQL.settle_parts(bucket=0, rows=rows)) == []
    assert snapshot(store) == before


def test_a_renewal_needs_both_halves_of_the_token(store: Store, clock: Clock) -> None:
    held = tokens(store, clock)
    before = snapshot(store)
    for attempt, claim_id in held["wrong"]:
        assert send(store, lease.SQL.renew_parts(bucket=0, rows=[(held["job_id"], 0, attempt, claim_id, 9.0)])) == []
    assert snapshot(store) == before


def test_a_checkpoint_needs_both_halves_of_the_token(store: Store, clock: Clock) -> None:
    held = tokens(store, clock)
    before = snapshot(store)
    for attempt, claim_id in held["wrong"]:
        saved = lease.SQL.save_checkpoint(
            bucket=0, job_id=held["job_id"], idx=0, attempt=attempt, claim_id=claim_id, lease=9.0, checkpoint="1"
        )
        assert send(store, saved) == []
    assert snapshot(store) == before


def test_a_spawn_at_once_needs_a_running_part_and_both_halves_of_its_token(store: Store, clock: Clock) -> None:
    held = tokens(store, clock)
    for attempt, claim_id in held["wrong"]:
        fence = growth.SQL.hold_part(bucket=0, job_id=held["job_id"], idx=0, attempt=attempt, claim_id=claim_id)
        assert send(store, fence) == []
    make(store, 1, queue="other")
    (ended,) = claim(store, queue="other")
    settle(store, done(ended))
    fence = growth.SQL.hold_part(bucket=0, job_id=ended.job_id, idx=0, attempt=ended.attempt, claim_id=ended.claim_id)
    assert send(store, fence) == []


def test_spawned_parts_are_counted_on_no_closed_stripe(store: Store) -> None:
    job_id = cancelled(store)
    before = snapshot(store)
    assert send(store, growth.SQL.count_spawned(bucket=0, job_id=job_id, stripe=0, fresh=1)) == []
    assert snapshot(store) == before


# The reaper and the watch over leases


@pytest.mark.parametrize("how", ["succeeded", "failed", "abandoned"])
def test_the_reaper_fails_no_part_that_has_ended(store: Store, clock: Clock, how: str) -> None:
    job_id = make(store, 2, attempts=1)
    (held,) = claim(store, 1)
    if how == "abandoned":
        cancel(store, job_id)
        sweep_all(store)
    else:
        settle(store, {"succeeded": done, "failed": failed}[how](held))
    clock.advance(61)
    before = snapshot(store)
    assert send(store, finish.SQL.reap_parts(bucket=0, rows=[(job_id, 0, 1)])) == []
    assert snapshot(store) == before


@pytest.mark.parametrize(
    ("attempts", "made", "seen", "seconds"),
    [
        pytest.param(2, 2, 1, 61, id="another attempt"),
        pytest.param(2, 1, 1, 61, id="an attempt is left"),
        pytest.param(1, 1, 1, 59, id="the lease goes on"),
    ],
)
def test_the_reaper_fails_only_the_last_attempt_and_only_after_its_lease(
    store: Store, clock: Clock, attempts: int, made: int, seen: int, seconds: float
) -> None:
    job_id = make(store, 1, attempts=attempts)
    for _ in range(made - 1):
        settle(store, retried(claim(store)[0]))
    claim(store)
    clock.advance(seconds)
    before = snapshot(store)
    assert send(store, finish.SQL.reap_parts(bucket=0, rows=[(job_id, 0, seen)])) == []
    assert snapshot(store) == before


def test_a_part_that_waits_for_its_moment_or_has_it_is_not_woken(store: Store, clock: Clock) -> None:
    make(store, 1, delay=100.0)
    make(store, 1)
    claim(store, seconds=100.0)
    make(store, 1)
    spent = make(store, 1, attempts=1, priority=9)
    claim(store, 1, seconds=10.0)
    completed(store)
    clock.advance(61)
    before = snapshot(store)
    assert send(store, lease.SQL.wake_parts(bucket=0, limit=10)) == []
    assert snapshot(store) == before
    assert states(store, spent) == ["running"]


def is_ready(store: Store) -> str:
    return make(store, 1)


def is_on_its_last_attempt(store: Store) -> str:
    job_id = make(store, 1, attempts=1)
    claim(store, seconds=1.0)
    return job_id


@pytest.mark.parametrize("first", [completed, is_ready, is_on_its_last_attempt])
def test_parts_that_cannot_be_woken_take_no_place_of_those_that_can(
    store: Store, clock: Clock, first: Callable[[Store], str]
) -> None:
    first(store)
    clock.advance(1)
    job_id = make(store, 1, delay=1.0)
    clock.advance(61)
    assert [row[0] for row in send(store, lease.SQL.wake_parts(bucket=0, limit=1))] == [job_id]


def test_parts_that_have_ended_take_no_place_of_those_that_are_swept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SWEEP_PARTS", 1)
    job_id = make(store, 2)
    settle(store, done(claim(store, 1)[0]))
    cancel(store, job_id)
    assert sweep(store, job_id, 0) == 1
    assert states(store, job_id) == ["succeeded", "abandoned"]


# The claim


def test_a_claim_takes_no_part_that_is_not_ready(store: Store) -> None:
    make(store, 1, delay=60.0)
    waits = make(store, 2)
    _, given = claim(store)
    settle(store, released(given, delay=60.0))
    assert claim(store) == []
    assert states(store, waits) == ["running", "pending"]


def test_a_claim_takes_no_part_of_a_closed_job(store: Store) -> None:
    closed, going = make(store, 2), make(store, 1)
    cancel(store, closed)
    assert [c.job_id for c in claim(store)] == [going]


def test_a_claim_takes_no_part_of_a_job_whose_deadline_has_passed(store: Store, clock: Clock) -> None:
    make(store, 2, give_up_after=50.0)
    later, never = make(store, 1, give_up_after=500.0), make(store, 1)
    clock.advance(100)
    assert {c.job_id for c in claim(store)} == {later, never}


# The purge


def test_a_purge_takes_no_counter_with_live_parts_and_no_job_that_goes_on_or_has_just_ended(
    store: Store, clock: Clock
) -> None:
    old = completed(store)
    clock.advance(100)
    fresh, going = completed(store), make(store, 1)
    jobs = [old, fresh, going]
    assert len(send(store, purge.SQL.remove_stripes(bucket=0, jobs=jobs))) == 2
    assert send(store, purge.SQL.remove_jobs(bucket=0, jobs=jobs, age=50.0)) == [(old, None)]
    for table in ("part", "outbox", "job_stripe", "job"):
        say(store, f"DELETE FROM fanin.{table}")


def test_a_purge_takes_no_event_that_waits_or_is_in_hand(store: Store) -> None:
    jobs = [make(store, 0) for _ in range(4)]
    claim_id = "00000000-0000-4000-8000-000000000001"
    published, parked, _ = store.run(lambda: outbox.take(0, 3, 60.0, claim_id, "r"))
    said = [outbox.Said(published.key, "mark"), outbox.Said(parked.key, "park", error="no")]
    store.run(lambda: outbox.settle(0, claim_id, said))
    for unsent, left in ((False, ["claimed", "parked", "waiting"]), (True, ["claimed"])):
        send(store, purge.SQL.remove_events(bucket=0, jobs=jobs, unsent=unsent))
        assert sorted(row[0] for row in say(store, "SELECT status FROM fanin.outbox")) == left
    for table in ("outbox", "job_stripe", "job"):
        say(store, f"DELETE FROM fanin.{table}")
