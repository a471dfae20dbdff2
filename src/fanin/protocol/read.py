"""Read-only transactions for the application, the command line and tests. Pages are bounded, so memory stays flat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fanin.domain.flows import EXPAND, UNDO
from fanin.domain.identity import successor_id
from fanin.domain.limits import JOB_DEPTH_LEVELS
from fanin.domain.model import NESTED_FAILED, Below, Failure, JobRow, Progress, Spec
from fanin.domain.states import JOB_STATES, check_look
from fanin.protocol.steps import Room, Rows, Txn

SQL = Room("read")

PAGE_PARTS = 500


def job(bucket: int, job_id: str) -> Txn[JobRow | None]:
    rows = yield SQL.job(bucket=bucket, id=job_id)
    return JobRow(*rows[0]) if rows else None


def jobs(buckets: Iterable[int], status: str | None, limit: int) -> Txn[list[JobRow]]:
    """The newest jobs over all buckets. Raises `BadOption` for a state or a limit that cannot be."""
    check_look(status, JOB_STATES, limit)
    found: list[JobRow] = []
    for bucket in buckets:
        found += [JobRow(*row) for row in (yield SQL.jobs(bucket=bucket, status=status, limit=limit))]
    return sorted(found, key=lambda j: (j.created_at, j.id), reverse=True)[:limit]


def jobs_like(buckets: Iterable[int], text: str) -> Txn[list[str]]:
    """At most a few ids of jobs whose id begins with ``text`` or whose key is ``text``."""
    prefix = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
    found: list[str] = []
    for bucket in buckets:
        found += [job_id for (job_id,) in (yield SQL.jobs_like(bucket=bucket, prefix=prefix, key=text))]
    return found


def children(buckets: Iterable[int], job_id: str) -> Txn[list[tuple[str, str | None]]]:
    """(job id, step) of the successors (with a step, in the job's own bucket) and of jobs that parts started."""
    found: list[tuple[str, str | None]] = []
    for bucket in buckets:
        found += [(child, step) for child, step in (yield SQL.children(bucket=bucket, id=job_id))]
    return found


def successor(bucket: int, job_id: str) -> Txn[str | None]:
    """The id of the job that followed the latest run, or None (yet)."""
    row = yield from job(bucket, job_id)
    if row is None or row.successor is None:
        return None
    step = msgspec.json.decode(row.successor, type=Spec).step
    born = yield from job(bucket, successor_id(job_id, step, row.run))
    return born.id if born is not None else None


def receiver(bucket: int, job_id: str) -> Txn[str | None]:
    """Who gets the results of a job, in words for people. None if nothing that the database knows does."""
    rows = yield SQL.received(bucket=bucket, id=job_id)
    task, step, successor, waiter_id, waiter_idx, name, behind, undo = rows[0] if rows else (None,) * 8
    if successor is not None:
        return f"task {msgspec.json.decode(successor, type=Spec).task}, which follows it"
    if waiter_id is not None:
        rows = yield SQL.received(bucket=bucket, id=waiter_id)
        task, step, *_, name, behind, undo = rows[0]
        if task != EXPAND:
            return f"part {waiter_idx} of job {waiter_id}, which waits for it"
    if behind is None or (step or "").startswith(UNDO):
        return None
    if msgspec.json.decode(behind, type=list[int]):
        return f"the steps behind step {name!r} of its flow"
    return f"what undoes step {name!r} of its flow" if undo is not None else None


def progress(bucket: int, job_id: str, tree: bool = False) -> Txn[Progress | None]:
    """The counts of a job; with ``tree`` those of all jobs below it too, while its own state is told."""
    rows = yield SQL.progress(bucket=bucket, id=job_id)
    if not rows:
        return None
    status, outcome, run, *own, closed, batch = rows[0]
    if tree:
        ((jobs, *counts),) = yield SQL.tree(bucket=bucket, id=job_id)
    elif batch is not None:
        jobs, ((*counts, left),) = 1, (yield SQL.progress_below(bucket=bucket, id=job_id))
        counts[1], counts[4] = counts[1] - left, counts[4] + left
    else:
        jobs, counts = 1, own
    total, remaining, succeeded, failed, abandoned = map(int, counts)
    if closed and not tree:  # what the sweeper has not reached yet is abandoned all the same
        abandoned, remaining = abandoned + remaining, 0
    return Progress(status, outcome, run, total, remaining, succeeded, failed, abandoned, int(jobs))


def results(bucket: int, job_id: str, first: int, limit: int = PAGE_PARTS) -> Txn[list[tuple[int, str, str | None]]]:
    """(idx, status, result as JSON) of the parts from index ``first`` on."""
    rows = yield SQL.results(bucket=bucket, id=job_id, first=first, limit=limit)
    return [(idx, status, result) for idx, status, result in rows]


def failures(bucket: int, job_id: str, first: int, limit: int = PAGE_PARTS) -> Txn[list[Failure]]:
    """The parts without a result, from index ``first`` on."""
    rows = yield SQL.failures(bucket=bucket, id=job_id, first=first, limit=limit)
    found: dict[int, Failure] = {}
    for idx, status, attempt, error, payload in rows:
        said = msgspec.json.decode(error) if error else {"type": "Abandoned", "message": "the job ended first"}
        found[idx] = Failure(
            idx, status, attempt, said.get("type", ""), said.get("message", ""), said.get("traceback", ""),
            msgspec.json.decode(payload),
        )  # fmt: skip
    return list(found.values())


def below(bucket: int, job_id: str, idx: int) -> Txn[Below | None]:
    """The first failure at the bottom of the nested jobs below a part that failed with one; one statement a level. None
    if nothing more is known there than at the part itself."""
    found: Below | None = None
    for _ in range(JOB_DEPTH_LEVELS):
        rows = yield SQL.below(bucket=bucket, id=job_id, idx=idx)
        if not rows or rows[0][2] is None:
            break
        job_id, idx, error = rows[0]
        said = msgspec.json.decode(error)
        found = Below(job_id, idx, said.get("type", ""), said.get("message", ""))
        if found.type != NESTED_FAILED:
            break
    return found


def part(bucket: int, job_id: str, idx: int) -> Txn[dict[str, Any] | None]:
    rows = yield SQL.part(bucket=bucket, id=job_id, idx=idx)
    names = (
        "idx",
        "status",
        "attempt",
        "attempts_allowed",
        "due_at",
        "worker",
        "task",
        "payload",
        "result",
        "checkpoint",
    )
    return dict(zip(names, rows[0], strict=True)) if rows else None


def running(bucket: int, job_id: str, limit: int = PAGE_PARTS) -> Txn[list[dict[str, Any]]]:
    """The parts that are held now: idx, attempt, worker, seconds until the lease ends, or the job they wait for."""
    rows = yield SQL.running(bucket=bucket, id=job_id, limit=limit)
    return [dict(zip(("idx", "attempt", "worker", "lease_seconds", "waits_for"), row, strict=True)) for row in rows]


def account(bucket: int, job_id: str) -> Txn[dict[str, int]]:
    """What a job cost: parts, attempts, leases lost, reports refused, retries, releases, ends, successors."""
    (row,) = yield SQL.account(bucket=bucket, id=job_id)
    names = (
        "parts",
        "attempts",
        "leases_lost",
        "stale_refused",
        "retried",
        "released",
        "events",
        "successors",
    )
    return {name: int(value) for name, value in zip(names, row, strict=True)}


def history(bucket: int, job_id: str, limit: int = PAGE_PARTS) -> Txn[list[dict[str, Any]]]:
    rows = yield SQL.history(bucket=bucket, id=job_id, limit=limit)
    names = ("at", "idx", "attempt", "what", "worker", "holder", "error")
    return [dict(zip(names, row, strict=True)) for row in rows]


def outgoing(buckets: Iterable[int], status: str | None, limit: int) -> Txn[list[dict[str, Any]]]:
    """The newest events over all buckets, with what became of them."""
    names = (
        "key", "job", "seq", "type", "status", "payload", "at", "due_at", "published_at", "parked_at", "tries", "relay",
        "error",
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    for bucket in buckets:
        rows = yield SQL.outgoing(bucket=bucket, status=status, limit=limit)
        found += [dict(zip(names, row, strict=True)) for row in rows]
    return sorted(found, key=lambda row: (row["at"], row["key"]), reverse=True)[:limit]


def events(bucket: int, job_id: str) -> Txn[Rows]:
    """(event key, seq, type, payload, at, published at) of a job's events."""
    return (yield SQL.events(bucket=bucket, id=job_id))


def backlog(buckets: Iterable[int], queues: Iterable[str], tasks: list[str]) -> Txn[bool]:
    """Whether any part of these tasks in these queues is still live: ready, delayed, or held."""
    for bucket in buckets:
        for queue in queues:
            ((some,),) = yield SQL.backlog(bucket=bucket, queue=queue, tasks=tasks)
            if some:
                return True
    return False
