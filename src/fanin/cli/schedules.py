"""``fanin schedules``: what is fired when, what became of it, and what an operator may do about it."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json, say
from fanin.cli.tables import print_lines, short, text
from fanin.domain.errors import BadOption, UnknownSchedule
from fanin.domain.timing import Timing, soon
from fanin.protocol import schedule

if TYPE_CHECKING:
    from fanin.domain.model import ScheduleRow
    from fanin.stores.base import Store

USAGE = "fanin schedules [OPTIONS] | fanin schedules show|pause|resume|fire|forget NAME"
VERBS = ("list", "show", "pause", "resume", "fire", "forget")
COLOURS = {"active": "green", "paused": "yellow", "overdue": "red", "failing": "red", "over": "dim"}
OVERDUE_SECONDS = 60.0
HEADINGS = ("schedule", "cron", "zone", "state", "next", "last", "job", "said")


def schedules(
    verb: Annotated[str, Parameter(help=f"{', '.join(VERBS)} (default: list).")] = "list",
    name: Annotated[str | None, Parameter(name="NAME", help="The schedule.")] = None,
    /,
    *,
    note: Annotated[str | None, option("With pause: why, for those who look.")] = None,
    limit: Annotated[int, Parameter(help="With show: how many of the latest slots.")] = 20,
    coming: Annotated[int, Parameter(name="--next", help="How many of the next slots, in JSON and with show.")] = 5,
    common: Common = DEFAULT,
) -> int:
    """List the schedules with their next slots and latest jobs, look at one, or pause, resume, fire or forget it.

    A schedule is declared in code, by app.schedule, and known here once a worker of its application has started.
    """
    _check(verb, name, note, limit, coming)
    with open_app(common) as app:
        if name is None:
            return _list(app.store, coming, common)
        bucket = schedule.bucket_of(name, app.store.buckets)
        if verb == "show":
            return _show(app.store, bucket, name, limit, coming, common)
        said = _do(app.store, bucket, verb, name, note)
    if common.json:
        print_json(said)
    else:
        say(f"schedule {name}: {said['said']}")
    return exits.OK


def _do(store: Store, bucket: int, verb: str, name: str, note: str | None) -> dict[str, Any]:
    if verb == "pause":
        did = store.run(lambda: schedule.pause(bucket, name, note))
        return _said(name, did, "paused; its slots pass until it is resumed" if did else "was paused before")
    if verb == "resume":
        did = store.run(lambda: schedule.resume(bucket, name))
        return _said(name, did, "goes on with its next slot" if did else "is not paused")
    if verb == "fire":
        asked = store.run(lambda: schedule.ask(bucket, name))
        return _said(name, True, "will be fired by the next worker of its application") | {"slot": asked}
    if not store.run(lambda: schedule.forget(bucket, name)):
        raise UnknownSchedule(f"there is no schedule {name!r}: `fanin schedules` lists them")
    return _said(name, True, "forgotten; its jobs stay. Code that still declares it makes it known again")


def _said(name: str, did: bool, said: str) -> dict[str, Any]:
    return {"name": name, "changed": did, "said": said}


def _list(store: Store, coming: int, common: Common) -> int:
    found = [fact for bucket in range(store.buckets) for fact in _facts(store, bucket, coming)]
    found.sort(key=lambda fact: str(fact["name"]))
    if common.json:
        print_json(found)
    elif not found:
        console(common).print("no schedules: they are declared by app.schedule, and known when a worker has started")
    else:
        _print(found, common)
    return exits.OK


def _facts(store: Store, bucket: int, coming: int) -> list[dict[str, Any]]:
    seen = store.read(lambda: schedule.look(bucket))
    return [_fact(store, bucket, row, seen.now, coming) for row in seen.rows.values()]


def _fact(store: Store, bucket: int, row: ScheduleRow, now: float, coming: int) -> dict[str, Any]:
    """A schedule for ``--json``: the fields that docs/cli.md lists."""
    timing = msgspec.json.decode(row.timing, type=Timing)
    latest = store.read(lambda: schedule.firings(bucket, row.name, 1))
    live = store.read(lambda: schedule.latest(bucket, row.job_id))[0]
    spec = msgspec.json.decode(row.spec)
    due = timing.after(row.mark)
    waiting = live and spec.get("overlap") == "queue"
    if row.paused_at is not None:
        state = "paused"
    elif due is None:
        state = "over"
    elif row.error is not None:
        state = "failing"
    elif due < now - OVERDUE_SECONDS and not waiting:
        state = "overdue"
    else:
        state = "active"
    return {
        "name": row.name, "cron": timing.cron, "tz": timing.tz, "start": timing.start, "end": timing.end,
        "state": state, "next": soon(timing, max(row.mark, now), coming), "mark": row.mark,
        "last": msgspec.to_builtins(latest[0]) if latest else None, "job": row.job_id, "live": live,
        "paused_at": row.paused_at, "note": row.note, "asked_at": row.asked_at, "error": row.error, **spec,
    }  # fmt: skip


def _print(found: list[dict[str, Any]], common: Common) -> None:
    lines = []
    for fact in found:
        more, last = fact["note"] or fact["error"] or "", fact["last"]
        state = text(fact["state"], COLOURS[fact["state"]])
        coming = _local(fact, fact["next"][0]) if fact["next"] and fact["state"] != "paused" else ""
        fate = f"{last['what']} {_local(fact, last['slot'])}" if last else ""
        job = short(fact["job"]) if fact["job"] else ""
        plain = [fact["name"], fact["cron"], fact["tz"], coming, fate, job, more]
        cells = [text(one) for one in plain]
        lines.append([*cells[:3], state, *cells[3:]])
    print_lines(console(common), HEADINGS, lines, cut=0, fold=(0, 4, 5), leave=(2, 1), said=7)


def _show(store: Store, bucket: int, name: str, limit: int, coming: int, common: Common) -> int:
    fact = next((fact for fact in _facts(store, bucket, coming) if fact["name"] == name), None)
    if fact is None:
        raise UnknownSchedule(f"there is no schedule {name!r}: `fanin schedules` lists them")
    latest = [msgspec.to_builtins(one) for one in store.read(lambda: schedule.firings(bucket, name, limit))]
    if common.json:
        print_json(fact | {"firings": latest})
        return exits.OK
    _print([fact], common)
    out = console(common)
    out.print(f"task {fact['task']}, then {fact['then'] or 'nothing'}; misfire {fact['misfire']}, "
              f"overlap {fact['overlap']}", markup=False)  # fmt: skip
    if fact["next"]:
        out.print("next: " + "\n      ".join(_local(fact, slot) for slot in fact["next"]), markup=False)
    for one in latest:
        missed = f", {one['missed']} missed" if one["missed"] else ""
        hand = ", by hand" if one["by_hand"] else ""
        job = f" job {short(one['job_id'])}" if one["job_id"] else ""
        out.print(f"{_local(fact, one['slot'])} {one['what']}{job}{hand}{missed}", markup=False)
    return exits.OK


def _local(fact: dict[str, Any], at: float) -> str:
    """A slot as the schedule's zone has it, in the form of all moments."""
    return _in_zone(fact["tz"], at).isoformat(" ", "seconds").replace("+00:00", "Z")


def _in_zone(tz: str, at: float) -> datetime:
    return Timing("* * * * *", tz).local(at)


def _check(verb: str, name: str | None, note: str | None, limit: int, coming: int) -> None:
    from fanin.schedule import check_note

    if verb not in VERBS:
        raise BadOption(f"{verb!r}: there are {', '.join(VERBS)}")
    if verb == "list" and name is not None:
        raise BadOption(f"{name!r}: the list takes no name; see one with: fanin schedules show {shlex.quote(name)}")
    if verb != "list" and name is None:
        raise BadOption(f"{verb}: name the schedule, as in: fanin schedules {verb} nightly")
    if note is not None and verb != "pause":
        raise BadOption("--note goes with pause")
    check_note(note)
    if not 1 <= limit <= 10_000:
        raise BadOption(f"--limit {limit}: give 1 to 10000")
    if not 0 <= coming <= 1_000:
        raise BadOption(f"--next {coming}: give 0 to 1000")
