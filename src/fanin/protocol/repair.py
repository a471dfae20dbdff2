"""T14: a job whose counters or flags do not fit its parts is put right under its locks. Nothing is guessed.

    look    -> one snapshot without locks; `fanin.domain.repairs.plan` says what is wrong
    mend    -> parts that wait for what will not come
    recount -> counters, the job's row, and the end of a job that has no part left to wait for

The parts are the authority. A job of which nothing is wrong is not locked, and not written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from fanin.domain import limits
from fanin.domain.identity import NIL
from fanin.domain.repairs import Counter, Plan, Repair, Seen, plan
from fanin.protocol import counting, ending, pause, waiting
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Room, Row, Txn, one

SQL = Room("repair")

WHO = "fanin repair"


class Mended(NamedTuple):
    """``past``: where to go on, None if there are no more parts to mend."""

    lines: list[Repair]
    past: int | None


class Recounted(NamedTuple):
    """``fresh``: something was written. Damage that stands in the log already is told again and not written."""

    lines: list[Repair]
    fresh: bool


def live_jobs(bucket: int, after: str = NIL) -> Txn[list[str]]:
    """A page of the jobs that go on, to `look` at."""
    return [job_id for (job_id,) in (yield SQL.live_jobs(bucket=bucket, after=after, limit=limits.REPAIR_PAGE_MAX))]


def unswept_jobs(bucket: int, after: str = NIL) -> Txn[list[str]]:
    """A page of the ended jobs of which a counter says that parts live."""
    return [job_id for (job_id,) in (yield SQL.unswept_jobs(bucket=bucket, after=after, limit=limits.REPAIR_PAGE_MAX))]


def look(bucket: int, job_id: str) -> Txn[Seen | None]:
    """A job in one snapshot; None if there is none of this id. All of its parts are read."""
    rows = yield SQL.look(bucket=bucket, job_id=job_id)
    if not rows:
        return None
    status, outcome, run, planned, sealed, open_stripes, stripes, walk_from, *rest = rows[0][:15]
    succeeded, failed, abandoned, paused, give_up_in, keys, announced = rest
    stored: dict[int, Counter] = {}
    counted: dict[int, Counter] = {}
    wrong = astray = 0
    for is_stored, stripe, *numbers, is_sealed, is_closed, wrong_here, astray_here in (row[15:] for row in rows):
        if stripe is not None:
            (stored if is_stored else counted)[stripe] = Counter._make((*numbers, bool(is_sealed), bool(is_closed)))
            wrong, astray = wrong + wrong_here, astray + astray_here
    return Seen(
        status, outcome, run, planned, sealed, open_stripes, stripes, walk_from, (succeeded, failed, abandoned),
        bool(paused), None if give_up_in is None else -give_up_in, keys, bool(announced), stored, counted,
        wrong, astray,
    )  # fmt: skip


def mend(bucket: int, job_id: str, repair_id: str, first: int = 0) -> Txn[Mended]:
    """Put right the next parts of a job, from index ``first`` on, that wait for what will not come.

    A moment that lies too far away becomes now. A part that waits for a job which does not go on is let go: it is run
    again, and finds what became of that job. No part is counted otherwise by that.
    """
    locked = yield SQL.lock_wrong(bucket=bucket, job_id=job_id, first=first, limit=limits.REPAIR_PARTS)
    if not locked:
        return Mended([], None)
    chosen = [idx for (idx,) in locked]
    lines: list[Repair] = []
    for idx, status, ready, waits, due_at, far, nested in sorted(
        (yield SQL.look_at_wrong(bucket=bucket, job_id=job_id, chosen=chosen))
    ):
        held = due_at >= limits.HELD_SECONDS
        before = {"status": status, "ready": bool(ready), "waiting": bool(waits), "due_at": due_at}
        if waits and not nested:
            one((yield waiting.SQL.let_go(bucket=bucket, job_id=job_id, idx=idx)))
            changed: dict[str, Any] = {"status": "pending", "ready": True, "waiting": False}
        elif waits and due_at != limits.NEVER_SECONDS:
            changed = {"due_at": limits.NEVER_SECONDS}
        elif not waits and held and status == "pending" and ready:
            changed = {"ready": False}
        elif not waits and far and (status == "running" or not (ready or held)):
            changed = {"ready": False, "due_at": None}
        else:
            continue  # it was wrong when this began, and is not any more
        if "status" not in changed:
            now = {"ready": bool(ready), "due_at": due_at, **changed}
            rows = yield SQL.set_moment(
                bucket=bucket, job_id=job_id, idx=idx, status=status, waiting=bool(waits), **now
            )
            changed["due_at"] = one(rows)[0]
        differing = {name: value for name, value in changed.items() if before[name] != value}
        lines.append(Repair(job_id, "part", idx, {name: before[name] for name in differing}, differing))
    yield from _write_down(bucket, job_id, repair_id, lines)
    return Mended(lines, chosen[-1] + 1 if len(chosen) == limits.REPAIR_PARTS else None)


def recount(bucket: int, job_id: str, repair_id: str) -> Txn[Recounted]:
    """Count the parts of a job under the locks of all its stripes, and write what differs. End it, by the same code as
    workers do, if it is running and no part of it lives. Nothing is written where nothing differs.

    Of a job that is damaged nothing is repaired: it is paused, so that nobody goes on with it, and told once.
    """
    yield SQL.lock_stripes(bucket=bucket, job_id=job_id)
    yield SQL.lock_job(bucket=bucket, job_id=job_id)
    seen = yield from look(bucket, job_id)  # later than the locks: whoever was counting has finished
    todo = Plan() if seen is None else plan(seen)
    if seen is None or not todo:
        return Recounted([], False)
    if todo.damage is not None:
        return (yield from _tell(bucket, job_id, repair_id, seen, todo.damage))
    lines = plan_lines(job_id, seen, todo)
    for stripe, should in sorted(todo.stripes.items()):
        stands = {f"seen_{name}": value for name, value in seen.stored[stripe]._asdict().items()}
        one((yield SQL.rewrite_stripe(bucket=bucket, job_id=job_id, stripe=stripe, **should._asdict(), **stands)))
    if todo.job:
        should_be: dict[str, Any] = {**seen.job, **todo.job}
        one(
            (
                yield SQL.rewrite_job(
                    bucket=bucket, job_id=job_id, status=seen.status, run=seen.run,
                    seen_open_stripes=seen.open_stripes, **should_be,
                )
            )
        )  # fmt: skip
    if todo.ends:
        how, counts = yield from counting.natural_end(bucket, job_id)
        yield from ending.end(bucket, {job_id: (how, counts)})
        lines[-1] = msgspec.structs.replace(lines[-1], after={"status": how.status, "outcome": how.outcome})
    yield from _write_down(bucket, job_id, repair_id, lines)
    return Recounted(lines, bool(lines))


def plan_lines(job_id: str, seen: Seen, todo: Plan) -> list[Repair]:
    """What a plan would write, but for the parts. The line of an end stands last, and does not say yet how it ends."""
    if todo.damage is not None:
        return [Repair(job_id, "damaged", 0, {"found": todo.damage}, {})]
    lines = []
    for stripe, should in sorted(todo.stripes.items()):
        stands = seen.stored[stripe]._asdict()
        differing = {name: value for name, value in should._asdict().items() if stands[name] != value}
        lines.append(Repair(job_id, "stripe", stripe, {name: stands[name] for name in differing}, differing))
    if todo.job:
        lines.append(Repair(job_id, "job", 0, {name: seen.job[name] for name in todo.job}, todo.job))
    if todo.ends:
        lines.append(Repair(job_id, "ended", 0, {"status": seen.status, "open_stripes": seen.open_stripes}, {}))
    return lines


def _tell(bucket: int, job_id: str, repair_id: str, seen: Seen, damage: str) -> Txn[Recounted]:
    before = {"found": damage}
    if (yield SQL.told(bucket=bucket, job_id=job_id, before=_json(before))):
        return Recounted([Repair(job_id, "damaged", 0, before, {})], False)
    after = {}
    if seen.status == "running" and not seen.paused:
        yield from pause.pause_row(bucket, job_id, Deed(repair_id, WHO, f"damaged: {damage}"))
        after = {"paused": True}
    line = Repair(job_id, "damaged", 0, before, after)
    yield from _write_down(bucket, job_id, repair_id, [line])
    return Recounted([line], True)


def _write_down(bucket: int, job_id: str, repair_id: str, lines: list[Repair]) -> Txn[None]:
    rows: list[Row] = [(line.what, line.which, _json(line.before), _json(line.after)) for line in lines]
    if rows:
        yield SQL.write_down(bucket=bucket, job_id=job_id, id=repair_id, rows=rows)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
