"""Skip a part: an operator declares that it has succeeded, with a result, or failed. It counts like any other end."""

from __future__ import annotations

import msgspec

from fanin.domain import identity
from fanin.domain.errors import NotAllowedNow, UnknownJob, UnknownPart
from fanin.domain.events import EndedBy
from fanin.protocol import counting, deeds, ending, finish
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Again, Room, Txn

SQL = Room("skip")


def skip(bucket: int, job_id: str, idx: int, result: str | None, deed: Deed) -> Txn[bool]:
    """End a part that has not ended: with ``result`` (JSON), or as failed if that is None. True if that ends the job.

    ``deed.id`` is the claim under which the part then stands. Raises `UnknownJob`, `UnknownPart`, `NotAllowedNow`.
    """
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
        return (yield from _explain(bucket, job_id, idx, result, deed))
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


def _explain(bucket: int, job_id: str, idx: int, result: str | None, deed: Deed) -> Txn[bool]:
    """Why there was nothing to skip. If the same call was heard before: as it was answered then, but for the end."""
    rows = yield SQL.look_at_part(bucket=bucket, job_id=job_id, idx=idx)
    if not rows:
        if not (yield SQL.job_exists(bucket=bucket, job_id=job_id)):
            raise UnknownJob(f"there is no job {job_id}")
        raise UnknownPart(f"job {job_id} has no part {idx}: they count from 0")
    ((status, claim_id),) = rows
    if claim_id == deed.id:
        return False
    if status in ("pending", "running"):
        raise Again(lambda: skip(bucket, job_id, idx, result, deed))
    raise NotAllowedNow(f"part {idx} of job {job_id} is {status}: only a part that has not ended can be skipped")
