"""A flow on the terminal: its steps layer by layer, with their states, their jobs and what went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanin.cli import exits
from fanin.cli.options import Common, console, print_json
from fanin.cli.tables import moment, short
from fanin.domain.durations import span
from fanin.domain.errors import UnknownJob
from fanin.domain.flows import EXPAND
from fanin.domain.model import NESTED_FAILED
from fanin.protocol import read

if TYPE_CHECKING:
    from rich.console import Console

    import fanin
    from fanin.domain.flows import FlowRow, StepRow
    from fanin.domain.model import Below, Failure

COLOURS = {
    "completed": "green", "done": "green", "undone": "green", "running": "cyan", "compensating": "magenta",
    "undoing": "magenta", "compensated": "yellow", "cancelled": "yellow", "ending": "yellow", "failed": "red",
    "undo_failed": "red", "manual": "red", "not_undone": "red",
    "needs_attention": "red",
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
    """The flow that is meant where a job of this name is looked for first, and there is none."""
    try:
        app.job(name)
    except UnknownJob:
        try:
            return app.flow_run(name)
        except UnknownJob:
            return None
    return None


def show_flow(app: fanin.App, run: fanin.FlowRun, mermaid: bool, common: Common) -> int:
    """Draw the steps of a flow, layer by layer, with their states."""
    row, steps = run.row(), run.steps()
    if mermaid:
        print(_mermaid(steps))
    elif common.json:
        print_json(flow_facts(row) | {"steps": [step_facts(step) | _counts(run, step) for step in steps]})
    else:
        _draw(console(common), app, run, row, steps)
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


def _counts(run: fanin.FlowRun, step: StepRow) -> dict[str, Any]:
    """The job whose parts are meant, and how far it is."""
    if step.job_id is None:
        return {"parts": None, "done": None, "failed": None}
    job = run.job(step.name)
    progress = job.progress()
    return {
        "job": job.id, "parts": progress.total, "done": progress.total - progress.remaining, "failed": progress.failed,
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


def _draw(screen: Console, app: fanin.App, run: fanin.FlowRun, row: FlowRow, steps: list[StepRow]) -> None:
    from rich.markup import escape

    key = f" ({escape(row.key)})" if row.key else ""
    screen.print(f"[bold]flow {short(row.id)}[/] {escape(row.name)}{key}: {coloured(row.status)}, run {row.run}")
    took = "" if row.finished_at is None else f", took {span(row.finished_at - row.created_at)}"
    screen.print(f"  created {moment(row.created_at)}{took}", style="dim")
    if row.give_up_at is not None and not row.ended:
        screen.print(f"  gives up {moment(row.give_up_at)}", style="dim")
    if row.reason:
        screen.print(f"  {escape(row.reason)}", soft_wrap=True)
    names = {step.n: step.name for step in steps}
    drawn = layers(steps)
    for number, layer in enumerate(drawn):
        if number:
            screen.print("  │", style="dim")
        for step in layer:
            last = number == len(drawn) - 1 and step is layer[-1]
            before = " ← " + ", ".join(names[n] for n in step.after) if step.after else ""
            on = f" if {step.condition}" if step.condition != "ok" else ""
            far, job, said = _far(app, run, step)
            screen.print(
                f"  {'└─' if last else '├─'} [bold]{escape(step.name)}[/] {coloured(step.status)}{escape(far)}"
                f"[dim]{escape(before + on + job)}[/]",
                soft_wrap=True,
            )
            for line in [*said, *wanted(step)]:
                screen.print(f"  {' ' if last else '│'}     {escape(line)}", soft_wrap=True)


def _far(app: fanin.App, run: fanin.FlowRun, step: StepRow) -> tuple[str, str, list[str]]:
    """How far the job of a step is, where it has more than one part; the job; and its first failure."""
    if step.job_id is None:
        return "", "", []
    job = run.job(step.name)
    progress, said = job.progress(), []
    if step.status == "failed" or progress.failed:
        found = app.store.read(lambda: read.failures(app.store.bucket(job.id), job.id, 0, limit=1))
        for first in found:
            below = below_of(app, job.id, first)
            said.append(str(first).partition("\n")[0] + (f"; {below}" if below else ""))
    far = f" {progress.total - progress.remaining}/{progress.total}"
    if progress.total == 1 and step.spec.spec.task != EXPAND:
        far = ""
    failed = f", {progress.failed} failed" if far and progress.failed else ""
    return far + failed, f"  job {short(job.id)}", said


def below_of(app: fanin.App, job_id: str, failure: Failure) -> Below | None:
    """What failed first at the bottom of the nested jobs, where a part failed with one."""
    if failure.type != NESTED_FAILED:
        return None
    return app.store.read(lambda: read.below(app.store.bucket(job_id), job_id, failure.idx))


def wanted(step: StepRow) -> list[str]:
    """What a person is asked to do, or has said."""
    if step.status == "manual" and step.undo is not None:
        return [f"to be undone by a person: {step.undo.manual}"]
    if step.status == "undo_failed" and step.undo_job_id is not None:
        return [f"its undo failed: fanin show {short(step.undo_job_id)}, then fanin saga retry, resolve or abandon"]
    return [f"note: {step.note}"] if step.note else []


def coloured(status: str) -> str:
    """A state as it stands on a terminal."""
    colour = COLOURS.get(status)
    return f"[{colour}]{status}[/]" if colour else status


def _mermaid(steps: list[StepRow]) -> str:
    lines = ["flowchart LR"]
    for step in steps:
        name = step.name.replace('"', "'")
        lines.append(f'    s{step.n}["{name}<br/>{step.status}"]')
    for step in steps:
        arrow = "-->" if step.condition == "ok" else f"-- {step.condition} -->"
        lines += [f"    s{before} {arrow} s{step.n}" for before in step.after]
    lines += [f"    style s{step.n} fill:{SHAPES.get(step.status, 'salmon')}" for step in steps]
    return "\n".join(lines)
