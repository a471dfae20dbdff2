"""``fanin jobs``: the newest jobs."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json
from fanin.cli.steps import purpose
from fanin.cli.tables import STATUS_COLOURS, job_facts, name, number, print_lines, short, status, text
from fanin.domain.durations import span
from fanin.domain.errors import BadOption
from fanin.domain.states import JOB_STATES

HEADINGS = ("job", "name", "state", "done", "failed", "age", "took")


def jobs(
    *,
    state: Annotated[str | None, option(f"Only jobs in this state: {', '.join(JOB_STATES)}.", "--status")] = None,
    limit: Annotated[int, Parameter(help="How many.")] = 20,
    common: Common = DEFAULT,
) -> int:
    """List the newest jobs, newest first."""
    if state is not None and state not in JOB_STATES:
        raise BadOption(f"--status {state!r}: there are {', '.join(JOB_STATES)}")
    if not 1 <= limit <= 10_000:
        raise BadOption(f"--limit {limit}: give 1 to 10000")
    import fanin

    with open_app(common) as app:
        rows = app.jobs(state, limit)
        found = [(row, fanin.Job(app, row.id).progress()) for row in rows]
        called = {} if common.json else {row.id: purpose(app, row) or name(row) for row in rows}
    if common.json:
        print_json([job_facts(row, progress) for row, progress in found])
        return exits.OK
    screen = console(common)
    if not found:
        screen.print("no jobs" if state is None else f"no {state} jobs")
        return exits.OK
    now = time.time()
    lines = []
    for row, progress in found:
        done = f"{number(progress.succeeded + progress.failed)}/{number(progress.total)}"
        failed = text(number(progress.failed), "red" if progress.failed else None)
        ages = [text(span(now - row.created_at)), text(span((row.finished_at or now) - row.created_at))]
        stands = text(status(row), STATUS_COLOURS[row.status])
        lines.append([text(short(row.id)), text(called[row.id]), stands, text(done), failed, *ages])
    print_lines(screen, HEADINGS, lines, cut=1, leave=(6, 5), right=range(3, 7))
    return exits.OK
