"""From the rows of a flow to moments that a person can read, in the order of time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from fanin.domain.flows import FlowRow, StepRow, starts
from fanin.domain.model import JobRow
from fanin.domain.timeline import Explanation, Moment
from fanin.runtime.timeline import SHORT

Jobs = Mapping[str, tuple[JobRow, JobRow]]
"""By id of what a step or its undo started: that job, and the one whose parts are meant, which may be the same."""

ENDS = {"done": "was done", "failed": "has failed", "skipped": "was skipped"}


def flow_explanation(row: FlowRow, steps: Sequence[StepRow], jobs: Jobs) -> Explanation:
    """When each step started and ended, what skipped it, and how the flow ended."""
    named = f"flow {row.name}" + (f" ({row.key})" if row.key else "")
    plan = f"created: {len(steps)} step{'s' if len(steps) != 1 else ''} of {named}"
    moments = [Moment(row.created_at, "created", plan, run=1)]
    ends: dict[int, tuple[float, str]] = {}
    """Of each step when it ended, and how: ``done``, ``failed`` or ``skipped``."""
    for step in steps:
        for job_id, verb in ((step.job_id, "step"), (step.undo_job_id, "the undo of step")):
            if job_id is not None and job_id in jobs:
                moments += _job(f"{verb} {step.name}", *jobs[job_id])
        if step.job_id is not None and step.job_id in jobs:
            job = jobs[step.job_id][1]
            ends[step.n] = job.finished_at or time.time(), "done" if job.status == "completed" else "failed"
    names = {step.n: step.name for step in steps}
    for step in steps:
        if step.status == "skipped" and step.job_id is None:
            before = [(names[n], *ends[n]) for n in step.after if n in ends]
            at = max((at for _, at, _ in before), default=row.finished_at or row.created_at)
            ends[step.n] = at, "skipped"
            why = "the flow was stopped"
            if not starts(step.condition, [end for *_, end in before]):
                why = f"it starts if {step.condition}, and " + ", ".join(
                    f"{name} {ENDS[end]}" for name, _, end in before
                )
            moments.append(Moment(at, "skipped", f"step {step.name} was skipped: {why}"))
        if step.note:
            moments.append(Moment(row.finished_at or time.time(), "resumed", f"step {step.name}: {step.note}"))
    moments.sort(key=lambda moment: moment.at)
    if row.finished_at is not None:
        why = f": {row.reason}" if row.reason else ""
        moments.append(Moment(row.finished_at, "ended", f"run {row.run} ended: {row.status}{why}", run=row.run))
    else:
        why = f": {row.reason or row.cause}" if row.cause else ""
        moments.append(Moment(time.time(), "now", f"the flow is {row.status}{why}", run=row.run))
    return Explanation(row.id, row.status, row.cause, row.reason, moments, [], [])


def _job(what: str, first: JobRow, meant: JobRow) -> Iterator[Moment]:
    yield Moment(first.created_at, "child", f"{what} started: job {meant.id[:SHORT]} of {meant.task}", job=meant.id)
    if meant.finished_at is None:
        return
    why = f": {meant.reason}" if meant.reason else ""
    kind = "failed" if meant.status == "failed" else "successor"
    ended = f"{what} ended: job {meant.id[:SHORT]} {meant.status}{why}"
    yield Moment(meant.finished_at, kind, ended, job=meant.id, run=meant.run)
