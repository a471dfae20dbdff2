"""How jobs and times look to people."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from fanin.domain.identity import SCHEDULED
from fanin.domain.model import Finding, JobRow, Progress

STATUS_COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "open": "cyan"}


def short(job_id: str) -> str:
    """As much of an id as a person needs to name the job."""
    return job_id[:13]


def number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def span(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 m 5 s``, ``2 h 10 m``, ``4 d 3 h``."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, smaller, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {small_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def moment(at: float | None) -> str:
    """A time as an ISO text in UTC, to the second."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def status(row: JobRow) -> str:
    """The state, and the outcome where it says more."""
    more = {"with_failures": ", with failures", "partial": ", partial", "gave_up": ", gave up", "refused": ", refused"}
    return row.status + (", paused" if row.paused_at is not None else more.get(row.outcome or "", ""))


def name(row: JobRow) -> str:
    """What a person would call the job: the command of a map, else its key, its schedule, or its task."""
    meta = msgspec.json.decode(row.meta) if row.meta else None
    command = meta.get("command") if isinstance(meta, dict) and row.task == "fanin.map" else None
    return " ".join(command.split()) if command else row.key or _schedule(row) or row.task


def _schedule(row: JobRow) -> str | None:
    step = row.step or ""
    return step.removeprefix(SCHEDULED) if step.startswith(SCHEDULED) else None


def job_facts(row: JobRow, progress: Progress) -> dict[str, Any]:
    """A job for ``--json``: the fields that docs/cli.md lists."""
    return {
        "id": row.id, "key": row.key, "task": row.task, "queue": row.queue, "status": row.status,
        "outcome": row.outcome, "reason": row.reason, "run": row.run, "parts": progress.total,
        "remaining": progress.remaining, "succeeded": progress.succeeded, "failed": progress.failed,
        "abandoned": progress.abandoned, "attempts": row.attempts, "priority": row.priority,
        "parent": row.parent_id, "step": row.step, "created_at": row.created_at, "give_up_at": row.give_up_at,
        "finished_at": row.finished_at, "paused_at": row.paused_at,
    }  # fmt: skip


def finding_line(finding: Finding) -> str:
    return ", ".join(f"{key}={value}" for key, value in finding.row.items())
