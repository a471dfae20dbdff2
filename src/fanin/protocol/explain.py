"""What is known of how a job came to be what it is, in few rows: the timeline is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.model import NESTED_FAILED, Below, JobRow
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
    live: Rows
    part: Row | None = None
    below: dict[tuple[int, int], Below] = {}
    """By (part, attempt) that failed with its nested job: what failed first at the bottom of that."""


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
    below = yield from _below(bucket, job_id, attempts)
    deeds = yield SQL.deeds(**which)
    repairs = yield SQL.repairs(**which)
    ends = yield SQL.ends(bucket=bucket, job_id=job_id, shown=SHOWN)
    if not whole:
        found = yield SQL.part(bucket=bucket, job_id=job_id, idx=idx)
        return Known(job, attempts, deeds, repairs, ends, (), (), (), (), found[0] if found else None, below)
    family: list[Row] = []
    for other in buckets:
        family += yield SQL.family(bucket=other, job_id=job_id, shown=2 * SHOWN)
    workers = yield SQL.workers(bucket=bucket, job_id=job_id)
    live: Rows = ()
    if not job.ended:
        live = yield SQL.live(bucket=bucket, job_id=job_id, held=limits.HELD_SECONDS)
    troubled = yield SQL.troubled(bucket=bucket, job_id=job_id, shown=SHOWN)
    return Known(job, attempts, deeds, repairs, ends, family, workers, troubled, live, None, below)


def _below(bucket: int, job_id: str, attempts: Rows) -> Txn[dict[tuple[int, int], Below]]:
    """Of the latest failure of each part: what stands below speaks of no earlier one."""
    latest = {idx: (attempt, error) for _, idx, attempt, what, _, _, error, _ in attempts if what == "failed"}
    found = {}
    for idx, (attempt, error) in latest.items():
        if error is not None and msgspec.json.decode(error).get("type") == NESTED_FAILED:
            below = yield from read.below(bucket, job_id, idx)
            if below is not None:
                found[idx, attempt] = below
    return found
