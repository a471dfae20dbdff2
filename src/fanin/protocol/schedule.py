"""Fire the slots of schedules: one job per slot, whichever of many schedulers sees it.

The mark says up to which moment all slots are decided. Whoever decides one locks the schedule's row, looks whether the
mark still is where it was seen, makes the job, and moves the mark, in one transaction. The job's id follows from the
schedule's name and the slot, so even a mark that went back could not make a second one.
"""

from __future__ import annotations

from typing import NamedTuple

from fanin.domain import identity, limits
from fanin.domain.errors import NotAllowedNow, UnknownSchedule
from fanin.domain.model import Fired, Firing, NewJob, ScheduleRow
from fanin.protocol import read, submit
from fanin.protocol.steps import Room, Row, Txn, one

SQL = Room("schedule")


class Slot(NamedTuple):
    """A slot to decide. ``seen``: where the mark was when it was chosen; by hand it has no meaning."""

    name: str
    at: float
    seen: float = 0.0
    missed: int = 0
    overlap: str = "skip"
    by_hand: bool = False


class Prepared(NamedTuple):
    """The job of a slot, read and checked before the transaction begins."""

    job: NewJob
    parts: int
    chunks: submit.Chunks


class Look(NamedTuple):
    """All schedules of a bucket, and the database's time."""

    now: float
    rows: dict[str, ScheduleRow]


def declare(bucket: int, name: str, timing: str, spec: str) -> Txn[bool]:
    """Make a schedule known, or bring it up to date. True if anything changed."""
    fresh = yield SQL.declare(bucket=bucket, name=name, timing=timing, spec=spec)
    if fresh:
        return True
    return bool((yield SQL.redeclare(bucket=bucket, name=name, timing=timing, spec=spec)))


def look(bucket: int) -> Txn[Look]:
    """What there is to decide in this bucket."""
    rows = yield SQL.look(bucket=bucket)
    now = max((row[-1] for row in rows), default=0.0)
    return Look(now, {row[0]: ScheduleRow(*row[:-1]) for row in rows})


def latest(bucket: int, job_id: str | None) -> Txn[tuple[bool, float | None]]:
    """Whether the job of the latest firing or a successor of it is live, and when the last of them ended."""
    if job_id is None:
        return False, None
    live, ended = one((yield SQL.latest_job(bucket=bucket, job_id=job_id)))
    return bool(live), ended


def fire(bucket: int, slot: Slot, prepared: Prepared) -> Txn[Fired]:
    """Create the job of a slot and note it, or note that it is skipped because the job before is still live.

    ``waiting`` (the job before is live, and ``overlap`` is ``queue``) and ``passed`` (somebody else has decided it, it
    is paused, or the slot has not come) write nothing.
    """
    row = yield from _lock(bucket, slot)
    if row is None:
        return Fired("passed")
    if slot.overlap != "allow" and (yield from latest(bucket, row[1]))[0]:
        if slot.overlap == "queue":
            return Fired("waiting", row[1])
        yield from _decide(bucket, slot, "skipped", row[1])
        return Fired("skipped", row[1])
    yield from _create(prepared)
    yield from _decide(bucket, slot, "fired", prepared.job.id)
    return Fired("fired", prepared.job.id)


def pass_over(bucket: int, slot: Slot) -> Txn[bool]:
    """Note that a slot came too late to be fired. False if it was decided meanwhile."""
    if (yield from _lock(bucket, slot)) is None:
        return False
    yield from _decide(bucket, slot, "missed", None)
    return True


def fill(bucket: int, slot: Slot, prepared: Prepared) -> Txn[bool]:
    """Fire a slot that was decided otherwise, or lies before the schedule began. False if it was fired.

    Raises `UnknownSchedule`, and `NotAllowedNow` for a slot that is not decided yet.
    """
    (mark, *_) = yield from _held(bucket, slot.name)
    if slot.at > mark:
        raise NotAllowedNow(f"the slot at {slot.at:.0f} of schedule {slot.name!r} is still to be decided")
    if (yield from read.job(bucket, prepared.job.id)) is not None:
        return False
    if not (yield SQL.log_filled(bucket=bucket, name=slot.name, slot=slot.at, job_id=prepared.job.id)):
        return False  # it was fired, and its job has been purged
    yield from submit.create(*prepared)
    yield from _trim(bucket, slot.name)
    return True


def pause(bucket: int, name: str, note: str | None) -> Txn[bool]:
    """Fire no further slots. False if it was paused before. Raises `UnknownSchedule`."""
    yield from _held(bucket, name)
    return bool((yield SQL.pause(bucket=bucket, name=name, note=note)))


def resume(bucket: int, name: str) -> Txn[bool]:
    """Fire again, from the next slot on. False if it was not paused. Raises `UnknownSchedule`."""
    yield from _held(bucket, name)
    return bool((yield SQL.resume(bucket=bucket, name=name)))


def ask(bucket: int, name: str) -> Txn[float]:
    """Ask for a firing now. The moment that is its slot, after those of all that were asked for before; that of an
    earlier request if it still stands."""
    (_, _, _, asked, _) = yield from _held(bucket, name)
    if asked is not None:
        return float(asked)
    return float(one((yield SQL.ask(bucket=bucket, name=name)))[0])


def note_error(bucket: int, name: str, error: str) -> Txn[bool]:
    """Say why a slot that has come is not fired."""
    return bool((yield SQL.note_error(bucket=bucket, name=name, error=error)))


def forget(bucket: int, name: str) -> Txn[bool]:
    """Remove a schedule and the fate of its slots; its jobs stay. False if it is not known."""
    if not (yield SQL.lock(bucket=bucket, name=name)):
        return False
    yield SQL.forget_firings(bucket=bucket, name=name)
    one((yield SQL.forget(bucket=bucket, name=name)))
    return True


def firings(bucket: int, name: str, limit: int) -> Txn[list[Firing]]:
    """What became of the latest slots, newest first."""
    rows = yield SQL.firings(bucket=bucket, name=name, limit=limit)
    return [Firing(slot, what, job, missed, bool(hand), at) for slot, what, job, missed, hand, at in rows]


def _held(bucket: int, name: str) -> Txn[Row]:
    rows = yield SQL.lock(bucket=bucket, name=name)
    if not rows:
        raise UnknownSchedule(
            f"there is no schedule {name!r}: `fanin schedules` lists them. One is known when a worker of the "
            "application that declares it has started"
        )
    return rows[0]


def _lock(bucket: int, slot: Slot) -> Txn[Row | None]:
    """The schedule's row, locked; None if this slot is not to be decided any more, or not yet."""
    rows = yield SQL.lock(bucket=bucket, name=slot.name)
    if not rows:
        return None
    mark, _, paused, asked, now = row = one(rows)
    if slot.by_hand:
        return row if asked == slot.at else None
    return row if mark == slot.seen and paused is None and mark < slot.at <= now else None


def _create(prepared: Prepared) -> Txn[None]:
    """A job that stands, by a mark that went back, is left as it was made, whatever would be asked for now."""
    if (yield from read.job(prepared.job.bucket, prepared.job.id)) is None:
        yield from submit.create(*prepared)


def _decide(bucket: int, slot: Slot, what: str, job_id: str | None) -> Txn[None]:
    fired = job_id if what == "fired" else None
    if slot.by_hand:
        one((yield SQL.answer(bucket=bucket, name=slot.name, slot=slot.at, job_id=fired)))
    else:
        one((yield SQL.advance(bucket=bucket, name=slot.name, slot=slot.at, seen=slot.seen, job_id=fired)))
    yield SQL.log_firing(
        bucket=bucket, name=slot.name, slot=slot.at, by_hand=slot.by_hand, what=what, job_id=job_id, missed=slot.missed
    )
    yield from _trim(bucket, slot.name)


def _trim(bucket: int, name: str) -> Txn[None]:
    old = yield SQL.oldest_kept(bucket=bucket, name=name, keep=limits.SCHEDULE_FIRINGS)
    if old:
        yield SQL.trim(bucket=bucket, name=name, at=old[0][0], slot=old[0][1])


def bucket_of(name: str, buckets: int) -> int:
    """The bucket of a schedule and of its jobs."""
    return identity.bucket_of(identity.schedule_id(name), buckets)
