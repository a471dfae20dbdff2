"""Skip a part: an operator declares that it has succeeded, with a result, or failed. It counts like any other end."""

from __future__ import annotations

import msgspec

from fanin.domain import identity
from fanin.domain.errors import NotAllowedNow, UnknownJob, UnknownPart
from fanin.domain.events import EndedBy
from fanin.protocol import counting, deeds, ending, finish
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Room, Txn

SQL = Room("skip")


def skip(bucket: int, job_id: str, idx: int, result: str | None, deed: Deed) -> Txn[bool]:
    """End a part that has not ended: with ``result`` (JSON), or as failed if that is None. True if that ends the job.

    ``deed.id`` is the claim under which the part then stands. Raises `UnknownJob`, `UnknownPart`, `NotAllowedNow`.
    """
    rows = yield SQL.lock_part(bucket=bucket, job_id=job_id, idx=idx)
    if not rows:
        if not (yield SQL.job_exists(bucket=bucket, job_id=job_id)):
            raise UnknownJob(f"there is no job {job_id}")
        raise unknown_part(job_id, idx)
    ((found,),) = rows
    if (run := (yield from deeds.written(bucket, job_id, deed))) is not None:
        return (yield from _ended(bucket, job_id, idx, run))
    if result is not None and (yield SQL.undoes(bucket=bucket, job_id=job_id)):
        raise NotAllowedNow(
            f"job {job_id} undoes a step by the job that its part {idx} makes, so nobody can say that it was run: skip "
            f"parts of job {identity.nested_id(job_id, idx)}, or cancel this one and say what was done by hand "
            "(FlowRun.resolve)"
        )
    status = "failed" if result is None else "succeeded"
    rows = yield SQL.skip_part(
        bucket=bucket, job_id=job_id, idx=idx, failed=result is None, result=result, claim_id=deed.id, who=deed.who
    )
    if not rows:
        raise NotAllowedNow(f"part {idx} of job {job_id} is {found}: only a part that has not ended can be skipped")
    ((stripe, attempt),) = rows
    failed: list[counting.Failed] = []
    if result is None:
        said = {"type": "Skipped", "message": deed.reason or "declared failed by an operator", "traceback": ""}
        failed = [(job_id, idx, attempt, msgspec.json.encode(said).decode())]
    counted = yield from counting.count(bucket, [(job_id, stripe, status)], failed)
    if counted.closed:
        raise NotAllowedNow(f"job {job_id} has ended: its part {idx} cannot be skipped any more")
    yield from ending.end(bucket, counted.endings, lambda _: EndedBy(idx, attempt, deed.who))
    if failed:
        log = [(*part[:3], "failed", deed.who, None, part[3]) for part in failed]
        yield finish.SQL.log_attempts(bucket=bucket, rows=log)
    yield from deeds.write_down(bucket, job_id, "skipped", deed, idx)
    return job_id in counted.endings


def unknown_part(job_id: str, idx: int) -> UnknownPart:
    return UnknownPart(f"job {job_id} has no part {idx}: they count from 0")


def _ended(bucket: int, job_id: str, idx: int, run: int) -> Txn[bool]:
    """Whether the end of this part was that of this run. (Its event may be gone: then it is not known any more.)"""
    rows = yield SQL.said(bucket=bucket, event_key=identity.finished_key(job_id, run))
    by = msgspec.json.decode(rows[0][0])["ended_by"] if rows else None
    return by is not None and by["part"] == idx
