"""``fanin explain``: what happened to a job, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.drawing import COLOURS as FLOW_COLOURS
from fanin.cli.drawing import flow_named
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json
from fanin.cli.tables import STATUS_COLOURS, moment, number, short
from fanin.domain.durations import span

if TYPE_CHECKING:
    from rich.console import Console

    import fanin

USAGE = "fanin explain [OPTIONS] JOB|FLOW"
COLOURS = {
    "lease_lost": "yellow", "refused": "yellow", "stopped": "yellow", "released": "yellow", "retried": "yellow",
    "failed": "red", "paused": "magenta", "resumed": "magenta", "skipped": "magenta", "finished": "magenta",
    "cancelled": "magenta", "redriven": "magenta", "repaired": "magenta", "damaged": "red", "ended": "bold",
    "successor": "green", "child": "green", "more": "dim", "first": "dim", "last": "dim", "published": "dim",
}  # fmt: skip


def explain(
    job: Annotated[str, Parameter(help="The id of a job or a flow, the beginning of it, or its key.")],
    /,
    *,
    part: Annotated[int | None, option("The whole history of one part, by its index from 0.")] = None,
    common: Common = DEFAULT,
) -> int:
    """Tell what happened to a job in the order of time: lost leases, refused commits, what operators did, its ends."""
    with open_app(common) as app:
        flow = flow_named(app, job) if part is None else None
        found = app.job(job).explain(part) if flow is None else flow.explain()
    if common.json:
        print_json(msgspec.to_builtins(found))
    else:
        _print(console(common), "job" if flow is None else "flow", found)
    return exits.OK


def _print(screen: Console, kind: str, found: fanin.Explanation) -> None:
    from rich.markup import escape
    from rich.table import Table

    colour = (STATUS_COLOURS | FLOW_COLOURS)[found.status]
    outcome = f", {found.outcome}" if found.outcome not in (None, found.status) else ""
    screen.print(f"[bold]{kind} {found.job}[/] [{colour}]{found.status}{outcome}[/]", soft_wrap=True)
    start, rows = found.timeline[0].at, Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True, style="dim")
    rows.add_column(no_wrap=True, style="dim", justify="right")
    rows.add_column(overflow="fold")
    for line in found.timeline:
        style, when, after = COLOURS.get(line.what, ""), moment(line.at), f"+{span(line.at - start)}"
        text = f"[{style}]{escape(line.text)}[/]" if style else escape(line.text)
        if screen.is_terminal:
            rows.add_row(when, after, text)
        else:
            screen.print(f"{when}  {after:>10}  {text}", soft_wrap=True)
    if screen.is_terminal:
        screen.print(rows)
    if found.workers:
        hands = Table(box=None, pad_edge=False, header_style="bold", title="who ended its parts", title_justify="left")
        for heading in ("worker", "parts", "attempts", "first to last"):
            hands.add_column(heading, justify="left" if heading == "worker" else "right", no_wrap=True)
        for hand in found.workers:
            length = span(hand.last_at - hand.first_at)
            hands.add_row(escape(hand.worker), number(hand.parts), number(hand.attempts), length)
        screen.print()
        screen.print(hands)
    if found.troubled:
        said = ", ".join(f"{one.part} ({one.lines} lines)" for one in found.troubled)
        screen.print(f"\n[bold]parts with most trouble[/] {said}", soft_wrap=True)
        screen.print(f"more of one: fanin explain {short(found.job)} --part N", style="dim", soft_wrap=True)
