"""What is known of how a job or a flow came to be what it is, in few rows: the timeline is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.flows import EXPAND, FlowRow, StepRow
from fanin.domain.model import NESTED_FAILED, Below, JobRow
from fanin.protocol import flow, read, watching
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


class Ran(msgspec.Struct, frozen=True):
    """A job of a step, or of its undo: which job's parts are meant, when it began, and when it ended if it has."""

    meant: str
    began: float
    ended: float | None


class KnownFlow(msgspec.Struct, frozen=True):
    """``jobs``: by id of what steps and their undos started. ``deeds``, ``ends``: by id of those jobs, of those that
    are meant, and of the flow: rows of the statements of the same names, in the order of time."""

    row: FlowRow
    steps: list[StepRow]
    jobs: dict[str, Ran]
    deeds: dict[str, list[Row]]
    ends: dict[str, list[Row]]
    fail_fast: bool


def known_flow(bucket: int, flow_id: str) -> Txn[KnownFlow | None]:
    """None if there is no such flow."""
    row = yield from flow.row(bucket, flow_id)
    if row is None:
        return None
    steps = yield from flow.steps(bucket, flow_id)
    begun = [(job_id,) for step in steps for job_id in (step.job_id, step.undo_job_id) if job_id is not None]
    found = yield watching.SQL.jobs(bucket=bucket, expand=EXPAND, rows=begun)
    jobs = {job_id: Ran(meant, began, ended) for job_id, meant, began, ended, *_ in found if began is not None}
    told = sorted({flow_id, *jobs, *(ran.meant for ran in jobs.values())})
    deeds: dict[str, list[Row]] = {}
    for of_id, *line in (yield SQL.deeds(bucket=bucket, jobs=told, everything=True, idx=None, shown=SHOWN)):
        deeds.setdefault(of_id, []).append(tuple(line))
    ends: dict[str, list[Row]] = {}
    for of_id, *end in (yield SQL.ends(bucket=bucket, jobs=told, shown=2 * SHOWN)):
        ends.setdefault(of_id, []).append(tuple(end))
    ((fail_fast,),) = yield SQL.ends_early(bucket=bucket, flow_id=flow_id)
    return KnownFlow(row, steps, jobs, deeds, ends, bool(fail_fast))


def known(bucket: int, job_id: str, buckets: Iterable[int], idx: int | None = None) -> Txn[Known | None]:
    """None if there is no such job. ``buckets``: where jobs that its parts have started may lie."""
    job = yield from read.job(bucket, job_id)
    if job is None:
        return None
    whole = idx is None
    which: dict[str, Any] = {
        "bucket": bucket,
        "everything": whole,
        "idx": idx,
        "shown": SHOWN if whole else MANY,
    }
    attempts = yield SQL.attempts(job_id=job_id, **which)
    below = yield from _below(bucket, job_id, attempts)
    deeds = [line[1:] for line in (yield SQL.deeds(jobs=[job_id], **which))]
    repairs = yield SQL.repairs(job_id=job_id, **which)
    ends = [end[2:] for end in (yield SQL.ends(bucket=bucket, jobs=[job_id], shown=SHOWN))]
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
