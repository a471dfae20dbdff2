"""``fanin signals``: what an operator watches, as counts and ages."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json
from fanin.cli.tables import number, print_lines, text
from fanin.domain.durations import seconds, span
from fanin.domain.signals import Signals

HEADINGS = ("signal", "count", "oldest", "many of them mean")
LINES = (
    ("stale_commits", None, "leases are shorter than the pauses of your hosts, or workers are overloaded"),
    ("closed_commits", None, "jobs were cancelled, given up or decided while parts ran"),
    ("leases_lost", None, "workers die or stall"),
    ("work_stopped", None, "as stale commits; this work was stopped before it had ended"),
    ("outputs_undecided", None, "parts are leaving outputs, or nobody sweeps"),
    ("outputs_orphaned", "outputs_orphaned_seconds", "wasted work; old ones: no worker or sweep reaches their place"),
    ("outputs_swept", None, "wasted work that was cleaned up"),
    ("events_pending", "events_pending_seconds", "no relay runs, or the receiver is away"),
    ("events_parked", "events_parked_seconds", "mend the receiver, then: fanin events retry"),
    ("effects_pending", "effects_pending_seconds", "no worker runs their handlers, or the receiver is away"),
    ("effects_failed", "effects_stuck_seconds", "look at them: fanin effects"),
    ("effects_unknown", "effects_stuck_seconds", "ask the receiver what happened, then: fanin effects settle"),
)
"""Each count, its age, and what an operator does about it."""


def signals(
    *,
    since: Annotated[str, option("How far back the counts of what happened go (default: 1h).")] = "1h",
    common: Common = DEFAULT,
) -> int:
    """Count what was refused, lost and stopped lately, and what waits or is stuck now. Reads, and takes no locks."""
    back = seconds(since, "--since")
    with open_app(common) as app:
        found = app.signals(back)
    if common.json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(found, common)
    return exits.OK


def _print(found: Signals, common: Common) -> None:
    lines = []
    for name, age, meaning in LINES:
        count = getattr(found, name)
        oldest = span(getattr(found, age)) if age is not None and count else ""
        cells = (name.replace("_", " "), number(count), oldest, meaning if count else "")
        lines.append([text(cell) for cell in cells])
    print_lines(console(common), HEADINGS, lines, cut=3, fold=(3,), right=(1, 2))
