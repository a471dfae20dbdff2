"""Races in a flow: last steps before one at once, its end against who stops it, and who runs it again."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from fanin.domain import identity
from fanin.domain.effects import Intent
from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Claim
from fanin.protocol import effect, flow
from fanin.protocol.effect import Call, Said
from fanin.protocol.steps import Again, Txn, TxnFactory
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.protocol import flows
from tests.races.arena import Arena
from tests.races.races_effects import sayer, wanting
from tests.races.races_schedules import actor, verb
from tests.races.scenarios import race
from tests.races.stage import BUCKET

SHORT: dict[str, Any] = {"preemptions": 1, "always": 2}
"""Two transactions of a dozen statements each have too many schedules to try all."""


def refusable(factory: TxnFactory[Any]) -> TxnFactory[str]:
    def txn() -> Txn[str]:
        try:
            yield from factory()
        except NotAllowedNow:
            return "REFUSED"
        except Again:
            raise Again(txn) from None
        return "DONE"

    return txn


def ends(arena: Arena, name: str) -> Actor:
    """A worker reports the part of a step that is ready."""
    return arena.succeeds(name, arena.step())


def once_each(arena: Arena, run: Run) -> list[str]:
    """No step has two jobs, and one that was skipped has none."""
    text = "SELECT flow_step, step, count(*) AS n FROM fanin.job WHERE flow_step >= 0 GROUP BY 1, 2 HAVING count(*) > 1"
    rows = select(arena.store, text)
    return [f"a step has more than one job: {row}" for row in rows]


def joined_once(arena: Arena, run: Run) -> list[str]:
    rows = select(arena.store, "SELECT status FROM fanin.flow_step WHERE name = 'c'")
    return once_each(arena, run) + ([] if rows == [{"status": "running"}] else [f"what follows both is {rows}"])


@race("the two last steps before one", "A=LAST B=LAST", also=joined_once, **SHORT)
def steps_before_one(arena: Arena) -> list[Actor]:
    """What follows both never starts, or starts twice."""
    arena.flow({"a": "", "b": "", "c": "a b"})
    return [ends(arena, "A"), ends(arena, "B")]


@race("the last step against a cancel", "A=LAST B=STOPPED", "A=LAST B=NOTHING", also=once_each, **SHORT)
def flow_end_and_cancel(arena: Arena) -> list[Actor]:
    """A flow completes and is cancelled."""
    flow_id = arena.flow({"a": ""})
    return [ends(arena, "A"), verb("B", partial(flow.cancel, BUCKET, flow_id, arena.deed()), "STOPPED")]


@race("a step that leads to another against a cancel", "A=LAST B=STOPPED", also=once_each, **SHORT)
def step_and_cancel(arena: Arena) -> list[Actor]:
    """A step starts in a flow that was stopped."""
    flow_id = arena.flow({"a": "", "b": "a"})
    return [ends(arena, "A"), verb("B", partial(flow.cancel, BUCKET, flow_id, arena.deed()), "STOPPED")]


@race("a flow run again by two", "A=2 B=2", also=once_each, **SHORT)
def flow_again_and_again(arena: Arena) -> list[Actor]:
    """Two people press the button, and a step runs twice over."""
    flow_id = arena.flow({"a": "", "b": "a"})
    arena.ended("fail")
    return [actor(name, partial(flow.run_again, BUCKET, flow_id, 1, done=arena.deed()), str) for name in "AB"]


def none_left_failed(arena: Arena, run: Run) -> list[str]:
    """A flow that runs again has run all that had failed."""
    text = (
        "SELECT s.name FROM fanin.flow_step AS s JOIN fanin.flow AS f ON f.id = s.flow_id "
        "WHERE s.status = 'failed' AND f.run = 2"
    )
    return [f"forgotten by the new run: {row}" for row in select(arena.store, text)]


@race("a flow run again while its last step fails", "A=DONE B=LAST", "A=REFUSED B=LAST", also=none_left_failed, **SHORT)
def flow_again_and_step(arena: Arena) -> list[Actor]:
    """A step that fails at that moment is forgotten, and the flow completes without it."""
    flow_id = arena.flow({"a": "", "b": "", "c": "a b"})
    arena.ended("fail")
    return [
        actor("A", refusable(partial(flow.run_again, BUCKET, flow_id, 1, done=arena.deed())), str),
        arena.fails("B", arena.step()),
    ]


@race("a resolve against a retry of the undo", "A=DONE B=REFUSED", "A=REFUSED B=DONE", also=once_each, **SHORT)
def resolve_and_undo_again(arena: Arena) -> list[Actor]:
    """A step that a person has undone is undone again."""
    flow_id = arena.flow({"a": "", "b": "a"}, undo=["a"])
    arena.ended("succeed", "fail", "fail")
    return [
        actor("A", refusable(partial(flow.resolve, BUCKET, flow_id, "a", "undone", arena.deed())), str),
        actor("B", refusable(partial(flow.undo_again, BUCKET, flow_id, "a", arena.deed())), str),
    ]


TWICE = Intent("twice", "idempotent", '{"to":"a"}', 2)


def in_doubt(arena: Arena) -> Call:
    """The step a is being undone, beside the last call of an effect that was in doubt when that began."""
    arena.flow({"a": "", "b": "a"}, undo=["a"])
    arena.settled([wanting(arena.step(), TWICE)])
    call = arena.called(TWICE.name)
    arena.store.run(lambda: effect.settle(BUCKET, [Said(call, "refuse", doubtful=True)]))
    arena.ended("fail")
    return arena.called(TWICE.name)


def settled_for_good(arena: Arena, run: Run) -> list[str]:
    """Nothing of a step that is undone can be done any more."""
    text = (
        "SELECT s.name, e.status FROM fanin.flow_step AS s JOIN fanin.effect AS e ON e.job_id = s.job_id "
        "WHERE s.status = 'undone' AND e.status NOT IN ('cancelled', 'reversed')"
    )
    return [f"of a step that is undone: {row}" for row in select(arena.store, text)]


@race("the end of an undo and the refusal of a call", "A=LAST M=FAILED", also=settled_for_good, **SHORT)
def undo_and_refuse(arena: Arena) -> list[Actor]:
    """A call that has just failed is left to be made again for somebody, after its step was undone."""
    call = in_doubt(arena)
    return [ends(arena, "A"), sayer("M", call, "refuse")]


@race("the end of an undo and a person who has an effect called again", "A=LAST P=RETRIED 0", "A=LAST P=RETRIED 1",
      also=settled_for_good, **SHORT)  # fmt: skip
def undo_and_retry_effect(arena: Arena) -> list[Actor]:
    """What was undone is done once more."""
    call = in_doubt(arena)
    arena.store.run(lambda: effect.settle(BUCKET, [Said(call, "refuse")]))

    def press() -> Script:
        return f"RETRIED {len((yield lambda: effect.retry(BUCKET, [call.where], 2)))}"

    return [ends(arena, "A"), Actor("P", press)]


# Several undos in one transaction.


def refused(arena: Arena, *intents: Intent) -> list[Call]:
    """The calls of these have failed for good."""
    calls = [arena.called(intent.name) for intent in intents]
    arena.store.run(lambda: effect.settle(BUCKET, [Said(call, "refuse", final=True) for call in calls]))
    return calls


def turned(first: int, second: int) -> int:
    """The number of a flow of which step ``first`` has a job that sorts before that of step ``second``."""
    ids = ((n, flows.ID.format(n)) for n in range(1, 100))
    return next(n for n, flow_id in ids if identity.step_id(flow_id, first) < identity.step_id(flow_id, second))


@race("two steps that are undone at once, and a person who has their effects called again", "A=LAST P=RETRIED 0",
      "A=LAST P=RETRIED 2", **SHORT)  # fmt: skip
def undo_of_two_and_retry(arena: Arena) -> list[Actor]:
    """The undo takes the later step first, the person the lower key: each waits for what the other holds."""
    arena.flow({"a": "", "b": "a", "c": "b"}, undo=["c"], number=turned(0, 1))
    one, two = (msgspec.structs.replace(TWICE, name=name) for name in ("one", "two"))
    arena.settled([wanting(arena.step(), one)])
    arena.settled([wanting(arena.step(), two)])
    wheres = sorted(call.where for call in refused(arena, one, two))

    def press() -> Script:
        return f"RETRIED {len((yield lambda: effect.retry(BUCKET, wheres, 2)))}"

    return [arena.fails("A", arena.step()), Actor("P", press)]


def crossed() -> tuple[int, int]:
    """The numbers of two flows, of which the first sorts before the second, and the jobs of their steps otherwise."""
    first = {n: identity.step_id(flows.ID.format(n), 0) for n in range(1, 20)}
    return next((n, m) for n in first for m in first if n < m and first[n] > first[m])


@race("two undos that end in one batch, and the answers to calls of both", "A=LAST+LAST M=DONE+DONE", **SHORT)
def undos_and_answers(arena: Arena) -> list[Actor]:
    """The undos come in the order of the flows, the answers in that of the jobs: each waits for the other."""
    calls: list[Call] = []
    undos: list[Claim] = []
    for number in crossed():
        arena.flow({"a": "", "b": "a"}, undo=["a"], number=number)
        arena.settled([wanting(arena.step(), TWICE)])
        call = arena.called(TWICE.name)
        arena.store.run(lambda call=call: effect.settle(BUCKET, [Said(call, "refuse", doubtful=True)]))  # type: ignore[misc]
        arena.ended("fail")
        calls.append(arena.called(TWICE.name))
        undos.append(arena.step())

    def script() -> Script:
        found = yield lambda: effect.settle(BUCKET, [Said(call, "mark", response="1") for call in calls])
        return "+".join(found[call.where].upper() for call in calls)

    return [arena.succeeds("A", *undos), Actor("M", script)]
