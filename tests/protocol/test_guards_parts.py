"""Guards of parts that wait, grow, are held back or skipped: each statement is said alone, as in ``test_guards.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fanin.domain import identity, limits
from fanin.domain.model import Claim
from fanin.protocol import growth, nest, outputs, pause, redrive, skip, waiting
from fanin.protocol.steps import Statement
from fanin.stores.base import Store
from tests.protocol.helpers import cancel, claim, done, failed, make, released, say, send, settle, snapshot, sweep_all
from tests.protocol.test_nested import begin, orphan

ANY = identity.nested_id(identity.keyed_job_id("nothing"), 0)


def held(store: Store) -> Claim:
    """The first of two parts, while it runs."""
    make(store, 2)
    return claim(store, 1)[0]


def waits(store: Store) -> Claim:
    """It waits for a nested job."""
    mine = held(store)
    begin(store, mine)
    return mine


def succeeded(store: Store) -> Claim:
    """Its job goes on, and it stands under its last token."""
    mine = held(store)
    settle(store, done(mine))
    return mine


def has_failed(store: Store) -> Claim:
    mine = held(store)
    settle(store, failed(mine))
    return mine


def abandoned(store: Store) -> Claim:
    mine = held(store)
    cancel(store, mine.job_id)
    sweep_all(store)
    return mine


def closed(store: Store) -> Claim:
    mine = held(store)
    cancel(store, mine.job_id)
    return mine


def completed(store: Store) -> Claim:
    make(store, 1)
    (mine,) = claim(store)
    settle(store, done(mine))
    return mine


def runs_again(store: Store) -> Claim:
    """It has been redriven, and its nested job goes on."""
    mine, _ = orphan(store)
    store.run(lambda: redrive.redrive(0, mine.job_id, 1, 1))
    return mine


def token(mine: Claim) -> dict[str, Any]:
    return {**place(mine), "attempt": mine.attempt, "claim_id": mine.claim_id}


def place(mine: Claim) -> dict[str, Any]:
    return {"bucket": 0, "job_id": mine.job_id, "idx": mine.idx}


def takes(mine: Claim) -> Statement:
    return nest.SQL.take_held(**token(mine))


def begins(mine: Claim) -> Statement:
    return nest.SQL.begin_to_wait(**token(mine), nested_id=ANY, never=limits.NEVER_SECONDS)


def finds_live(mine: Claim) -> Statement:
    return nest.SQL.lock_live(bucket=0, id=mine.job_id)


def forgets(mine: Claim) -> Statement:
    return nest.SQL.forget_nested(**place(mine))


def rises(mine: Claim) -> Statement:
    return waiting.SQL.take_waiting(**place(mine))


def counts_above(mine: Claim) -> Statement:
    return waiting.SQL.lock_open_stripe(bucket=0, job_id=mine.job_id, stripe=0)


def settles_waiting(mine: Claim) -> Statement:
    return waiting.SQL.settle_waiting(**place(mine), status="failed", result=None)


def lets_go(mine: Claim) -> Statement:
    return waiting.SQL.let_go(**place(mine))


def spawns(mine: Claim) -> Statement:
    return growth.SQL.hold_part(**token(mine))


def stages(mine: Claim) -> Statement:
    """Of an output that it has left before."""
    return outputs.SQL.stage(**token(mine), name="a.csv", root="s3://b")


def marks_ready(mine: Claim) -> Statement:
    return outputs.SQL.mark_ready(**token(mine), name="a.csv", size=1, digest="d")


def left_an_output(store: Store) -> Claim:
    """And then began to wait."""
    mine = held(store)
    assert store.run(lambda: outputs.stage(mine, "a.csv", "s3://b"))
    begin(store, mine)
    return mine


def skips(mine: Claim) -> Statement:
    return skip.SQL.skip_part(**place(mine), failed=True, result=None, claim_id=identity.new_claim_id(), who="kim")


def portion(mine: Claim) -> dict[str, Any]:
    return {"bucket": 0, "job_id": mine.job_id, "first": 0, "past": 1, "held": limits.HELD_SECONDS}


def is_held_back(store: Store) -> Claim:
    mine = held(store)
    settle(store, released(mine))
    assert send(store, pause.SQL.hold_parts(**portion(mine))) == [(0,)]
    return mine


def paused_above_ended(store: Store) -> Claim:
    """The job of a part is paused, and the nested job was cancelled."""
    mine = waits(store)
    assert send(store, pause.SQL.pause_job(bucket=0, job_id=mine.job_id))
    cancel(store, identity.nested_id(mine.job_id, mine.idx))
    return mine


def as_above(mine: Claim) -> Statement:
    return nest.SQL.pause_as_above(bucket=0, id=identity.nested_id(mine.job_id, mine.idx), above_id=mine.job_id)


def runs_again_below(store: Store) -> Claim:
    """A part that waited for a nested job, which has been cancelled."""
    mine = waits(store)
    cancel(store, identity.nested_id(mine.job_id, mine.idx))
    return mine


CASES: dict[str, tuple[Callable[[Store], Claim], Callable[[Claim], Statement]]] = {
    "the lock of a job that has completed, to wait for it": (completed, finds_live),
    "the lock of a job that was cancelled, to wait for it": (closed, finds_live),
    "the hold of a part that has succeeded, to let it wait": (succeeded, takes),
    "the hold of a part that has failed, to let it wait": (has_failed, takes),
    "the hold of a part that waits, to let it wait": (waits, takes),
    "the wait of a part that has succeeded": (succeeded, begins),
    "the wait of a part that has failed": (has_failed, begins),
    "the wait of a part that waits": (waits, begins),
    "the note of a part that never waited": (completed, forgets),
    "the note of a part that waits": (waits, forgets),
    "the note of a part that runs again": (runs_again, forgets),
    "the rise to a part that does not wait": (held, rises),
    "the rise to a part that has succeeded": (succeeded, rises),
    "a rise into a closed stripe": (closed, counts_above),
    "the end by a rise of a part that does not wait": (held, settles_waiting),
    "the end by a rise of a part that runs again": (runs_again, settles_waiting),
    "the end by a rise of a part that has succeeded": (succeeded, settles_waiting),
    "the end by a rise of a part that was abandoned": (abandoned, settles_waiting),
    "the release of a part that does not wait": (held, lets_go),
    "the release of a part that has failed": (has_failed, lets_go),
    "the release of a part that was abandoned": (abandoned, lets_go),
    "a spawn by a part that waits": (waits, spawns),
    "a spawn by a part that has succeeded": (succeeded, spawns),
    "an output of a part that waits": (waits, stages),
    "an output of a part that waits, said again": (left_an_output, stages),
    "the whole of an output of a part that waits": (left_an_output, marks_ready),
    "the skip of a part that has succeeded": (succeeded, skips),
    "the skip of a part that has failed": (has_failed, skips),
    "the skip of a part that was abandoned": (abandoned, skips),
    "the holding back of a part that runs": (held, lambda mine: pause.SQL.hold_parts(**portion(mine))),
    "the holding back of a part that has ended": (succeeded, lambda mine: pause.SQL.hold_parts(**portion(mine))),
    "the holding back of a part that is held back": (is_held_back, lambda mine: pause.SQL.hold_parts(**portion(mine))),
    "the letting go of a part that was not held back": (
        runs_again,
        lambda mine: pause.SQL.free_parts(**portion(mine)),
    ),
    "the letting go of a part that waits for a nested job": (
        waits,
        lambda mine: pause.SQL.free_parts(**portion(mine)),
    ),
    "the pause of a job that has ended": (completed, lambda mine: pause.SQL.pause_job(bucket=0, job_id=mine.job_id)),
    "the resume of a job that is not paused": (held, lambda mine: pause.SQL.resume_job(bucket=0, job_id=mine.job_id)),
    "the pause of jobs below one, which have ended": (
        runs_again_below,
        lambda mine: pause.SQL.pause_batches(bucket=0, job_id=mine.job_id),
    ),
    "the resume of the batches of a job, none of which is paused": (
        waits,
        lambda mine: pause.SQL.resume_batches(bucket=0, job_id=mine.job_id),
    ),
    "the batches of a job that was not split": (
        waits,
        lambda mine: pause.SQL.batches(bucket=0, job_id=mine.job_id),
    ),
    "the pause as above of a job that has ended": (paused_above_ended, lambda mine: as_above(mine)),
    "the pause as above of a job that is as the one above": (waits, lambda mine: as_above(mine)),
    "a walk to what came to a job that is not paused": (
        held,
        lambda mine: pause.SQL.came(bucket=0, job_id=mine.job_id, first=0),
    ),
    "a count of spawned parts in a closed stripe": (
        closed,
        lambda mine: growth.SQL.count_spawned(bucket=0, job_id=mine.job_id, stripe=0, fresh=1),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_statement_said_to_a_part_that_is_not_its_own_finds_no_row(store: Store, case: str) -> None:
    stage, said = CASES[case]
    mine = stage(store)
    before = snapshot(store)
    assert send(store, said(mine)) == []
    assert snapshot(store) == before
    say(store, f"UPDATE fanin.part SET due_at = 0, ready = true WHERE due_at >= {limits.HELD_SECONDS} AND NOT waiting")


@pytest.mark.parametrize("statement", [takes, begins, spawns])
@pytest.mark.parametrize("wrong", ["attempt", "claim_id"])
def test_it_needs_both_halves_of_the_token(store: Store, statement: Callable[[Claim], Statement], wrong: str) -> None:
    mine = held(store)
    other = msgspec.structs.replace(mine, **{wrong: {"attempt": 9, "claim_id": ANY}[wrong]})
    before = snapshot(store)
    assert send(store, statement(other)) == []
    assert snapshot(store) == before
    assert len(send(store, takes(mine))) == 1
