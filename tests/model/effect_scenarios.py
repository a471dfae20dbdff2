"""Who meets whom at an effect: those who call it, those who close its job, and those who undo its step."""

from __future__ import annotations

from typing import Any

from fanin.domain import identity
from fanin.domain.effects import Intent
from fanin.domain.model import Claim, Report
from fanin.protocol import effect, finish
from fanin.protocol.effect import Call, Said
from fanin.protocol.steps import TxnFactory
from tests.model.explore import Memory, Op
from tests.model.graph_rows import FLOW, Job, Stripe
from tests.model.graph_scenarios import (
    STOP,
    TOP,
    after_that,
    cancel,
    flow_of,
    held,
    hold,
    resolve,
    said,
    scenario,
    step,
    sweep,
    undo_again,
)
from tests.model.world import Key

NAME = "e"


def intent(mode: str, calls: int) -> Intent:
    return Intent(NAME, mode, "1", calls)


def mine(job_id: str, idx: int = 0) -> Claim:
    return Claim(0, job_id, idx, "t", 1, "ab"[idx], 9, "1", None, False, 0)


def want(job_id: str, mode: str, calls: int = 1, verb: str = "succeed") -> Op:
    """A part that ends, and wants something done."""
    said = Report(mine(job_id), verb, '"a"', effects=(intent(mode, calls),))
    return Op(verb, lambda _: lambda: finish.settle(0, [said], "w"))


def begin(job_id: str, caller: str = "x", mode: str = "at_most_once") -> Op:
    """A part that is about to call."""
    return Op("begin", lambda _: lambda: effect.begin(mine(job_id), intent(mode, 1), caller, "w", 60.0))


def take(caller: str) -> Op:
    """A relay that is about to call."""
    return Op("take", lambda _: lambda: effect.take(0, NAME, 1, caller, "r", 60.0))


def answer(verb: str = "mark", at: int = 0, *, doubtful: bool = False) -> Op:
    """It has called, if it was to."""

    def factory(memory: Memory) -> TxnFactory[Any] | None:
        calls: list[Call] = memory[at]
        return (lambda: effect.settle(0, [Said(calls[0], verb, doubtful=doubtful)])) if calls else None

    return Op(verb, factory)


def answered(job_id: str, verb: str, caller: str = "r", *, doubtful: bool = False) -> Op:
    """The answer to a call that is under way."""
    call = Call(0, job_id, 0, NAME, "idempotent", "1", 1, False, caller)
    return Op(verb, lambda _: lambda: effect.settle(0, [Said(call, verb, doubtful=doubtful)]))


EXPIRE = Op("expire", lambda _: lambda: effect.expire(0))


def retry(job_id: str) -> Op:
    return Op("ask again", lambda _: lambda: effect.retry(0, [(job_id, 0, NAME)], 1))


# Where they begin.

TWO = {("job", TOP): Job(), ("stripe", TOP): Stripe(2), ("part", TOP, 0): held("a"), ("part", TOP, 1): held("b")}
ONCE = after_that(TWO, want(TOP, "at_most_once"))
"""A part has succeeded that wants something done once; another one runs."""
OFTEN = after_that(TWO, want(TOP, "idempotent", 3))
CALLING = after_that(ONCE, take("r"))
FIRST = step(0)


def half(mode: str = "at_most_once", calls: int = 1) -> dict[Key, Any]:
    """The first step of a chain has ended and wants something done; the second one runs."""
    rows = flow_of([(), (0,)])
    rows["step", 1] = rows["step", 1]._replace(undo=None)
    return hold(after_that(rows, want(FIRST, mode, calls)), step(1))


def undoing(*ops: Op, mode: str = "idempotent", calls: int = 2) -> dict[Key, Any]:
    """The second step has failed after that, and the first one is being undone."""
    rows = half(mode, calls)
    for op in (*ops, said(step(1), "fail")):
        rows = after_that(rows, op)
    return hold(rows, UNDO)


UNDO = identity.undo_id(FLOW, 0)
UNDO_CALLING = undoing(take("q"), answered(FIRST, "refuse", "q", doubtful=True), take("r"))
"""Its effect was in doubt when that began, and is being called for the last time."""

EFFECTS = [
    scenario("two relays and what may be called once", ONCE, [take("p"), answer()], [take("q"), answer("refuse")],
             [EXPIRE], crashes=1),
    scenario("two relays and what may be called again", OFTEN, [take("p"), answer("refuse")], [take("q"), answer()],
             crashes=2),
    scenario("a call expires while its answer comes", CALLING, [answered(TOP, "mark")], [EXPIRE],
             [retry(TOP), take("q")], crashes=1),
    scenario("a call expires while it is refused", CALLING, [answered(TOP, "refuse")], [EXPIRE],
             [retry(TOP), take("q")]),
    scenario("a part wants it done while its job is cancelled", TWO, [want(TOP, "at_most_once")],
             [cancel(TOP), sweep(TOP)], [take("p"), answer()], crashes=1),
    scenario("a part calls while its job is cancelled", TWO, [begin(TOP), answer()], [cancel(TOP), sweep(TOP)],
             crashes=1),
    scenario("a part calls twice at once", TWO, [begin(TOP, "x"), answer()], [begin(TOP, "y"), answer()], [EXPIRE]),
    scenario("a part calls, and leaves it to the relay", TWO, [begin(TOP, "x", "idempotent"), answer("refuse")],
             [want(TOP, "idempotent")], [take("p"), answer()]),
    scenario("a step is undone while it is called", half(), [said(step(1), "fail")], [take("p"), answer()], [EXPIRE],
             crashes=1),
    scenario("a step is undone while a call of it is refused", half("idempotent", 2), [said(step(1), "fail")],
             [take("p"), answer("refuse", doubtful=True)]),
    scenario("a call is refused, and its answer comes after the undo", half("idempotent", 2), [said(step(1), "fail")],
             [take("p"), answer("refuse"), answer()]),
    scenario("a step calls, and fails", flow_of([()]), [begin(FIRST), answer(), said(FIRST, "fail")], [EXPIRE],
             crashes=1),
    scenario("a flow is stopped while its step calls", flow_of([()]), [begin(FIRST), answer()],
             [STOP, cancel(FIRST), sweep(FIRST)], [EXPIRE], crashes=1),
    scenario("an undo ends while a call is refused, and asked for again", UNDO_CALLING, [said(UNDO)],
             [answered(FIRST, "refuse")], [retry(FIRST)], crashes=1),
    scenario("an undo ends while a call has happened", UNDO_CALLING, [said(UNDO)], [answered(FIRST, "mark")], [EXPIRE]),
    scenario("resolved while a call has happened", after_that(UNDO_CALLING, said(UNDO, "fail")), [resolve(0)],
             [answered(FIRST, "mark")], [undo_again(0)], crashes=1),
]  # fmt: skip
