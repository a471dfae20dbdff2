"""Pause a job: none of its parts is claimed until it is resumed. Running parts go on, deadlines fire.

    pause, resume -> the job row; a claim looks there
                  -> walk, again and again: its pending parts are held back, or let go

The items of a split job are parts of its batches' jobs: the same transaction writes the rows of these first.

Whoever walks may die: upkeep walks on.
"""

from __future__ import annotations

from fanin.domain import identity, limits
from fanin.domain.errors import NotAllowedNow, UnknownJob
from fanin.protocol import deeds
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Again, Room, Txn

SQL = Room("pause")


def pause(bucket: int, job_id: str, deed: Deed) -> Txn[bool]:
    """Stop the claims of a job. False if it is paused already. Raises `UnknownJob`, `NotAllowedNow`."""
    batches = yield from _lock_batches(bucket, job_id)
    return (yield from pause_row(bucket, job_id, deed, batches))


def pause_row(bucket: int, job_id: str, deed: Deed, batches: bool = False) -> Txn[bool]:
    """`pause` by one who holds the job's row already, and must not wait for those of its batches.

    ``batches``: they are locked, and paused too.
    """
    status = yield from _locked(bucket, job_id)
    if (yield from deeds.written(bucket, job_id, deed)) is not None:
        return True
    below = (yield SQL.pause_batches(bucket=bucket, job_id=job_id)) if batches else ()
    if not (yield SQL.pause_job(bucket=bucket, job_id=job_id)):
        if status not in ("open", "running"):
            raise NotAllowedNow(f"job {job_id} is {status}: only a job that has not ended can be paused")
        if not below:
            return False
    yield from deeds.write_down(bucket, job_id, "paused", deed)
    return True


def resume(bucket: int, job_id: str, deed: Deed) -> Txn[bool]:
    """Let the claims of a job go on. False if it is not paused. Raises `UnknownJob`."""
    batches = yield from _lock_batches(bucket, job_id)
    yield from _locked(bucket, job_id)
    if (yield from deeds.written(bucket, job_id, deed)) is not None:
        return True
    below = (yield SQL.resume_batches(bucket=bucket, job_id=job_id)) if batches else ()
    rows = (yield SQL.resume_job(bucket=bucket, job_id=job_id)) or below
    if not rows:
        return False
    yield from deeds.write_down(bucket, job_id, "resumed", deed)
    yield SQL.ring(queue=rows[0][0])
    return True


def walking(bucket: int) -> Txn[list[str]]:
    """Jobs to `walk`."""
    return [job_id for (job_id,) in (yield SQL.walking(bucket=bucket, limit=limits.REAP_PARTS))]


def walking_of(bucket: int, job_id: str) -> Txn[list[str]]:
    """Those of them that are a job, and the jobs of its batches."""
    return [one for (one,) in (yield SQL.walking_of(bucket=bucket, job_id=job_id, limit=limits.REAP_PARTS))]


def walk(bucket: int, job_id: str) -> Txn[bool]:
    """Hold back, or let go, the next portion of a job's parts. False if the walk has come to its end."""
    rows = yield SQL.place(bucket=bucket, job_id=job_id)
    if not rows:
        return False
    first, paused, queue = rows[0]
    past = first + limits.CHUNK_PARTS
    portion = {"bucket": bucket, "job_id": job_id, "first": first, "past": past}
    yield SQL.lock_portion(**portion)
    write = SQL.hold_parts if paused else SQL.free_parts
    changed = yield write(**portion, held=limits.HELD_SECONDS)
    found = yield SQL.first_from(bucket=bucket, job_id=job_id, past=past)
    onward = found[0][0] if found else None
    if not (yield SQL.advance(bucket=bucket, job_id=job_id, first=first, paused=bool(paused), next=onward)):
        raise Again(lambda: walk(bucket, job_id))
    if changed and not paused:
        yield SQL.ring(queue=queue)
    return onward is not None


def came(bucket: int, job_id: str, first: int) -> Txn[None]:
    """Parts from index ``first`` on have been added to a job, in this transaction."""
    yield SQL.came(bucket=bucket, job_id=job_id, first=first)


def _lock_batches(bucket: int, job_id: str) -> Txn[bool]:
    """Lock the jobs of a split job's batches. False if it is no such job, or has ended."""
    rows = yield SQL.batches(bucket=bucket, job_id=job_id)
    if rows:
        ids = sorted(identity.nested_id(job_id, n) for n in range(rows[0][0]))
        yield SQL.lock_batches(bucket=bucket, ids=ids)
    return bool(rows)


def _locked(bucket: int, job_id: str) -> Txn[str]:
    """Its state."""
    rows = yield SQL.lock_job(bucket=bucket, job_id=job_id)
    if not rows:
        raise UnknownJob(f"there is no job {job_id}")
    return str(rows[0][0])
