"""The state machines of jobs, parts, events, outputs, effects, flows and their steps, written once.

The CHECK constraints of the schema, the guards of the SQL and the diagram in ``docs/states.md`` are compared with
these tables by tests; nothing else lists the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fanin.domain import limits
from fanin.domain.errors import BadOption, shown


class Edge(NamedTuple):
    """One allowed change of state: ``source`` becomes ``target`` when somebody does ``verb``."""

    source: str
    verb: str
    target: str


JOB_STATES = ("open", "running", "completed", "failed", "cancelled")
JOB_ENDED = ("completed", "failed", "cancelled")
JOB_EDGES = (
    Edge("open", "seal", "running"),
    Edge("open", "close", "completed"),
    Edge("open", "close", "failed"),
    Edge("open", "close", "cancelled"),
    Edge("running", "finish", "completed"),
    Edge("running", "finish", "failed"),
    Edge("running", "close", "completed"),
    Edge("running", "close", "failed"),
    Edge("running", "close", "cancelled"),
    Edge("completed", "redrive", "running"),
    Edge("failed", "redrive", "running"),
    Edge("cancelled", "redrive", "running"),
)

PART_STATES = ("pending", "running", "succeeded", "failed", "abandoned")
PART_LIVE = ("pending", "running")
PART_ENDED = ("succeeded", "failed", "abandoned")
PART_EDGES = (
    Edge("pending", "claim", "running"),
    Edge("running", "claim", "running"),
    Edge("running", "succeed", "succeeded"),
    Edge("running", "fail", "failed"),
    Edge("running", "reap", "failed"),
    Edge("running", "retry", "pending"),
    Edge("running", "release", "pending"),
    Edge("pending", "skip", "succeeded"),
    Edge("pending", "skip", "failed"),
    Edge("running", "skip", "succeeded"),
    Edge("running", "skip", "failed"),
    Edge("pending", "sweep", "abandoned"),
    Edge("running", "sweep", "abandoned"),
    Edge("failed", "redrive", "pending"),
    Edge("abandoned", "redrive", "pending"),
    Edge("pending", "tell", "pending"),
    Edge("running", "tell", "pending"),
)

EVENT_STATES = ("waiting", "claimed", "published", "parked")
EVENT_UNSENT = ("waiting", "claimed")
EVENT_EDGES = (
    Edge("waiting", "take", "claimed"),
    Edge("claimed", "take", "claimed"),
    Edge("claimed", "mark", "published"),
    Edge("claimed", "refuse", "waiting"),
    Edge("claimed", "park", "parked"),
    Edge("claimed", "release", "waiting"),
    Edge("parked", "retry", "waiting"),
)

OUTPUT_STATES = ("staged", "ready", "kept", "swept")
OUTPUT_UNDECIDED = ("staged", "ready")
OUTPUT_COUNTING = ("ready", "kept")
"""If the part has succeeded under the claim that left it."""
OUTPUT_EDGES = (
    Edge("staged", "stage", "staged"),
    Edge("ready", "stage", "staged"),
    Edge("staged", "finish", "ready"),
    Edge("ready", "finish", "ready"),
    Edge("ready", "keep", "kept"),
    Edge("staged", "remove", "swept"),
    Edge("ready", "remove", "swept"),
)

EFFECT_STATES = ("registered", "calling", "done", "failed", "unknown", "cancelled", "reversed")
EFFECT_OPEN = ("registered", "calling")
EFFECT_STUCK = ("failed", "unknown")
"""Nothing more is done about these unless a person, or a later attempt of the part, asks for it."""
EFFECT_NOT_DONE = ("registered", "calling", "failed", "unknown")
EFFECT_EDGES = (
    Edge("registered", "take", "calling"),
    Edge("calling", "take", "calling"),
    Edge("registered", "call", "calling"),
    Edge("calling", "call", "calling"),
    Edge("failed", "call", "calling"),
    Edge("unknown", "call", "calling"),
    Edge("registered", "mark", "done"),
    Edge("calling", "mark", "done"),
    Edge("failed", "mark", "done"),
    Edge("unknown", "mark", "done"),
    Edge("calling", "refuse", "registered"),
    Edge("calling", "refuse", "failed"),
    Edge("calling", "refuse", "unknown"),
    Edge("calling", "expire", "unknown"),
    Edge("calling", "defer", "calling"),
    Edge("failed", "defer", "registered"),
    Edge("unknown", "defer", "registered"),
    Edge("failed", "retry", "registered"),
    Edge("unknown", "retry", "registered"),
    Edge("registered", "settle", "done"),
    Edge("registered", "settle", "failed"),
    Edge("failed", "settle", "done"),
    Edge("unknown", "settle", "done"),
    Edge("unknown", "settle", "failed"),
    Edge("registered", "cancel", "cancelled"),
    Edge("failed", "cancel", "cancelled"),
    Edge("done", "reverse", "reversed"),
)

FLOW_STATES = (
    "running", "ending", "compensating", "completed", "failed", "cancelled", "compensated", "needs_attention",
)  # fmt: skip
FLOW_LIVE = ("running", "ending", "compensating")
FLOW_EDGES = (
    Edge("running", "stop", "ending"),
    Edge("running", "finish", "completed"),
    Edge("running", "finish", "failed"),
    Edge("running", "undo", "compensating"),
    Edge("running", "undo", "compensated"),
    Edge("running", "undo", "needs_attention"),
    Edge("ending", "finish", "completed"),
    Edge("ending", "finish", "failed"),
    Edge("ending", "finish", "cancelled"),
    Edge("ending", "undo", "compensating"),
    Edge("ending", "undo", "compensated"),
    Edge("ending", "undo", "needs_attention"),
    Edge("compensating", "undo", "compensated"),
    Edge("compensating", "undo", "needs_attention"),
    Edge("needs_attention", "resolve", "compensating"),
    Edge("needs_attention", "resolve", "compensated"),
    Edge("needs_attention", "retry", "compensating"),
    Edge("failed", "redrive", "running"),
    Edge("cancelled", "redrive", "running"),
)

STEP_STATES = (
    "waiting", "running", "done", "failed", "skipped", "undoing", "undone", "nothing_to_undo", "not_undone",
    "manual", "undo_failed",
)  # fmt: skip
STEP_LIVE = ("running", "undoing")
"""A job goes on for it."""
STEP_TO_UNDO = ("done", "failed")
STEP_STUCK = ("manual", "undo_failed")
"""A person has to undo it."""
STEP_UNDONE = ("undone", "nothing_to_undo", "not_undone")
"""Nothing is left to be undone: by an undo or a person, by its nature, or because a person has given it up."""
STEP_EDGES = (
    Edge("waiting", "start", "running"),
    Edge("waiting", "skip", "skipped"),
    Edge("waiting", "stop", "skipped"),
    Edge("waiting", "stop", "failed"),
    Edge("running", "finish", "done"),
    Edge("running", "finish", "failed"),
    Edge("running", "finish", "skipped"),
    Edge("done", "undo", "undoing"),
    Edge("failed", "undo", "undoing"),
    Edge("done", "leave", "nothing_to_undo"),
    Edge("failed", "leave", "nothing_to_undo"),
    Edge("done", "leave", "manual"),
    Edge("failed", "leave", "manual"),
    Edge("undoing", "finish_undo", "undone"),
    Edge("undoing", "finish_undo", "undo_failed"),
    Edge("manual", "resolve", "undone"),
    Edge("manual", "resolve", "nothing_to_undo"),
    Edge("undo_failed", "resolve", "undone"),
    Edge("undo_failed", "resolve", "nothing_to_undo"),
    Edge("manual", "resolve", "not_undone"),
    Edge("undo_failed", "resolve", "not_undone"),
    Edge("undo_failed", "retry", "undoing"),
    Edge("failed", "redrive", "running"),
    Edge("failed", "wait", "waiting"),
    Edge("skipped", "wait", "waiting"),
)

OUTCOMES = (
    "all_ok",
    "with_failures",
    "partial",
    "gave_up",
    "too_many_failures",
    "cancelled",
    "refused",
)


def check_look(status: str | None, states: Sequence[str], limit: int) -> None:
    """Raise `BadOption` if ``status`` is none of these (None stands for all), or ``limit`` no number of rows."""
    if type(limit) is not int or not 1 <= limit <= limits.LOOK_ROWS:
        raise BadOption(f"limit={shown(limit)}: give a whole number from 1 to {limits.LOOK_ROWS}")
    if status is not None and status not in states:
        raise BadOption(f"status={shown(status)}: there are {', '.join(states)}")


def diagram(machine: str) -> str:
    """The Mermaid text of one machine, such as ``"job"`` or ``"effect"``, as it stands in the docs."""
    machines = {
        "job": (JOB_STATES, JOB_EDGES), "part": (PART_STATES, PART_EDGES), "event": (EVENT_STATES, EVENT_EDGES),
        "output": (OUTPUT_STATES, OUTPUT_EDGES), "effect": (EFFECT_STATES, EFFECT_EDGES),
        "flow": (FLOW_STATES, FLOW_EDGES), "step": (STEP_STATES, STEP_EDGES),
    }  # fmt: skip
    states, edges = machines[machine]
    lines = ["stateDiagram-v2", f"    [*] --> {states[0]}"]
    if machine in ("job", "step"):
        lines.append("    [*] --> running")
    lines += [f"    {edge.source} --> {edge.target}: {edge.verb}" for edge in edges]
    return "\n".join(lines)
