"""The end of a nested job settles the part that waits for it: the same count, one job higher."""

from __future__ import annotations

import msgspec

from fanin.domain import policy
from fanin.domain.model import NESTED
from fanin.protocol import counting
from fanin.protocol.counting import Endings
from fanin.protocol.steps import Room, Txn, one

SQL = Room("waiting")


class Risen(msgspec.Struct, frozen=True):
    """The part that waits, the nested job that ended (the last one, where successors followed), and why it is no
    success."""

    job_id: str
    idx: int
    nested_id: str
    failure: str | None


def rise(bucket: int, risen: Risen) -> Txn[Endings]:
    """Settle and count the waiting part. How jobs end by that: the one above, or none.

    Nothing is counted if the part does not wait any more, or its job has been closed.
    """
    job_id, idx = risen.job_id, risen.idx
    rows = yield SQL.take_waiting(bucket=bucket, job_id=job_id, idx=idx)
    if not rows:
        return {}
    ((stripe, judged),) = rows
    rule = policy.decode(one((yield counting.SQL.policy(bucket=bucket, job_id=job_id)))[0])
    if judged or (risen.failure is not None and rule.judges_failures):
        yield counting.SQL.lock_stripes(bucket=bucket, job_id=job_id)
    if not (yield SQL.lock_open_stripe(bucket=bucket, job_id=job_id, stripe=stripe)):
        one((yield SQL.let_go(bucket=bucket, job_id=job_id, idx=idx)))
        return {}
    status, result = ("succeeded", NESTED + risen.nested_id) if risen.failure is None else ("failed", None)
    ((attempt,),) = yield SQL.settle_waiting(bucket=bucket, job_id=job_id, idx=idx, status=status, result=result)
    failed: list[counting.Failed] = []
    if risen.failure is not None:
        error = {"type": "NestedFailed", "message": risen.failure, "traceback": ""}
        text = msgspec.json.encode(error).decode()
        yield SQL.log_failed(bucket=bucket, job_id=job_id, idx=idx, attempt=attempt, error=text)
        failed = [(job_id, idx, attempt, text)]
    counted = yield from counting.count(bucket, [(job_id, stripe, status)], failed)
    assert not counted.closed, "a stripe that we hold was closed"
    return counted.endings
