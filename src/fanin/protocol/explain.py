"""What is known of how a job came to be what it is, in few rows: the timeline is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fanin.domain.model import JobRow
from fanin.protocol import read
from fanin.protocol.steps import Room, Row, Rows, Txn

SQL = Room("explain")

SHOWN = 5
"""Of each kind of line so many of the first and so many of the last."""
MANY = 1_000
"""The same of a single part: all of them, as a rule."""


class Known(msgspec.Struct, frozen=True):
    """Rows of the statements of the same names. ``part`` is None if the whole job is asked for."""

    job: JobRow
    attempts: Rows
    deeds: Rows
    repairs: Rows
    ends: Rows
    family: Rows
    workers: Rows
    troubled: Rows
    part: Row | None = None


def known(bucket: int, job_id: str, buckets: Iterable[int], idx: int | None = None) -> Txn[Known | None]:
    """None if there is no such job. ``buckets``: where jobs that its parts have started may lie."""
    job = yield from read.job(bucket, job_id)
    if job is None:
        return None
    whole = idx is None
    which: dict[str, Any] = {
        "bucket": bucket,
        "job_id": job_id,
        "everything": whole,
        "idx": idx,
        "shown": SHOWN if whole else MANY,
    }
    attempts = yield SQL.attempts(**which)
    deeds = yield SQL.deeds(**which)
    repairs = yield SQL.repairs(**which)
    ends = yield SQL.ends(bucket=bucket, job_id=job_id, shown=SHOWN)
    if not whole:
        found = yield SQL.part(bucket=bucket, job_id=job_id, idx=idx)
        return Known(job, attempts, deeds, repairs, ends, (), (), (), found[0] if found else None)
    family: list[Row] = []
    for other in buckets:
        family += yield SQL.family(bucket=other, job_id=job_id, shown=2 * SHOWN)
    workers = yield SQL.workers(bucket=bucket, job_id=job_id)
    troubled = yield SQL.troubled(bucket=bucket, job_id=job_id, shown=SHOWN)
    return Known(job, attempts, deeds, repairs, ends, family, workers, troubled)
