"""Guards of effects: each statement is said alone, as in ``test_guards.py``, to an effect in a state not its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fanin.domain import identity
from fanin.domain.model import Claim
from fanin.protocol import effect
from fanin.protocol.steps import Rows, Statement
from fanin.stores.base import Store
from tests.protocol.effects import begin, begun, called, intent, said, wanting
from tests.protocol.helpers import Clock, cancel, claim, done, failed, make, say, send, settle
from tests.protocol.test_nested import begin as nests

CALLER = "00000000-0000-4000-8000-000000000001"
"""Whoever calls an effect that is planted."""
NOBODY = "00000000-0000-4000-8000-000000000002"
LONG_AGO, FAR = 1.0, 9e9


def plant(store: Store, status: str, **more: Any) -> str:
    """A part that has succeeded, and an effect of it in a state that a test chooses. Its job."""
    job_id = make(store, 1)
    (mine,) = claim(store)
    settle(store, wanting(mine, intent()))
    moving = status in ("registered", "calling")
    row: dict[str, Any] = {
        "status": status, "settled_at": None if moving else 5.0, "due_at": LONG_AGO, "claim_id": CALLER, "calls": 1,
        "calls_allowed": 3, **more,
    }  # fmt: skip
    say(store, f"UPDATE fanin.effect SET {', '.join(f'{name} = :{name}' for name in row)}", **row)
    return job_id


def place(job_id: str) -> dict[str, Any]:
    return {"bucket": 0, "job_id": job_id, "idx": 0, "name": "mail"}


def registers(job_id: str) -> Statement:
    return effect.SQL.register(bucket=0, rows=[(job_id, 0, "mail", "idempotent", '{"to":"a"}', 1, 5)])


def calls_now(job_id: str) -> Statement:
    return effect.SQL.call_now(**place(job_id), caller_id=NOBODY, caller="w", seconds=60.0)


def claims(job_id: str) -> Statement:
    return effect.SQL.claim_effects(bucket=0, name="mail", limit=9, caller_id=NOBODY, caller="r", seconds=60.0)


def says(verb: str, caller_id: str) -> Callable[[str], Statement]:
    def statement(job_id: str) -> Statement:
        row = (job_id, 0, "mail", caller_id, verb, False, False, 0.0, None, "no")
        return effect.SQL.settle_effects(bucket=0, rows=[row])

    return statement


def expires(job_id: str) -> Statement:
    return effect.SQL.expire_effects(bucket=0, limit=9, error="gone")


def by_hand(happened: bool) -> Callable[[str], Statement]:
    return lambda job_id: effect.SQL.settle_by_hand(**place(job_id), done=happened, response=None, note="so it is")


def retries(job_id: str) -> Statement:
    return effect.SQL.retry_effects(bucket=0, allowance=2, rows=[(job_id, 0, "mail")])


def cancels(job_id: str) -> Statement:
    return effect.SQL.cancel_effects(bucket=0, job_id=job_id)


State = dict[str, Any]
OVER: list[State] = [{"status": status} for status in ("done", "cancelled", "reversed")]
STUCK: list[State] = [{"status": status} for status in ("failed", "unknown")]
WAITS: State = {"status": "registered"}
CALLED: State = {"status": "calling"}
IN_TIME: State = {"status": "calling", "due_at": FAR}
ONCE: State = {"mode": "at_most_once"}
OFTEN: State = {"mode": "idempotent"}
SPENT: State = {"calls": 3}
OWN: State = {"relayed": False}

CASES: dict[str, tuple[Callable[[str], Statement], list[State]]] = {
    "left to the relay": (registers, [*OVER, WAITS, *({**state, **ONCE} for state in (*STUCK, CALLED))]),
    "called by the attempt": (
        calls_now,
        [*OVER, {**WAITS, **SPENT}, IN_TIME, *({**state, **ONCE} for state in (*STUCK, CALLED))],
    ),
    "claimed by a relay": (
        claims,
        [
            *OVER, *STUCK, {**WAITS, "due_at": FAR}, {**WAITS, **OWN}, {**WAITS, **SPENT}, IN_TIME, {**CALLED, **OWN},
            {**CALLED, **SPENT}, {**CALLED, **ONCE},
        ],
    ),
    "marked": (says("mark", CALLER), OVER),
    "refused by its caller": (says("refuse", CALLER), [*OVER, *STUCK, WAITS]),
    "refused by another": (says("refuse", NOBODY), [*OVER, *STUCK, WAITS, CALLED]),
    "expired": (
        expires,
        [
            *({**state, **ONCE} for state in (*OVER, *STUCK, WAITS, IN_TIME)),
            {**IN_TIME, **OWN}, {**IN_TIME, **SPENT}, {**CALLED, **OFTEN},
        ],
    ),
    "settled by hand as done": (by_hand(True), [*OVER, CALLED]),
    "settled by hand as failed": (by_hand(False), [*OVER, CALLED, {"status": "failed"}]),
    "called again for a person": (retries, [*OVER, WAITS, CALLED, {"status": "unknown", **ONCE}]),
    "cancelled": (cancels, [*OVER, {"status": "unknown"}, CALLED, {**WAITS, "doubtful": True}]),
}  # fmt: skip
"""What is said, and to effects of which states in vain."""


def named(case: str, state: State) -> str:
    return f"{case}: {' '.join(f'{value}' if name == 'status' else f'{name}={value}' for name, value in state.items())}"


ALL = {named(case, state): (said_of, state) for case, (said_of, states) in CASES.items() for state in states}


def rows(store: Store) -> Rows:
    return sorted(say(store, "SELECT * FROM fanin.effect"), key=repr)


@pytest.mark.parametrize("case", ALL)
def test_a_statement_said_in_the_wrong_state_of_an_effect_finds_no_row(store: Store, case: str) -> None:
    said_of, state = ALL[case]
    job_id = plant(store, **state)
    before = rows(store)
    assert send(store, said_of(job_id)) == []
    assert rows(store) == before
    say(store, "DELETE FROM fanin.effect")


# What stands in the way of others: a claim and an expiry have a limit, and what they may not take uses none of it.


@pytest.mark.parametrize("state", [{**WAITS, **OWN}, {**WAITS, **SPENT}, {**CALLED, **ONCE}, {**CALLED, **OWN}])
def test_what_may_not_be_claimed_takes_no_place_of_what_may(store: Store, state: State) -> None:
    plant(store, **state)
    make(store, 1)
    (mine,) = claim(store)
    settle(store, wanting(mine, intent()))
    assert [call.job_id for call in called(store, limit=1)] == [mine.job_id]
    say(store, "DELETE FROM fanin.effect")


def test_what_may_be_called_again_takes_no_place_of_what_expires(store: Store, clock: Clock) -> None:
    plant(store, "calling")
    make(store, 1)
    (mine,) = claim(store)
    begin(store, mine, intent(mode="at_most_once"), seconds=5.0)
    clock.advance(6)
    expired = send(store, effect.SQL.expire_effects(bucket=0, limit=1, error="gone"))
    assert [job_id for job_id, _, _ in expired] == [mine.job_id]
    say(store, "DELETE FROM fanin.effect")


# The fence of a call by the attempt itself.


def token(mine: Claim) -> dict[str, Any]:
    return {
        "bucket": 0, "job_id": mine.job_id, "idx": mine.idx, "attempt": mine.attempt, "claim_id": mine.claim_id
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["attempt", "claim_id"])
def test_a_call_needs_both_halves_of_the_token(store: Store, wrong: str) -> None:
    make(store, 1)
    (mine,) = claim(store)
    other = msgspec.structs.replace(mine, **{wrong: {"attempt": 9, "claim_id": identity.new_claim_id()}[wrong]})
    assert send(store, effect.SQL.hold_part(**token(other))) == []
    assert begun(store, other).status == "lost"
    assert rows(store) == []


@pytest.mark.parametrize("how", ["succeeded", "failed", "waiting"])
def test_an_attempt_that_has_ended_or_handed_its_work_on_calls_nothing(store: Store, how: str) -> None:
    make(store, 2)
    mine = claim(store, 1)[0]
    if how == "waiting":
        nests(store, mine)
    else:
        settle(store, {"succeeded": done, "failed": failed}[how](mine))
    assert send(store, effect.SQL.hold_part(**token(mine))) == []
    assert begun(store, mine).status == "lost"
    assert rows(store) == []


def test_no_attempt_of_a_closed_job_calls(store: Store) -> None:
    job_id = make(store, 1)
    claim(store)
    cancel(store, job_id)
    assert send(store, effect.SQL.hold_stripe(bucket=0, job_id=job_id, stripe=0)) == []


def test_a_refusal_and_an_answer_in_one_batch_are_heard_each_by_its_own_rule(store: Store, clock: Clock) -> None:
    """Two callers were taken for lost: the answer of one is heard, the refusal of the other is not."""
    make(store, 2)
    for mine in claim(store):
        settle(store, wanting(mine, intent()))
    late = called(store, seconds=5.0)
    clock.advance(6)
    assert len(called(store)) == 2
    one, two = late
    both = [effect.Said(one, "mark", response="1"), effect.Said(two, "refuse", error="no")]
    assert store.run(lambda: effect.settle(0, both)) == {one.where: "done"}
    assert said(store, two, "mark") == "done"
