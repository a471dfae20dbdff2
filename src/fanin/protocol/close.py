"""T8, T9: end a run early (cancel, finish, give up), and sweep the parts that a closed job leaves behind.

Fail fast, too many failures and quorum close a job too; they are judged where parts are counted, in ``finish``.
"""

from __future__ import annotations

from fanin.domain import limits, policy
from fanin.domain.errors import UnknownJob
from fanin.domain.policy import Ending
from fanin.protocol import counting, deeds, ending
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Room, Txn, one

SQL = Room("close")


def cancel(bucket: int, job_id: str, deed: Deed | None = None) -> Txn[bool]:
    """Cancel a job. True if this call ended it, False if it had ended before. Raises `UnknownJob`.

    Without a ``deed`` it must not be said again where a later run may stand.
    """
    done = deed or deeds.deed()
    return (yield from _by_operator(bucket, job_id, policy.cancelled(done.reason), "cancelled", done))


def stop(bucket: int, job_id: str, reason: str) -> Txn[bool]:
    """Cancel a job by a rule. All stripes are locked, and under their locks the rule was asked."""
    did = yield from _close(bucket, job_id, policy.cancelled(reason))
    if did:
        yield from deeds.write_down(bucket, job_id, "cancelled", deeds.deed(reason=reason))
    return did


def finish_now(bucket: int, job_id: str, deed: Deed) -> Txn[bool]:
    """Complete a job with what has arrived; its successor is due. True if this call ended it, False if it had ended.

    Raises `UnknownJob`.
    """
    return (yield from _by_operator(bucket, job_id, policy.finished(deed.reason), "finished", deed))


def give_up(bucket: int, job_id: str) -> Txn[bool]:
    """End a job whose deadline has passed, by its policy. False if it has ended, or the deadline was moved."""
    yield SQL.lock_all_stripes(bucket=bucket, job_id=job_id)
    return (yield from _close(bucket, job_id, None))


def overdue(bucket: int) -> Txn[list[str]]:
    """Jobs to `give_up`."""
    return [job_id for (job_id,) in (yield SQL.overdue_jobs(bucket=bucket, limit=limits.REAP_PARTS))]


def too_old(bucket: int, job_id: str) -> Txn[bool]:
    """End a job of one part that was to start before a moment which has passed. False if it has started, or ended.

    The part is locked before the stripe, as by a worker that reports: who claims it, by whatever rules, has started it
    or finds it locked.
    """
    if (yield SQL.start_in_time(bucket=bucket, job_id=job_id)):
        return False  # and it is not asked about any more
    if not (yield SQL.lock_unstarted(bucket=bucket, job_id=job_id)):
        return False
    yield SQL.lock_all_stripes(bucket=bucket, job_id=job_id)
    rows = yield SQL.stale(bucket=bucket, job_id=job_id)
    if not rows:
        return False
    yield from _end(bucket, job_id, policy.too_old(rows[0][0]))
    return True


def stale(bucket: int) -> Txn[list[str]]:
    """Jobs to ask `too_old` about: the moment until which they were to start has passed."""
    return [job_id for (job_id,) in (yield SQL.stale_jobs(bucket=bucket, limit=limits.REAP_PARTS))]


def unswept(bucket: int) -> Txn[list[tuple[str, int]]]:
    """(job id, stripe) pairs to `sweep`."""
    return [(job_id, stripe) for job_id, stripe in (yield SQL.unswept(bucket=bucket, limit=limits.REAP_PARTS))]


def sweep(bucket: int, job_id: str, stripe: int) -> Txn[int]:
    """Abandon a batch of live parts of a closed stripe. How many; 0 if it is open again, or all are locked."""
    if not (yield SQL.lock_closed_stripe(bucket=bucket, job_id=job_id, stripe=stripe)):
        return 0
    swept = yield SQL.sweep_parts(bucket=bucket, job_id=job_id, stripe=stripe, limit=limits.SWEEP_PARTS)
    if swept:
        one((yield SQL.count_swept(bucket=bucket, job_id=job_id, stripe=stripe, swept=len(swept))))
    return len(swept)


def _by_operator(bucket: int, job_id: str, how: Ending, what: str, deed: Deed) -> Txn[bool]:
    yield SQL.lock_all_stripes(bucket=bucket, job_id=job_id)
    if (yield from deeds.written(bucket, job_id, deed)) is not None:
        return True
    did = yield from _close(bucket, job_id, how)
    if did:
        yield from deeds.write_down(bucket, job_id, what, deed)
    return did


def _close(bucket: int, job_id: str, how: Ending | None) -> Txn[bool]:
    """All stripes are locked. ``how`` is None for a give-up: then the deadline is part of the guard."""
    rows = yield SQL.standing(bucket=bucket, job_id=job_id)
    if not rows:
        raise UnknownJob(f"there is no job {job_id}")
    status, policy_text, overdue = rows[0]
    if status not in ("open", "running") or (how is None and not overdue):
        return False
    if how is None:
        how = policy.gave_up(policy.decode(policy_text))
    yield from _end(bucket, job_id, how)
    return True


def _end(bucket: int, job_id: str, how: Ending) -> Txn[None]:
    """All stripes of the job are locked."""
    totals = yield from counting.sums(bucket, job_id)
    yield counting.SQL.close_stripes(bucket=bucket, job_id=job_id)
    yield from ending.end(bucket, {job_id: (how, totals)})
