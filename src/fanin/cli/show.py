"""``fanin show``: one job, or one part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.drawing import flow_named, show_flow
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json
from fanin.cli.steps import below_of, purpose
from fanin.cli.tables import STATUS_COLOURS, job_facts, moment, number, short, status
from fanin.domain.durations import span
from fanin.domain.errors import BadOption, UnknownPart
from fanin.protocol import read

if TYPE_CHECKING:
    from rich.console import Console

    import fanin
    from fanin.domain.model import Below, Failure, JobRow, Progress

USAGE = "fanin show [OPTIONS] JOB|FLOW"
SHOWN = 10


def show(
    job: Annotated[str, Parameter(help="The id of a job or a flow, the beginning of it, or its key.")],
    /,
    *,
    part: Annotated[int | None, option("Show one part in full, by its index from 0.")] = None,
    failures: Annotated[int, option("How many failed parts to list (default: 10).")] = SHOWN,
    mermaid: Annotated[bool, option("A flow as a Mermaid diagram.")] = False,
    history: Annotated[bool, option("List the attempts that did not simply succeed.")] = False,
    common: Common = DEFAULT,
) -> int:
    """Show a job: its counts, what runs now, what failed and why, what it cost, and the job that follows it. Or draw a
    flow."""
    if failures < 0:
        raise BadOption(f"--failures {failures}: give 0 or more")
    with open_app(common) as app:
        if part is None and (flow := flow_named(app, job)) is not None:
            return show_flow(app, flow, mermaid, common)
        found = app.job(job)
        if mermaid:
            raise BadOption(f"--mermaid: {job} is a job, and flows alone are drawn so")
        if part is not None:
            return _show_part(app, found, part, common)
        row, progress, tree = found.row(), found.progress(), found.progress(tree=True)
        bucket = app.store.bucket(found.id)
        running = app.store.read(lambda: read.running(bucket, found.id, limit=SHOWN))
        for held in running:
            held["below"] = held["waits_for"] and _below(app.job(held["waits_for"]))
        failed = app.store.read(lambda: read.failures(bucket, found.id, 0, limit=max(failures, 1)))[:failures]
        below = {one.idx: said for one in failed if (said := below_of(app, found.id, one)) is not None}
        successor = found.successor
        facts = job_facts(row, progress) | {
            "tree": {"jobs": tree.jobs, "parts": tree.total, "remaining": tree.remaining},
            "policy": msgspec.json.decode(row.policy), "meta": found.meta(), "running": running,
            "failures": [msgspec.to_builtins(one) | {"below": below.get(one.idx)} for one in failed],
            "account": found.account(),
            "successor": None if successor is None else job_facts(successor.row(), successor.progress()),
        }  # fmt: skip
        if history:
            facts["history"] = [_with_error(entry) for entry in found.history()]
        if common.json:
            print_json(facts)
        else:
            _print(console(common), row, progress, facts, failed, below, purpose(app, row))
    return exits.OK


def _print(
    screen: Console,
    row: JobRow,
    progress: Progress,
    facts: dict[str, Any],
    failed: list[Failure],
    below: dict[int, Below],
    built_in: str | None,
) -> None:
    from rich.markup import escape

    from fanin.runtime.progress import line

    def field(label: str, value: object) -> None:
        screen.print(f"[bold]{label:<10}[/] {escape(str(value))}", soft_wrap=True)

    field("job", row.id)
    if row.key:
        field("key", row.key)
    field("task", (f"{row.task}: {built_in}" if built_in else row.task) + f"   queue {row.queue}   run {row.run}")
    screen.print(f"[bold]{'state':<10}[/] [{STATUS_COLOURS[row.status]}]{status(row)}[/]")
    if row.reason:
        field("reason", row.reason)
    field("parts", line(progress, 0.0).replace("  0/s", "") if progress.total else "none")
    if facts["tree"]["jobs"] > 1:
        tree = facts["tree"]
        done = f"{number(tree['parts'] - tree['remaining'])}/{number(tree['parts'])}"
        field("tree", f"{done} parts in {number(tree['jobs'])} jobs")
    took = "" if row.finished_at is None else f", took {span(row.finished_at - row.created_at)}"
    field("created", moment(row.created_at) + took)
    if row.give_up_at is not None and not row.ended:
        field("gives up", moment(row.give_up_at))
    if row.parent_id:
        field("follows" if row.step else "started by", row.parent_id)
    if isinstance(facts["meta"], dict) and "command" in facts["meta"]:
        field("command", facts["meta"]["command"])
        if facts["meta"].get("then"):
            field("then", facts["meta"]["then"])
    cost = ", ".join(f"{key.replace('_', ' ')} {number(value)}" for key, value in facts["account"].items() if value)
    field("account", cost)
    if facts["successor"] is not None:
        following = facts["successor"]
        field("then job", f"{short(following['id'])} {following['task']}: {following['status']}")
    if facts["running"]:
        screen.print("\n[bold]running now[/]")
        for held in facts["running"]:
            if held["waits_for"] is not None:
                screen.print(f"  part {held['idx']}, attempt {held['attempt']}, waits for {held['below']}")
                continue
            left = held["lease_seconds"]
            lease = f"lease ends in {span(left)}" if left > 0 else f"lease ended {span(-left)} ago"
            screen.print(f"  part {held['idx']}, attempt {held['attempt']}, {escape(held['worker'] or '?')}, {lease}")
    if failed:
        screen.print(f"\n[bold]without a result[/] ({number(progress.failed + progress.abandoned)} parts)")
        for failure in failed:
            first, _, rest = failure.message.partition("\n")
            under = f"; {below[failure.idx]}" if failure.idx in below else ""
            given = escape(f"({built_in})" if built_in else _input(failure.payload))
            screen.print(f"  part {failure.idx} {given} [red]{failure.status}[/] at attempt {failure.attempt}: "
                         f"{escape(failure.type)}: {escape(first)}{escape(under)}", soft_wrap=True)  # fmt: skip
            for text in rest.splitlines()[-5:]:
                screen.print(f"      {escape(text)}", soft_wrap=True)
    for entry in facts.get("history", []):
        said = (entry["error"] or {}).get("message", "").partition("\n")[0]
        holder = f", held by attempt {entry['holder']}" if entry["holder"] is not None else ""
        screen.print(
            f"  {moment(entry['at'])} part {entry['idx']} attempt {entry['attempt']} {entry['what']}{holder} "
            f"{escape(entry['worker'] or '')} {escape(said)}", soft_wrap=True,
        )  # fmt: skip


def _show_part(app: fanin.App, job: fanin.Job, idx: int, common: Common) -> int:
    bucket = app.store.bucket(job.id)
    found = app.store.read(lambda: read.part(bucket, job.id, idx))
    if found is None:
        raise UnknownPart(f"job {short(job.id)} has no part {idx}: its {job.progress().total} parts count from 0")
    for name in ("payload", "result", "checkpoint"):
        if found[name] is not None:
            found[name] = msgspec.json.decode(found[name])
    if found["status"] == "failed":
        found["below"] = msgspec.to_builtins(app.store.read(lambda: read.below(bucket, job.id, idx)))
    found["history"] = [_with_error(entry) for entry in job.history() if entry["idx"] == idx]
    if common.json:
        print_json(found)
        return exits.OK
    screen = console(common)
    for name, value in found.items():
        if value is None or name == "history":
            continue
        if name == "due_at":
            value = moment(value)
        text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        screen.print(f"[bold]{name:<17}[/]", end=" ")
        screen.print(text, markup=False, soft_wrap=True)
    for entry in found["history"]:
        said = (entry["error"] or {}).get("message", "")
        screen.print(
            f"{moment(entry['at'])} attempt {entry['attempt']} {entry['what']} {said}", markup=False, soft_wrap=True
        )
        if trace := (entry["error"] or {}).get("traceback"):
            screen.print(trace, markup=False, soft_wrap=True)
    return exits.OK


def _below(job: fanin.Job) -> str:
    """The nested job of a part, and how far it is."""
    ended = job.successor if job.status == "completed" and job.successor is not None else job
    progress = ended.progress()
    done = f"{number(progress.total - progress.remaining)} of {number(progress.total)} parts have ended"
    return f"job {short(ended.id)} {ended.row().task}: {done}"


def _input(payload: Any) -> str:
    """What the part was given, short: the input of a map of commands, else the arguments."""
    if isinstance(payload, list) and len(payload) == 1:
        payload = payload[0]
    if isinstance(payload, dict) and "text" in payload and payload.keys() <= {"text", "raw"}:
        payload = payload["text"]
    text = payload if isinstance(payload, str) else msgspec.json.encode(payload).decode()
    return f"({text if len(text) <= 60 else text[:59] + '…'})"


def _with_error(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {"error": msgspec.json.decode(entry["error"]) if entry["error"] else None}
