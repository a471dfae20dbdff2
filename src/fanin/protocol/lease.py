"""T3, T4, T7: claim parts, renew the claim, save a checkpoint, and let go of leases that ran out.

A lease is a hint for liveness only. Safety rests on the token (attempt and claim id) that every later write names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fanin.domain import limits
from fanin.domain.model import Claim
from fanin.protocol import finish
from fanin.protocol.steps import Again, Room, Txn

SQL = Room("lease")


class Look(NamedTuple):
    """Seconds until the next delayed part or lease comes due, and until the next deadline (None: none waits)."""

    due_in: float | None
    give_up_in: float | None
    flow_give_up_in: float | None
    progress_in: float | None
    stale_in: float | None
    flows_ending: bool
    unswept: bool
    orphaning: bool
    walking: bool = False

    @property
    def soonest(self) -> float | None:
        moments = (self.due_in, self.give_up_in, self.flow_give_up_in, self.progress_in, self.stale_in)
        return 0.0 if self.walking else min((s for s in moments if s is not None), default=None)


def claim(
    bucket: int, queue: str, leases: dict[str, float], limit: int, claim_id: str, worker: str
) -> Txn[list[Claim]]:
    """Claim at most ``limit`` ready parts of the tasks in ``leases`` (task name to lease in seconds), in order."""
    if limit <= 0 or not leases:
        return []
    rows = yield SQL.claim_parts(
        bucket=bucket,
        queue=queue,
        tasks=list(leases),
        leases=[float(seconds) for seconds in leases.values()],
        limit=min(limit, limits.CLAIM_PARTS),
        claim_id=claim_id,
        worker=worker,
    )
    last = sorted((row[0], row[1], row[3] - 1) for row in rows if row[3] == row[4] and row[3] > 1)
    lost = set((yield SQL.lost_before(bucket=bucket, rows=last))) if last else set()
    claims = [
        Claim(bucket, job_id, idx, task, attempt, claim_id, allowed, payload, checkpoint, (job_id, idx) in lost, stripe)
        for job_id, idx, task, attempt, allowed, payload, checkpoint, stripe in rows
    ]
    claims.sort(key=lambda c: c.key)
    return claims


def any_ready(bucket: int, queue: str) -> Txn[bool]:
    """Whether a claim of this queue would probably find something."""
    return bool((yield SQL.any_ready(bucket=bucket, queue=queue)))


def renew(bucket: int, held: Sequence[tuple[Claim, float]], worker: str | None = None) -> Txn[list[Claim]]:
    """Extend the leases of ``held`` (claim, seconds). Returns the claims that are lost: their work must stop.

    Those that somebody else holds, or whose job was closed, are noted in the history.
    """
    rows = sorted((c.job_id, c.idx, c.attempt, c.claim_id, float(lease)) for c, lease in held)
    renewed = set((yield SQL.renew_parts(bucket=bucket, rows=rows)))
    lost: list[Claim] = []
    for c, _ in held:
        # By the whole token: one process may hold an overtaken and the present claim of the same part.
        if (c.job_id, c.idx, c.attempt, c.claim_id) in renewed:
            continue
        if (yield SQL.still_held(bucket=bucket, job_id=c.job_id, idx=c.idx, attempt=c.attempt, claim_id=c.claim_id)):
            raise Again(lambda: renew(bucket, held, worker))  # its row moved while the renewal was under way
        lost.append(c)
    if lost:
        yield from _note_stopped(bucket, lost, worker)
    return lost


def checkpoint(held: Claim, lease: float, value: str) -> Txn[bool]:
    """Save ``value`` (JSON) for a later attempt and renew the lease. False if the claim is lost; nothing is written."""
    saved = yield SQL.save_checkpoint(
        bucket=held.bucket,
        job_id=held.job_id,
        idx=held.idx,
        attempt=held.attempt,
        claim_id=held.claim_id,
        lease=lease,
        checkpoint=value,
    )
    if not saved:
        yield from _note_stopped(held.bucket, [held], None)
    return bool(saved)


def _note_stopped(bucket: int, lost: Sequence[Claim], worker: str | None) -> Txn[None]:
    rows = sorted((c.job_id, c.idx, c.attempt, c.claim_id) for c in lost)
    yield SQL.log_stopped(bucket=bucket, rows=rows, worker=worker)


class Woken(NamedTuple):
    """The queues that have something new, and (job id, idx, attempt, worker) of each lease that had run out."""

    queues: list[str]
    lost: list[tuple[str, int, int, str]]

    def __bool__(self) -> bool:
        return bool(self.queues)


def wake(bucket: int) -> Txn[Woken]:
    """Make parts ready whose delay is over or whose lease has run out."""
    rows = yield SQL.wake_parts(bucket=bucket, limit=limits.WAKE_PARTS)
    lost = sorted((job, idx, attempt, worker) for job, idx, attempt, status, worker, _ in rows if status == "running")
    if lost:
        yield SQL.log_lost(bucket=bucket, rows=lost)
    return Woken(sorted({row[-1] for row in rows}), lost)


def spent(bucket: int) -> Txn[list[tuple[str, int, int]]]:
    """(job id, idx, attempt) of parts to `finish.reap`: their last attempt has run out of its lease."""
    seen = yield SQL.spent_parts(bucket=bucket, limit=limits.REAP_PARTS)
    return [(job_id, idx, attempt) for job_id, idx, attempt in seen]


def reap(bucket: int) -> Txn[int]:
    """Fail what ran out of its lease without an attempt left. How many parts."""
    return (yield from finish.reap(bucket, (yield from spent(bucket))))


def look(bucket: int) -> Txn[Look]:
    """What waits for a moment in this bucket."""
    ((due_in, give_up_in, flow_give_up_in, progress_in, stale_in, *found),) = yield SQL.look(bucket=bucket)
    if (
        due_in is not None and due_in > limits.DELAY_SECONDS_MAX * 2
    ):  # parts that wait for nested jobs, or are held back
        due_in = None
    return Look(due_in, give_up_in, flow_give_up_in, progress_in, stale_in, *map(bool, found))
