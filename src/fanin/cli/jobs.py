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
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("job", no_wrap=True)
    table.add_column("name", overflow="ellipsis", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("done", "failed", "age", "took"):
        table.add_column(heading, justify="right", no_wrap=True)
    now = time.time()
    for row, progress in found:
        colour = STATUS_COLOURS[row.status]
        done = f"{number(progress.total - progress.remaining)}/{number(progress.total)}"
        failed = f"[red]{number(progress.failed)}[/]" if progress.failed else "0"
        took = span((row.finished_at or now) - row.created_at)
        from rich.markup import escape

        table.add_row(
            short(row.id),
            escape(name(row)),
            f"[{colour}]{status(row)}[/]",
            done,
            failed,
            span(now - row.created_at),
            took,
        )
    screen.print(table)
    return exits.OK
