"""Jobs that ask for it tell how far they are, from time to time: an event, if parts have ended since the last one."""

from __future__ import annotations

import msgspec

from fanin.domain import identity, limits
from fanin.domain.events import PAYLOAD_VERSION, JobProgress
from fanin.protocol.steps import Room, Txn, one

SQL = Room("progress")


def overdue(bucket: int) -> Txn[list[str]]:
    """Jobs whose next event is due."""
    return [job_id for (job_id,) in (yield SQL.overdue(bucket=bucket, limit=limits.REAP_PARTS))]


def tell(bucket: int, job_id: str) -> Txn[bool]:
    """Write the event that is due. False if another worker has, if no part has ended since the last, or the job has."""
    rows = yield SQL.take_moment(bucket=bucket, job_id=job_id)
    if not rows:
        return False
    ((run, status, key, task),) = rows
    counts = one((yield SQL.counts(bucket=bucket, job_id=job_id)))
    succeeded, failed, remaining = (int(count or 0) for count in counts)  # an open job may have no counters yet
    numbered = yield SQL.tell(bucket=bucket, job_id=job_id, told=succeeded + failed)
    if not numbered:
        return False
    ((seq,),) = numbered
    said = JobProgress(PAYLOAD_VERSION, job_id, run, status, succeeded, failed, remaining, key, task)
    key = identity.progress_key(job_id, run, seq)
    yield SQL.announce(bucket=bucket, event_key=key, job_id=job_id, seq=seq, payload=msgspec.json.encode(said).decode())
    return True
