"""How far a flow is, in four statements however many steps it has: for people who watch it."""

from __future__ import annotations

from typing import Any

from fanin.domain.flows import EXPAND, FlowProgress, StepProgress
from fanin.protocol import flow
from fanin.protocol.steps import Room, Txn

SQL = Room("watching")
NOT_BEGUN: tuple[Any, ...] = (None, None, None, 0, 0, 0, 0, None, False)


def progress(bucket: int, flow_id: str, limit: int) -> Txn[FlowProgress | None]:
    """With all steps if there are at most ``limit``, else with so many of those of which a job goes on. None if there
    is no such flow."""
    row = yield from flow.row(bucket, flow_id)
    if row is None:
        return None
    states: dict[str, int] = dict((yield SQL.states(bucket=bucket, flow_id=flow_id)))
    everything = sum(states.values()) <= limit
    steps = yield SQL.steps(bucket=bucket, flow_id=flow_id, everything=everything, limit=limit)
    begun = [(job_id,) for *_, job_id in steps if job_id is not None]
    jobs = {
        job_id: (meant, began, ended, *map(int, counts), status, (own or paused) is not None)
        for job_id, meant, began, ended, status, own, paused, *counts in (
            yield SQL.jobs(bucket=bucket, expand=EXPAND, rows=begun)
        )
    }
    found = [StepProgress(n, name, status, *jobs.get(job_id, NOT_BEGUN)) for n, name, status, job_id in steps]
    return FlowProgress(row, states, found)
