"""A part that ends with a job of its own: it starts the job and waits for it as a row, while its worker is free.

    nest   -> the nested job, made once however often the part is run
           -> the part waits
    refuse -> a job that may not be: ended from the beginning, for people and for its event; the part is failed
    the end of the nested job -> `waiting.rise` -> the part ends

A part that has ended otherwise (its job was closed, an operator took it over) leaves the nested job to `orphans`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.errors import LeaseLost
from fanin.domain.model import Claim, NewJob, Spec
from fanin.protocol import close, ending, redrive, split
from fanin.protocol.steps import Again, Room, Txn, TxnFactory, one
from fanin.protocol.submit import Chunks

SQL = Room("nest")
LIVE = ("open", "running")


class Nested(Enum):
    """What became of the part."""

    WAITS = "waits"
    COMPLETED = "completed"
    """There is nothing to wait for: the job stood there and has completed, or it had no parts."""
    FAILED = "failed"
    """It has ended badly, and nothing of it can be run again."""
    REFUSED = "refused"
    """The job may not be."""


def nest(held: Claim, job: NewJob, parts: int, chunks: Chunks, anew: bool = False) -> Txn[tuple[Nested, str]]:
    """Make the job, unless it stands there from an earlier attempt, and let the part wait for it.

    ``anew``: the part has had another job, with other items, which is left behind. A job that was closed or has failed
    is redriven. Says what became of it, and the job that the part ends with: the
    last of those that followed the nested one. Raises `LeaseLost` (nothing is written) if the claim does not hold its
    part, `KeyConflict` if the job stands there with other parts.
    """
    if anew:
        yield from _leave_behind(held, job.id)
    fresh = yield from split.create(job, parts, chunks)
    if fresh and parts:  # it goes on, and nobody else sees it yet
        yield from _begin(held, job.id, written=True)
        return Nested.WAITS, job.id
    return (yield from _wait(held, job, fresh, lambda: nest(held, job, parts, chunks, anew)))


def rejoin(held: Claim, job: NewJob) -> Txn[tuple[Nested, str]]:
    """`nest` for a part whose job was made before the part was claimed. Of ``job`` only the id counts.

    That job may have ended badly before anybody waited for it. It is redriven only in a later run of the job above.
    """
    *_, above_run, _, _ = one((yield SQL.standing(bucket=held.bucket, id=held.job_id)))
    return (yield from _wait(held, job, False, lambda: rejoin(held, job), int(above_run)))


def _leave_behind(held: Claim, nested_id: str) -> Txn[None]:
    """What the part of a step has ended with before, or left running when it was stopped, does not count any more."""
    for other in (yield from left_behind(held.bucket, held.job_id, held.idx)):
        if other != nested_id:
            yield close.SQL.lock_all_stripes(bucket=held.bucket, job_id=other)
            yield from close.stop(held.bucket, other, "what it was made of has been made again")
    yield redrive.SQL.leave_behind(bucket=held.bucket, job_id=held.job_id, kept=nested_id)


def _wait(
    held: Claim, job: NewJob, fresh: bool, again_from: TxnFactory[tuple[Nested, str]], before: int | None = None
) -> Txn[tuple[Nested, str]]:
    last, status, run, attempts, give_up_after = yield from _last(job)
    again = 0
    if status in ("failed", "cancelled") and (before is None or run < before):
        try:
            again = yield from redrive.redrive(job.bucket, last, run, attempts, None, give_up_after, owned=True)
        except Again:  # not only that: all of this
            raise Again(again_from) from None
        status = "running" if again else status
    if status in LIVE and not (yield SQL.lock_live(bucket=job.bucket, id=last)):
        raise Again(again_from)  # it has ended since we looked
    if status in LIVE and before is not None and run < before:
        yield SQL.pause_as_above(bucket=job.bucket, id=last, above_id=held.job_id)
    if status not in LIVE:
        yield from _hold(held)
        return (Nested.COMPLETED if status == "completed" else Nested.FAILED), last
    yield from _begin(held, job.id, written=fresh or again > 0)
    return Nested.WAITS, last


def _begin(held: Claim, nested_id: str, written: bool) -> Txn[None]:
    """Let the part wait. ``written``: this transaction has made the nested job, or opened a new run of it."""
    token = _token(held)
    taken = yield SQL.take_held(**token)
    begun = yield SQL.begin_to_wait(**token, nested_id=nested_id, never=limits.NEVER_SECONDS)
    if taken:
        one(begun)
    else:
        yield from _said_before(held, written)


def refuse(held: Claim, job: NewJob, reason: str) -> Txn[None]:
    """Say that the job which the part would end with may not be: it stands there from now on, ended, with its event
    and without parts. The part is not touched. Raises `LeaseLost` (nothing is written) if the claim does not hold it.
    """
    fresh = yield SQL.refuse(
        bucket=job.bucket, id=job.id, task=job.task, queue=job.queue, reason=reason, priority=job.priority,
        attempts=job.attempts, parent_id=job.parent_id, root_id=job.root_id, depth=job.depth,
        waiter_id=job.waiter_id, waiter_idx=job.waiter_idx,
    )  # fmt: skip
    if not (yield SQL.take_held(**_token(held))):
        status, token, _ = yield from _look(held)
        if fresh or status != "failed" or token != (held.attempt, held.claim_id):
            raise _lost(held)
    if fresh:
        yield from ending.announce_refused(job.bucket, job.id, job.task, reason)


def orphans(bucket: int) -> Txn[list[tuple[str, int]]]:
    """Parts (job id, idx) whose nested jobs are to be cancelled, then forgotten."""
    return [(job_id, idx) for job_id, idx in (yield SQL.orphaning(bucket=bucket, limit=limits.REAP_PARTS))]


def left_behind(bucket: int, job_id: str, idx: int) -> Txn[list[str]]:
    """The jobs to `abandon` for such a part."""
    return [nested for (nested,) in (yield SQL.live_nested(bucket=bucket, job_id=job_id, idx=idx))]


def abandon(bucket: int, nested_id: str, job_id: str, idx: int) -> Txn[bool]:
    """Cancel a nested job whose part has ended. False if it has ended too, or the part is about to be run again."""
    yield close.SQL.lock_all_stripes(bucket=bucket, job_id=nested_id)
    if not (yield SQL.lock_live(bucket=bucket, id=nested_id)):
        return False
    if not (yield SQL.has_ended(bucket=bucket, job_id=job_id, idx=idx)):
        return False
    return (yield from close.stop(bucket, nested_id, "the part that waited for it has ended"))


def forget(bucket: int, job_id: str, idx: int) -> Txn[bool]:
    """Strike the part off the list. False if it is not on it any more, or a job of it goes on."""
    if (yield SQL.live_nested(bucket=bucket, job_id=job_id, idx=idx)):
        return False
    if not (yield SQL.forget_nested(bucket=bucket, job_id=job_id, idx=idx)):
        return False
    if (
        yield SQL.live_nested(bucket=bucket, job_id=job_id, idx=idx)
    ):  # it was run again since we looked, and has ended
        raise Again(lambda: forget(bucket, job_id, idx))
    return True


def _last(job: NewJob) -> Txn[tuple[str, str, int, int, float | None]]:
    """(id, status, run, attempts, deadline after its start) of the job, or of the last one that followed it."""
    job_id, give_up_after = job.id, job.give_up_after
    while True:
        status, _, run, successor, attempts = one((yield SQL.standing(bucket=job.bucket, id=job_id)))
        if status == "completed" and successor is not None:
            following = identity.successor_id(job_id, "then", run)
            if (yield SQL.standing(bucket=job.bucket, id=following)):
                job_id, give_up_after = following, msgspec.json.decode(successor, type=Spec).give_up_after
                continue
        return job_id, status, int(run), int(attempts), give_up_after


def _hold(held: Claim) -> Txn[None]:
    status, token, _ = yield from _look(held)
    if status != "running" or token != (held.attempt, held.claim_id):
        raise _lost(held)


def _said_before(held: Claim, written: bool) -> Txn[None]:
    """This very claim waits, or has waited and has its end; a batch may have got that end before it waited.

    ``written``: the nested job was made or has got a new run since this transaction began. Whoever did that waits; if
    nobody does, it was this one, which comes too late.
    """
    status, token, waiting = yield from _look(held)
    ended = status in ("succeeded", "failed") and not written
    if token != (held.attempt, held.claim_id) or not (waiting or ended):
        raise _lost(held)


def _look(held: Claim) -> Txn[tuple[str, tuple[int, str], bool]]:
    rows = yield SQL.look_at_waiter(bucket=held.bucket, job_id=held.job_id, idx=held.idx)
    status, attempt, claim_id, waiting = one(rows)
    return status, (attempt, claim_id), bool(waiting)


def _token(held: Claim) -> dict[str, Any]:
    return {
        "bucket": held.bucket, "job_id": held.job_id, "idx": held.idx, "attempt": held.attempt,
        "claim_id": held.claim_id,
    }  # fmt: skip


def _lost(held: Claim) -> LeaseLost:
    return LeaseLost(f"part {held.idx} of job {held.job_id}: attempt {held.attempt} does not hold it any more")
