"""``fanin flows`` and ``fanin saga``: plans of steps, how far they are, and what waits for a person."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.drawing import COLOURS, flow_facts, show_flow, step_facts, wanted
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json, say
from fanin.cli.steps import look
from fanin.cli.tables import print_lines, short, text, under
from fanin.cli.verbs import By
from fanin.domain.durations import span
from fanin.domain.errors import BadOption, NotAllowedNow
from fanin.domain.states import FLOW_LIVE, FLOW_STATES, STEP_STUCK, STEP_TO_UNDO

if TYPE_CHECKING:
    import fanin
    from fanin.domain.flows import FlowRow, StepRow

USAGE = "fanin flows [OPTIONS] | fanin flows show|cancel|redrive FLOW"
SAGA_USAGE = "fanin saga [OPTIONS] | fanin saga resolve|abandon|retry FLOW STEP"
VERBS = ("list", "show", "cancel", "redrive")
SAGA_VERBS = ("list", "resolve", "abandon", "retry")
HEADINGS = ("flow", "name", "state", "running", "age", "took")
FlowName = Annotated[str | None, Parameter(name="FLOW", help="The flow's id, the beginning of it, or its key.")]


def flows(
    verb: Annotated[str, Parameter(help=f"{', '.join(VERBS)} (default: list).")] = "list",
    name: FlowName = None,
    /,
    *,
    status: Annotated[str | None, option(f"With list: only flows in this state: {', '.join(FLOW_STATES)}.")] = None,
    limit: Annotated[int, Parameter(help="With list: how many of the newest.")] = 20,
    mermaid: Annotated[bool, option("With show: as a Mermaid diagram.")] = False,
    reason: Annotated[str | None, option("With cancel and redrive: why, for those who look at the flow later.")] = None,
    by: By = None,
    common: Common = DEFAULT,
) -> int:
    """List the newest flows, show the steps of one, stop it, or run its failed steps again."""
    _check(VERBS, verb, name, limit)
    if status is not None and status not in FLOW_STATES:
        raise BadOption(f"--status {status!r}: there are {', '.join(FLOW_STATES)}")
    with open_app(common) as app:
        if name is None:
            return _list(app.flows(status, limit), common)
        run = app.flow_run(name)
        if verb == "show":
            return show_flow(app, run, mermaid, common)
        if verb == "cancel":
            if not run.cancel(reason, by=by):
                raise NotAllowedNow(f"flow {short(run.id)} is {run.status}: there is nothing to cancel")
            said = "stopped; what was done is being undone, where its step says how"
        else:
            said = f"runs again, as run {run.redrive(reason=reason, by=by)}"
        row = run.row()
    if common.json:
        print_json(flow_facts(row))
    else:
        say(f"flow {short(row.id)} {said}")
    return exits.OK


def saga(
    verb: Annotated[str, Parameter(help=f"{', '.join(SAGA_VERBS)} (default: list).")] = "list",
    name: FlowName = None,
    step: Annotated[str | None, Parameter(name="STEP", help="The name of the step.")] = None,
    /,
    *,
    note: Annotated[
        str | None, option("With resolve: what was done. With abandon: why it is not undone. With retry: what is new.")
    ] = None,
    by: By = None,
    nothing_to_undo: Annotated[bool, option("With resolve: there was nothing to undo.")] = False,
    limit: Annotated[int, Parameter(help="With list: how many of the newest.")] = 20,
    common: Common = DEFAULT,
) -> int:
    """List the flows that need a person, and what each step wants; say that one was undone, or will not be; or try an
    undo again."""
    _check(SAGA_VERBS, verb, name, limit)
    if verb != "list" and step is None:
        raise BadOption(f"{verb}: name the step, as in: fanin saga {verb} FLOW STEP")
    with open_app(common) as app:
        if name is None or step is None:
            return _attention(app, limit, common)
        run = app.flow_run(name)
        if verb == "resolve":
            run.resolve(step, note or "", nothing_to_undo=nothing_to_undo, by=by)
        elif verb == "abandon":
            run.abandon_undo(step, note or "", by=by)
        else:
            run.undo_again(step, note, by=by)
        row = run.row()
    if common.json:
        print_json(flow_facts(row))
    else:
        did = {"resolve": "was settled", "abandon": "stays as it is", "retry": "is being undone again"}[verb]
        say(f"step {step} of flow {short(row.id)} {did}; the flow is {row.status}")
    return exits.OK


def _list(rows: list[FlowRow], common: Common) -> int:
    if common.json:
        print_json([flow_facts(row) for row in rows])
        return exits.OK
    if not rows:
        console(common).print("no flows: app.flow declares them")
        return exits.OK
    now = time.time()
    lines = [
        [
            text(short(row.id)), text(f"{row.name} ({row.key})" if row.key else row.name),
            text(row.status, COLOURS.get(row.status)), text(str(row.running) if row.status in FLOW_LIVE else ""),
            text(span(now - row.created_at)), text(span((row.finished_at or now) - row.created_at)),
        ]
        for row in rows
    ]  # fmt: skip
    print_lines(console(common), HEADINGS, lines, cut=1, leave=(5,), right=range(3, 6))
    return exits.OK


def _attention(app: fanin.App, limit: int, common: Common) -> int:
    found = []
    for row in app.flows("needs_attention", limit):
        found.append((row, app.flow_run(row.id).steps()))
    if common.json:
        stuck = [(row, [step for step in steps if step.status in STEP_STUCK]) for row, steps in found]
        print_json([flow_facts(row) | {"steps": [step_facts(step) for step in steps]} for row, steps in stuck])
        return exits.OK
    from rich.markup import escape

    screen = console(common)
    if not found:
        screen.print("no flow waits for a person")
    for row, steps in found:
        under(screen, "  ", escape(f"flow {short(row.id)} {row.name}: {row.reason or row.cause}"), "")
        for step in (step for step in steps if step.status in STEP_STUCK):
            for n, want in enumerate(wanted(app, step, look(app, step.undo_job_id))):
                under(screen, "    ", escape(want if n else f"step {step.name}: {want}"), None if n else "  ")
            for when, command in _ways(row, step):
                screen.print(f"    {when}: {command}", markup=False, soft_wrap=True)  # as it is, for pasting
        if waiting := [step for step in steps if step.status in STEP_TO_UNDO]:
            names = [step.name for step in sorted(waiting, key=lambda step: step.ended_no or 0, reverse=True)]
            under(screen, "    ", escape(f"still to be undone behind it: {', '.join(names)}"), "  ")
    return exits.OK


def _ways(row: FlowRow, step: StepRow) -> list[tuple[str, str]]:
    """The commands with which a person settles a step, each with when to say it."""

    def command(verb: str, *note: str) -> str:
        return shlex.join(["fanin", "saga", verb, short(row.id), step.name, *note])

    ways = [("when it is done", command("resolve", "--note", "what was done"))]
    if step.status == "undo_failed":
        ways.insert(0, ("try it again", command("retry")))
    return [*ways, ("give it up", command("abandon", "--note", "why it is not undone"))]


def _check(verbs: tuple[str, ...], verb: str, name: str | None, limit: int) -> None:
    if verb not in verbs:
        raise BadOption(f"{verb!r}: there are {', '.join(verbs)}")
    if (verb == "list") is not (name is None):
        raise BadOption(
            f"{verb}: " + ("the list takes no name" if verb == "list" else "name the flow, by its id or key")
        )
    if not 1 <= limit <= 10_000:
        raise BadOption(f"--limit {limit}: give 1 to 10000")
