"""A flow that is waited for, live: a line for each step, and one for the whole below them."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterable
from contextlib import suppress

from fanin.domain.durations import span
from fanin.domain.flows import FlowProgress, StepProgress
from fanin.domain.states import STEP_STATES
from fanin.runtime.progress import bar, show

PLAIN_LINES = 20
LOG_CHARS = 400
NAME_CHARS = 40


def room() -> int:
    """How many steps have a line each: what the terminal holds, less those below them."""
    return max(_size().lines - 5, 1)


def watch(polls: Iterable[FlowProgress]) -> None:
    """Show each poll of a flow."""
    show((lines(found, _size().columns - 1), found.ended) for found in polls)


def lines(found: FlowProgress, width: int) -> list[str]:
    """The steps, how many more run, and last the whole, which may take several; each in ``width`` columns at most."""
    from rich.cells import cell_len, set_cell_size

    name = min(max((cell_len(step.name) for step in found.steps), default=0), NAME_CHARS)
    state = max((len(step.stands) for step in found.steps), default=0)
    said = [f"  {set_cell_size(step.name, name)}  {step.stands:<{state}}{_far(step)}".rstrip() for step in found.steps]
    moving = found.states.get("running", 0) + found.states.get("undoing", 0)
    if len(found.steps) < moving:
        said.append(f"  … and {moving - len(found.steps)} more")
    said += _whole(found, width)
    return [text if cell_len(text) <= width else set_cell_size(text, width) for text in said]


def _far(step: StepProgress) -> str:
    if step.job_id is None or step.started_at is None:
        return ""
    took = span((step.ended_at or time.time()) - step.started_at)
    ended = step.total - step.remaining - step.abandoned
    share = ended / step.total if step.total else float(step.ended_at is not None)
    failed = f"  failed {step.failed}" if step.failed else ""
    left = f"  abandoned {step.abandoned}" if step.abandoned else ""
    return f"  {ended}/{step.total}  {bar(share, 12)}  {took}{failed}{left}"


def _whole(found: FlowProgress, width: int) -> list[str]:
    """In one line, or with the counts in lines of their own."""
    ended = found.total - found.remaining
    share = ended / found.total if found.total else 1.0
    counts = ", ".join(f"{found.states[state]} {state}" for state in STEP_STATES if state in found.states)
    whole = f"{found.status}: {ended}/{found.total} steps  {bar(share, 24)}  {int(share * 100)} %"
    if len(whole) + 2 + len(counts) <= width:
        return [f"{whole}  {counts}"]
    return [whole, *(f"  {line}" for line in textwrap.wrap(counts, max(width - 2, 20)))]


def _size() -> os.terminal_size:
    """Of the terminal that standard error is; of another stream what a log has room for."""
    with suppress(OSError, ValueError):
        if (size := os.get_terminal_size(sys.stderr.fileno())).columns:
            return size
    return os.terminal_size((LOG_CHARS, PLAIN_LINES + 3))
