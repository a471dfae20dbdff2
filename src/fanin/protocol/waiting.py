"""The end of nested jobs settles the parts that wait for them: the same count, one job higher."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from fanin.domain import policy
from fanin.domain.model import NESTED, NESTED_FAILED
from fanin.protocol import counting
from fanin.protocol.counting import Counted
from fanin.protocol.steps import Room, Rows, Txn, one

SQL = Room("waiting")


class Risen(msgspec.Struct, frozen=True):
    """The part that waits, the nested job that ended (the last one, where successors followed), and why it is no
    success."""

    job_id: str
    idx: int
    nested_id: str
    failure: str | None


class _Place(NamedTuple):
    """Where a waiting part is counted, and whether all stripes of its job have to be held for that."""

    risen: Risen
    stripe: int
    judges: bool


def rise(bucket: int, risen: Sequence[Risen]) -> Txn[Counted]:
    """Settle and count the waiting parts. How jobs end by that: those above, or none.

    Nothing is counted of a part that does not wait any more, or whose job has been closed. Each class of locks is taken
    in order, and all of it is sent before any is looked at.
    """
    places = yield from _take(bucket, sorted(risen, key=lambda one: (one.job_id, one.idx)))
    still_open: dict[tuple[str, int], Rows] = {}
    for job_id, group in groupby(places, key=lambda place: place.risen.job_id):
        mine = list(group)
        if any(place.judges for place in mine):
            yield counting.SQL.lock_stripes(bucket=bucket, job_id=job_id)
        for stripe in sorted({place.stripe for place in mine}):
            still_open[job_id, stripe] = yield SQL.lock_open_stripe(bucket=bucket, job_id=job_id, stripe=stripe)
    settled: list[tuple[Risen, int, Rows]] = []
    let_go: list[Rows] = []
    for one_risen, stripe, _ in places:
        place: dict[str, Any] = {"bucket": bucket, "job_id": one_risen.job_id, "idx": one_risen.idx}
        if not still_open[one_risen.job_id, stripe]:
            let_go.append((yield SQL.let_go(**place)))
            continue
        status, result = _end(one_risen)
        settled.append((one_risen, stripe, (yield SQL.settle_waiting(**place, status=status, result=result))))
    for rows in let_go:
        one(rows)
    failed: list[counting.Failed] = []
    for one_risen, _, rows in settled:
        ((attempt,),) = rows
        if one_risen.failure is not None:
            failed.append((yield from _log(bucket, one_risen, attempt)))
    changes = [(one_risen.job_id, stripe, _end(one_risen)[0]) for one_risen, stripe, _ in settled]
    judging = frozenset(place.risen.job_id for place in places if place.judges)
    return (yield from counting.count_held(bucket, changes, failed, judging))


def _take(bucket: int, risen: Sequence[Risen]) -> Txn[list[_Place]]:
    """The parts that still wait: from here on nobody else ends them."""
    taken: list[tuple[Risen, Rows]] = []
    rules: dict[str, Rows] = {}
    for one_risen in risen:
        job_id = one_risen.job_id
        taken.append((one_risen, (yield SQL.take_waiting(bucket=bucket, job_id=job_id, idx=one_risen.idx))))
        if one_risen.failure is not None and job_id not in rules:
            rules[job_id] = yield counting.SQL.policy(bucket=bucket, job_id=job_id)
    failures = {job_id: policy.decode(one(rows)[0]).judges_failures for job_id, rows in rules.items()}
    return [
        _Place(one_risen, stripe, bool(judged) or (one_risen.failure is not None and failures[one_risen.job_id]))
        for one_risen, rows in taken
        for stripe, judged in rows
    ]


def _end(risen: Risen) -> tuple[str, str | None]:
    """(status, result) of the part."""
    return ("succeeded", NESTED + risen.nested_id) if risen.failure is None else ("failed", None)


def _log(bucket: int, risen: Risen, attempt: int) -> Txn[counting.Failed]:
    error = {"type": NESTED_FAILED, "message": risen.failure, "traceback": ""}
    text = msgspec.json.encode(error).decode()
    yield SQL.log_failed(bucket=bucket, job_id=risen.job_id, idx=risen.idx, attempt=attempt, error=text)
    return risen.job_id, risen.idx, attempt, text
