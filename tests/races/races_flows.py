"""Races in a flow: last steps before one at once, its end against who stops it, and who runs it again."""

from __future__ import annotations

from typing import Any

from fanin.domain.errors import NotAllowedNow
from fanin.protocol import flow
from fanin.protocol.steps import Txn, TxnFactory
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.races.arena import Arena
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
        return "DONE"

    return txn


def ends(arena: Arena, name: str) -> Actor:
    """A worker reports the part of a step that is ready."""
    return arena.succeeds(name, arena.step())


def once_each(arena: Arena, run: Run) -> list[str]:
    """No step has two jobs, and one that was skipped has none."""
    text = "SELECT flow_step, step, count(*) AS n FROM fanin.job GROUP BY flow_step, step HAVING count(*) > 1"
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
    return [ends(arena, "A"), verb("B", lambda: flow.cancel(BUCKET, flow_id), "STOPPED")]


@race("a step that leads to another against a cancel", "A=LAST B=STOPPED", also=once_each, **SHORT)
def step_and_cancel(arena: Arena) -> list[Actor]:
    """A step starts in a flow that was stopped."""
    flow_id = arena.flow({"a": "", "b": "a"})
    return [ends(arena, "A"), verb("B", lambda: flow.cancel(BUCKET, flow_id), "STOPPED")]


@race("a flow run again by two", "A=2 B=2", also=once_each, **SHORT)
def flow_again_and_again(arena: Arena) -> list[Actor]:
    """Two people press the button, and a step runs twice over."""
    flow_id = arena.flow({"a": "", "b": "a"})
    arena.ended("fail")
    return [actor(name, lambda: flow.run_again(BUCKET, flow_id, 1), str) for name in "AB"]


@race("a resolve against a retry of the undo", "A=DONE B=REFUSED", "A=REFUSED B=DONE", also=once_each, **SHORT)
def resolve_and_undo_again(arena: Arena) -> list[Actor]:
    """A step that a person has undone is undone again."""
    flow_id = arena.flow({"a": "", "b": "a"}, undo=["a"])
    arena.ended("succeed", "fail", "fail")
    return [
        actor("A", refusable(lambda: flow.resolve(BUCKET, flow_id, "a", "undone", "by hand")), str),
        actor("B", refusable(lambda: flow.undo_again(BUCKET, flow_id, "a")), str),
    ]
