"""What is known of flows: their states, and the decisions over the ends of steps. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec

from fanin.domain.errors import BadOption
from fanin.domain.model import Spec
from fanin.domain.states import FLOW_LIVE, STEP_LIVE

EXPAND = "fanin.expand"
"""The built-in task that makes a job of what a step before has left: one part for each result, item or undo."""
UNDO = "undo/"
"""The step of a job that undoes one begins so."""
EXPAND_ATTEMPTS = 100
"""It may have to ask again and again whether a call has ended."""
BATCH = "fanin.batch"
"""The built-in task of the parts of a split job: each waits for the job of its batch."""
BATCH_ATTEMPTS = 100
"""It may lose its worker again and again, and has done nothing by then."""
CONDITIONS = ("ok", "any", "failed")


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `EXPAND` makes: a job of ``task`` with one part for each of ``what``.

    ``what``: ``results`` of the sources, ``items`` of the one list that their only part returned, ``given`` ones, or
    ``undo``: the results of the job that is undone.
    """

    task: str
    what: str
    queue: str = "default"
    attempts: int = 3
    priority: int = 0
    policy: str = "{}"
    give_up_after: float | None = None
    given: list[str] = []
    """Payloads."""


class StepSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a step starts: a job of one part of ``spec.task``, with ``call`` (JSON arguments) beside what it joins, or
    with the ``plan`` that `EXPAND` follows."""

    spec: Spec
    call: str | None = None
    plan: Plan | None = None
    joins: bool = True

    def reads(self, before: int) -> int:
        """Of how many of the steps before it (the first ones) its job is told."""
        if self.plan is not None:
            return 0 if self.plan.what == "given" else 1
        return before if self.joins else 0

    @property
    def first_give_up_after(self) -> float | None:
        """The deadline of its job, if it stands after no other: of a mapping step that is the job of the items."""
        return self.spec.give_up_after if self.plan is None else self.plan.give_up_after


class Undo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What undoes a step: a plan for `EXPAND`, or a person who is told what to do (``manual``)."""

    plan: Plan | None = None
    manual: str | None = None
    queue: str = "default"


class FlowRow(msgspec.Struct, frozen=True):
    """A flow as it stands in the database. ``running`` counts the steps (or undos) whose job goes on; ``failures`` the
    steps that failed without another that provides for it; ``cause`` says why it did not complete, and ``reason`` more,
    for people: the first reason, which an undo that fails does not change."""

    id: str
    bucket: int
    name: str
    key: str | None
    status: str
    cause: str | None
    reason: str | None
    run: int
    running: int
    failures: int
    meta: str | None
    created_at: float
    give_up_at: float | None
    finished_at: float | None

    @property
    def ended(self) -> bool:
        """Whether nothing of it moves any more. One that needs attention waits for a person."""
        return self.status not in FLOW_LIVE


class StepRow(msgspec.Struct, frozen=True):
    """A step as it stands in the database. ``after`` and ``needs``: the numbers of the steps before it, and how many of
    them have not ended. ``note``: what a person said of its undo, or why that has failed."""

    n: int
    name: str
    status: str
    needs: int
    condition: str
    after: list[int]
    spec: StepSpec
    undo: Undo | None
    job_id: str | None
    undo_job_id: str | None
    ended_no: int | None
    note: str | None


class StepProgress(msgspec.Struct, frozen=True):
    """How far a step is, by the parts of its job, or of the job that undoes it. No job yet: no ``job_id``, no parts.
    ``job_status``: of that job; ``paused``: whether it is."""

    n: int
    name: str
    status: str
    job_id: str | None
    started_at: float | None
    ended_at: float | None
    total: int
    remaining: int
    failed: int
    abandoned: int = 0
    job_status: str | None = None
    paused: bool = False

    @property
    def stands(self) -> str:
        """Its state; with the end of its job where the undoing of others hides that, and whether the job is paused."""
        hidden = self.job_status in ("failed", "cancelled") and self.status in ("nothing_to_undo", "manual")
        return (f"{self.job_status}, " if hidden else "") + self.status + (", paused" if self.paused else "")


class FlowProgress(msgspec.Struct, frozen=True):
    """How far a flow is. ``states``: how many steps are in each state. ``steps``: all of a small flow, else some of
    those of which a job goes on."""

    row: FlowRow
    states: dict[str, int]
    steps: list[StepProgress]

    @property
    def status(self) -> str:
        return self.row.status

    @property
    def ended(self) -> bool:
        return self.row.ended

    @property
    def total(self) -> int:
        """How many steps there are."""
        return sum(self.states.values())

    @property
    def remaining(self) -> int:
        """How many steps wait, or have a job that goes on."""
        return sum(self.states.get(state, 0) for state in ("waiting", *STEP_LIVE))


def starts(condition: str, ends: Collection[str]) -> bool:
    """Whether a step with this condition starts, now that all steps before it have ended so (``done``, ``failed`` or
    ``skipped``)."""
    if condition == "failed":
        return "failed" in ends
    if condition == "any":
        return not ends or any(end != "skipped" for end in ends)
    return all(end == "done" for end in ends)


def handled(conditions: Collection[str]) -> bool:
    """Whether a failed step is provided for, by the conditions of the steps that follow it."""
    return any(condition in ("any", "failed") for condition in conditions)


def waiting_again(waiting: Mapping[int, Sequence[int]], revived: Collection[int]) -> dict[int, int]:
    """For a new run, of the steps that wait again, each with those before it: how many of these will end in it.
    ``revived``: those that start at once."""
    return {n: sum(one in waiting or one in revived for one in before) for n, before in waiting.items()}


def check_order(names: Mapping[str, Sequence[str]]) -> None:
    """Raise `BadOption` for steps that wait for one another in a circle. ``names``: step to the steps before it."""
    try:
        TopologicalSorter(names).prepare()
    except CycleError as problem:
        circle: list[Any] = problem.args[1]
        raise BadOption(
            f"the steps wait for one another: {' -> '.join(reversed(circle))}. Nothing was written"
        ) from None
