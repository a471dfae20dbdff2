"""A flow on the terminal: its steps layer by layer, with their states, their jobs and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanin.cli import exits
from fanin.cli.options import Common, console, print_json, say
from fanin.cli.steps import BAD, look, stands, why
from fanin.cli.tables import moment, short, under
from fanin.domain import identity
from fanin.domain.durations import span
from fanin.domain.errors import UnknownJob
from fanin.protocol import flow

if TYPE_CHECKING:
    from rich.console import Console

    import fanin
    from fanin.cli.steps import Seen
    from fanin.domain.flows import FlowRow, StepRow

COLOURS = {
    "completed": "green", "done": "green", "undone": "green", "running": "cyan", "compensating": "magenta",
    "undoing": "magenta", "compensated": "yellow", "cancelled": "yellow", "ending": "yellow", "failed": "red",
    "undo_failed": "red", "manual": "red", "not_undone": "red",
    "needs_attention": "red", "paused": "yellow",
}  # fmt: skip
SHAPES = {
    "done": "green",
    "undone": "green",
    "running": "cyan",
    "undoing": "cyan",
    "waiting": "lightgrey",
    "skipped": "white",
}


def flow_named(app: fanin.App, name: str) -> fanin.FlowRun | None:
    """The flow that is meant where a job of this name is looked for first, and there is none. If there are both, it is
    said."""
    try:
        app.job(name)
    except UnknownJob:
        try:
            return app.flow_run(name)
        except UnknownJob:
            return None
    flow_id = identity.keyed_flow_id(name)
    if app.store.read(lambda: flow.row(app.store.bucket(flow_id), flow_id)) is not None:
        say(f"a job and a flow are called so, and this is the job; the flow: fanin flows show {short(flow_id)}")
    return None


def show_flow(app: fanin.App, run: fanin.FlowRun, mermaid: bool, common: Common) -> int:
    """Draw the steps of a flow, layer by layer, with their states."""
    row, steps = run.row(), run.steps()
    if mermaid:
        print(_mermaid(app, steps))
    elif common.json:
        print_json(flow_facts(row) | {"steps": [step_facts(step) | _counts(look(app, step.job_id)) for step in steps]})
    else:
        _draw(console(common), app, row, steps)
    return exits.OK


def flow_facts(row: FlowRow) -> dict[str, Any]:
    """A flow for ``--json``: the fields that docs/cli.md lists."""
    return {
        "id": row.id, "name": row.name, "key": row.key, "status": row.status, "cause": row.cause,
        "reason": row.reason, "run": row.run, "running": row.running, "failures": row.failures,
        "created_at": row.created_at, "give_up_at": row.give_up_at, "finished_at": row.finished_at,
    }  # fmt: skip


def step_facts(step: StepRow) -> dict[str, Any]:
    """A step for ``--json``."""
    plan = step.spec.plan
    return {
        "n": step.n, "name": step.name, "task": plan.task if plan is not None else step.spec.spec.task,
        "status": step.status, "on": step.condition, "after": step.after, "job": step.job_id,
        "undo_job": step.undo_job_id, "manual": step.undo.manual if step.undo is not None else None,
        "note": step.note,
    }  # fmt: skip


def _counts(seen: Seen | None) -> dict[str, Any]:
    """The job whose parts are meant, and how far it is."""
    if seen is None:
        return dict.fromkeys(("parts", "done", "succeeded", "failed", "abandoned", "job_status", "paused_at"))
    told = seen.progress
    return {
        "job": seen.meant.id, "parts": told.total, "done": told.total - told.remaining, "succeeded": told.succeeded,
        "failed": told.failed, "abandoned": told.abandoned, "job_status": seen.first.status,
        "paused_at": seen.paused_at,
    }  # fmt: skip


def layers(steps: list[StepRow]) -> list[list[StepRow]]:
    """The steps by how many stand before them in a row: those of one layer do not wait for each other."""
    depth: dict[int, int] = {}
    left = {step.n: step for step in steps}
    while left:
        ready = [step for step in left.values() if all(n in depth for n in step.after)]
        for step in ready:
            depth[step.n] = max((depth[n] + 1 for n in step.after), default=0)
            del left[step.n]
    found: list[list[StepRow]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for step in steps:
        found[depth[step.n]].append(step)
    return found


def _draw(screen: Console, app: fanin.App, row: FlowRow, steps: list[StepRow]) -> None:
    from rich.markup import escape

    key = f" ({escape(row.key)})" if row.key else ""
    screen.print(f"[bold]flow {short(row.id)}[/] {escape(row.name)}{key}: {coloured(row.status)}, run {row.run}")
    took = "" if row.finished_at is None else f", took {span(row.finished_at - row.created_at)}"
    screen.print(f"  created {moment(row.created_at)}{took}", style="dim")
    if row.give_up_at is not None and not row.ended:
        screen.print(f"  gives up {moment(row.give_up_at)}", style="dim")
    if row.reason:
        under(screen, "  ", escape(row.reason))
    names = {step.n: step.name for step in steps}
    drawn = layers(steps)
    for number, layer in enumerate(drawn):
        if number:
            screen.print("  │", style="dim")
        for step in layer:
            last = number == len(drawn) - 1 and step is layer[-1]
            before = " ← " + ", ".join(names[n] for n in step.after) if step.after else ""
            on = f" if {step.condition}" if step.condition != "ok" else ""
            seen, undo = look(app, step.job_id), look(app, step.undo_job_id)
            job = f"  job {short(seen.meant.id)}" if seen is not None else ""
            head = f"[bold]{escape(step.name)}[/] {coloured(stands(step, seen, undo))}{seen.far if seen else ''}"
            lead = f"  {' ' if last else '│'}     "
            under(screen, lead, f"{head}[dim]{escape(before + on + job)}[/]", f"  {'└─' if last else '├─'} ")
            said = why(app, seen) if seen is not None else None
            for line in [*([said] if said else []), *wanted(app, step, undo)]:
                under(screen, lead, escape(line))
    if row.status == "needs_attention":
        screen.print("  what to say about it: fanin saga", soft_wrap=True)


def wanted(app: fanin.App, step: StepRow, undo: Seen | None) -> list[str]:
    """What a person is asked to do, or has said."""
    if step.status == "manual" and step.undo is not None:
        return [f"to be undone by a person: {step.undo.manual}"]
    if step.status == "undo_failed" and undo is not None:
        said = why(app, undo) if undo.meant.status in BAD else step.note
        return [f"its undo failed: {said}", f"look at it: fanin show {short(undo.meant.id)}"]
    return [f"note: {step.note}"] if step.note else []


def coloured(state: str) -> str:
    """A state as it stands on a terminal; one with more than a word by what asks for attention in it."""
    colours = [COLOURS.get(word) for word in state.split(", ")]
    colour = next((one for one in colours if one in ("red", "yellow")), colours[0])
    return f"[{colour}]{state}[/]" if colour else state


def _mermaid(app: fanin.App, steps: list[StepRow]) -> str:
    lines = ["flowchart LR"]
    for step in steps:
        name = step.name.replace('"', "'")
        state = stands(step, look(app, step.job_id), look(app, step.undo_job_id))
        lines.append(f'    s{step.n}["{name}<br/>{state}"]')
    for step in steps:
        arrow = "-->" if step.condition == "ok" else f"-- {step.condition} -->"
        lines += [f"    s{before} {arrow} s{step.n}" for before in step.after]
    lines += [f"    style s{step.n} fill:{SHAPES.get(step.status, 'salmon')}" for step in steps]
    return "\n".join(lines)
