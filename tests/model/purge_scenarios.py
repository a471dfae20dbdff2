"""Who meets a purge of a flow: those that let it go on."""

from __future__ import annotations

from typing import Any

from fanin.domain import identity
from fanin.protocol import purge
from tests.model.explore import Op, Scenario, alone, claim, settle
from tests.model.graph_rows import FLOW
from tests.model.graph_scenarios import (
    FAILED,
    STOP,
    UNDO_FAILED,
    UNDOING,
    after_that,
    again,
    cancel,
    flow_of,
    resolve,
    said,
    scenario,
    step,
    sweep,
    undo_again,
)
from tests.model.graph_world import GraphRules
from tests.model.world import Key


def purged(title: str, rows: dict[Key, Any], *scripts: list[Op], crashes: int = 0) -> Scenario:
    """A purge of the flow, as it was read when it stood so, beside the others."""
    members = alone(dict(rows), lambda: purge.flow_tree([0], (0, FLOW)), frozenset(), rules=GraphRules)
    op = Op("purge", lambda _: lambda: purge.purge([0], members, 0.0, flow=(0, FLOW)))
    return scenario(title, rows, [op], *([op] if script == [PURGE] else script for script in scripts), crashes=crashes)


PURGE = Op("purge", lambda _: None)
STOPPED = after_that(after_that(flow_of([(), (0,)], undo=False), STOP), cancel(step(0)))
"""A flow that was cancelled, with a part that nobody has swept."""
SWEPT = after_that(STOPPED, sweep(step(0)))
LEFT_OFF = after_that(after_that(flow_of([(), (0,)], undo=False), STOP), said(step(0)))
"""A flow that was cancelled, of which no step failed: who runs it again touches no job of it."""

PURGES = [
    purged("purged by two", FAILED, [PURGE], crashes=1),
    purged("purged and run again", FAILED, [again()], crashes=2),
    purged("purged, run again and worked on", FAILED, [again()], [claim("a"), settle()]),
    purged("purged while it is swept", STOPPED, [sweep(step(0))], [again()], crashes=1),
    purged("purged by two and run again", SWEPT, [PURGE], [again()]),
    purged("purged and run again from a step that was skipped", LEFT_OFF, [again()], crashes=1),
    purged("purged while its undo ends", UNDOING, [said(identity.undo_id(FLOW, 0))], crashes=1),
    purged("purged while a person settles it", UNDO_FAILED, [resolve(0)], [undo_again(0)], crashes=1),
]
