"""Parts that end with a job of their own: what each claim is told, and what is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fanin.domain import identity, limits
from fanin.domain.errors import KeyConflict, LeaseLost, NotAllowedNow
from fanin.domain.model import NESTED, Claim, NewJob, Report, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import lease, nest, redrive, submit
from fanin.protocol.nest import Nested
from fanin.protocol.steps import Rows, Txn
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    Clock,
    cancel,
    claim,
    done,
    ending,
    failed,
    job,
    log,
    make,
    new_job,
    part,
    released,
    say,
    settle,
    snapshot,
    states,
    successors,
    sweep_all,
    verdicts,
)


def nested(store: Store, held: Claim, parts: int = 1, **options: object) -> tuple[NewJob, list[str]]:
    payloads = [str(n) for n in range(parts)]
    made = new_job(
        store, id=identity.nested_id(held.job_id, held.idx), waiter_id=held.job_id, waiter_idx=held.idx,
        parent_id=held.job_id, request_hash=f"{parts}", depth=1, priority=5, **options,
    )  # fmt: skip
    return made, payloads


def begin(store: Store, held: Claim, parts: int = 1, **options: object) -> tuple[Nested, str]:
    made, payloads = nested(store, held, parts, **options)
    return store.run(lambda: nest.nest(held, made, parts, lambda: submit.in_chunks(payloads)))


def waiting(store: Store, parts: int = 1, above: int = 2, **options: object) -> tuple[Claim, str]:
    """The first part of a job waits."""
    make(store, above, **options)
    (held,) = claim(store, 1)
    outcome, job_id = begin(store, held, parts)
    assert outcome is Nested.WAITS
    return held, job_id


def test_a_part_that_waits_keeps_its_token_and_has_no_lease(store: Store, clock: Clock) -> None:
    held, _ = waiting(store)
    before = snapshot(store)
    assert begin(store, held)[0] is Nested.WAITS, "said again"
    assert verdicts(store, done(held), released(held)) == [Verdict.LOST, Verdict.LOST]
    clock.advance(3600)
    assert store.run(lambda: lease.wake(0)).queues == []
    assert store.run(lambda: lease.reap(0)) == 0
    store.run(lambda: lease.renew(0, [(held, 60.0)]))
    assert not store.run(lambda: lease.checkpoint(held, 60.0, "1"))
    after = snapshot(store)
    assert {**after, "attempt_log": []} == {**before, "attempt_log": []}


def test_its_end_is_that_of_the_nested_job(store: Store) -> None:
    held, job_id = waiting(store, above=1)
    (last,) = claim(store)
    assert verdicts(store, done(last)) == [Verdict.LAST]
    assert part(store, held.job_id, 0)["result"] == NESTED + job_id
    assert ending(store, held.job_id) == ("completed", "all_ok")


def test_it_fails_with_the_nested_job_and_says_why(store: Store) -> None:
    held, _ = waiting(store, above=1)
    (last,) = claim(store)
    settle(store, failed(last))
    assert states(store, held.job_id) == ["failed"]
    assert (0, 1, "failed") in log(store, held.job_id)
    assert ending(store, held.job_id) == ("failed", "too_many_failures")


def test_a_failure_of_a_nested_job_closes_a_job_that_fails_fast(store: Store) -> None:
    held, _ = waiting(store, above=3, policy=Policy(fail_fast=True))
    (last,) = claim(store, 1)
    settle(store, failed(last))
    assert ending(store, held.job_id) == ("failed", "too_many_failures")


def test_the_part_waits_for_the_successor_of_its_job(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    _, job_id = begin(store, held, then=THEN)
    settle(store, *map(done, claim(store)))
    assert states(store, held.job_id) == ["running"]
    assert begin(store, held, then=THEN) == (Nested.WAITS, successors(store, job_id)[0])
    (join,) = claim(store, queue="joins", tasks=["join"])
    settle(store, done(join))
    assert part(store, held.job_id, 0)["result"] == NESTED + join.job_id


def test_a_job_without_parts_is_the_end_at_once(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert begin(store, held, 0)[0] is Nested.COMPLETED
    assert states(store, held.job_id) == ["running"]


def test_other_items_are_a_conflict(store: Store) -> None:
    held, _ = waiting(store)
    with pytest.raises(KeyConflict):
        begin(store, held, 2)


def lost(store: Store, clock: Clock) -> tuple[Claim, Claim]:
    """A claim whose part another attempt holds, and the claim of that."""
    make(store, 1)
    (late,) = claim(store)
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    (held,) = claim(store)
    return late, held


def test_a_claim_that_is_lost_makes_no_job(store: Store, clock: Clock) -> None:
    late, held = lost(store, clock)
    before = snapshot(store)
    for parts in (1, 0):
        with pytest.raises(LeaseLost):
            begin(store, late, parts)
    assert snapshot(store) == before
    assert begin(store, held)[0] is Nested.WAITS
    with pytest.raises(LeaseLost):
        begin(store, late)


@pytest.mark.parametrize("report", [done, failed])
def test_a_claim_whose_wait_is_over_runs_its_nested_job_no_more(
    store: Store, report: Callable[[Claim], Report]
) -> None:
    held, _ = waiting(store)
    (last,) = [one for one in claim(store) if one.job_id != held.job_id]
    settle(store, report(last))
    before = snapshot(store)
    with pytest.raises(LeaseLost):
        begin(store, held)
    assert snapshot(store) == before


@pytest.mark.parametrize("wrong", ["attempt", "claim_id"])
def test_a_part_begins_to_wait_by_its_whole_token_alone(store: Store, wrong: str) -> None:
    make(store, 1)
    (held,) = claim(store)
    token: dict[str, Any] = {"attempt": held.attempt, "claim_id": held.claim_id}
    token[wrong] = {"attempt": 9, "claim_id": identity.new_claim_id()}[wrong]
    where: dict[str, Any] = {"bucket": 0, "job_id": held.job_id, "idx": 0, **token}
    before = snapshot(store)

    def both() -> Txn[tuple[Rows, Rows]]:
        taken = yield nest.SQL.take_held(**where)
        begun = yield nest.SQL.begin_to_wait(**where, nested_id=held.job_id, never=limits.NEVER_SECONDS)
        return taken, begun

    assert tuple(map(list, store.run(both))) == ([], [])
    assert snapshot(store) == before


def test_a_closed_job_lets_its_part_go_and_a_redrive_finds_the_nested_job(store: Store) -> None:
    held, job_id = waiting(store, above=1)
    cancel(store, held.job_id)
    settle(store, *map(done, claim(store)))
    assert states(store, held.job_id) == ["pending"]
    store.run(lambda: redrive.redrive(0, held.job_id, 1, 1))
    (again,) = claim(store)
    assert begin(store, again) == (Nested.COMPLETED, job_id)
    settle(store, done(again, NESTED + job_id))
    assert ending(store, held.job_id) == ("completed", "all_ok")


def orphan(store: Store) -> tuple[Claim, str]:
    held, job_id = waiting(store, above=1)
    cancel(store, held.job_id)
    sweep_all(store)
    return held, job_id


def test_what_is_left_behind_is_cancelled_and_then_forgotten(store: Store) -> None:
    held, job_id = orphan(store)
    assert store.read(lambda: nest.orphans(0)) == [(held.job_id, 0)]
    assert store.read(lambda: nest.left_behind(0, held.job_id, 0)) == [job_id]
    assert not store.run(lambda: nest.forget(0, held.job_id, 0)), "it goes on"
    assert store.run(lambda: nest.abandon(0, job_id, held.job_id, 0))
    assert not store.run(lambda: nest.abandon(0, job_id, held.job_id, 0)), "it has ended"
    assert store.run(lambda: nest.forget(0, held.job_id, 0))
    assert not store.run(lambda: nest.forget(0, held.job_id, 0))
    assert store.read(lambda: nest.orphans(0)) == []
    assert job(store, job_id).status == "cancelled"


def test_a_job_is_not_cancelled_for_a_part_that_is_run_again(store: Store) -> None:
    held, job_id = orphan(store)
    store.run(lambda: redrive.redrive(0, held.job_id, 1, 1))
    assert not store.run(lambda: nest.abandon(0, job_id, held.job_id, 0))
    assert job(store, job_id).status == "running"
    assert say(store, "SELECT nested_id FROM fanin.part WHERE job_id = :id", id=held.job_id) != [(None,)]


def test_a_nested_job_that_was_left_behind_is_redriven_by_its_part(store: Store) -> None:
    held, job_id = orphan(store)
    store.run(lambda: nest.abandon(0, job_id, held.job_id, 0))
    with pytest.raises(NotAllowedNow):
        store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    store.run(lambda: redrive.redrive(0, held.job_id, 1, 1))
    (again,) = [c for c in claim(store) if c.job_id == held.job_id]
    assert begin(store, again) == (Nested.WAITS, job_id)
    assert job(store, job_id).run == 2
    sweep_all(store)


# A job that may not be.


def refuse(store: Store, held: Claim) -> str:
    made, _ = nested(store, held)
    made = msgspec.structs.replace(made, id=identity.refused_id(held.job_id, held.idx, 1))
    store.run(lambda: nest.refuse(held, made, "too wide"))
    return made.id


def test_a_refused_job_stands_there_once_with_its_event_and_leaves_the_part_alone(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    before = snapshot(store)
    job_id = refuse(store, held)
    row = job(store, job_id)
    assert (row.status, row.outcome, row.reason) == ("failed", "refused", "too wide")
    after = snapshot(store)
    assert refuse(store, held) == job_id
    assert snapshot(store) == after
    assert after["part"] == before["part"]
    settle(store, failed(held))
    assert refuse(store, held) == job_id, "said again by an attempt that has been heard"
    assert ending(store, held.job_id) == ("failed", "too_many_failures")


def test_a_claim_that_is_lost_refuses_nothing(store: Store, clock: Clock) -> None:
    late, held = lost(store, clock)
    before = snapshot(store)
    with pytest.raises(LeaseLost):
        refuse(store, late)
    assert snapshot(store) == before
    refuse(store, held)
    settle(store, done(held))
    with pytest.raises(LeaseLost):
        refuse(store, held)


def test_a_refused_job_is_not_redriven_by_itself(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    job_id = refuse(store, held)
    with pytest.raises(NotAllowedNow, match=f"redrive job {held.job_id}"):
        store.run(lambda: redrive.redrive(0, job_id, 1, 1))
