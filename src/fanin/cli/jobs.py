"""``fanin jobs``: the newest jobs."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json
from fanin.cli.tables import STATUS_COLOURS, job_facts, name, number, short, span, status
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
    if common.json:
        print_json([job_facts(row, progress) for row, progress in found])
        return exits.OK
    screen = console(common)
    if not found:
        screen.print("no jobs" if state is None else f"no {state} jobs")
        return exits.OK
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for n, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if n < 3 else "right", no_wrap=True)
    now = time.time()
    lines = []
    for row, progress in found:
        done = f"{number(progress.total - progress.remaining)}/{number(progress.total)}"
        took = span((row.finished_at or now) - row.created_at)
        ages = [number(progress.failed), span(now - row.created_at), took]
        lines.append([short(row.id), name(row), status(row), done, *ages])
    # Only the name gives way on a narrow terminal; a cut count or state would be wrong.
    others = [max(len(line[n]) for line in [*lines, list(HEADINGS)]) + 2 for n in range(7) if n != 1]
    room = max(screen.width - sum(others) - 2, 12)
    for (row, progress), line in zip(found, lines, strict=True):
        line[1] = escape(line[1] if len(line[1]) <= room else line[1][: room - 1] + "…")
        line[2] = f"[{STATUS_COLOURS[row.status]}]{line[2]}[/]"
        line[4] = f"[red]{line[4]}[/]" if progress.failed else line[4]
        table.add_row(*line)
    screen.print(table)
    return exits.OK
