"""Jobs of one part that are made by the end of another job, and by nothing else: successors, listeners, flow steps."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.model import Spec
from fanin.protocol.steps import Room, Txn

SQL = Room("born")


class Born(msgspec.Struct, frozen=True):
    """``id`` follows from what ended, so that a second one of the same collides.

    ``waiter``: the part (job id, idx) that waits for it. ``flow``: the flow and the number of its step.
    """

    id: str
    spec: Spec
    payload: str
    parent_id: str | None
    root_id: str | None
    depth: int
    waiter: tuple[str, int] | None = None
    flow: tuple[str, int] | None = None

    @property
    def refused(self) -> str | None:
        """Why it must not be: then it is born ended, visible and with its event. Its parent's end never fails."""
        if self.depth <= limits.JOB_DEPTH_LEVELS:
            return None
        return (
            f"depth {self.depth} is over the limit of {limits.JOB_DEPTH_LEVELS}: jobs that start jobs of their own "
            "kind must stop somewhere"
        )

    def refused_facts(self) -> dict[str, Any]:
        assert self.refused is not None, f"job {self.id} may be"
        return refused_facts(self.id, self.spec.task, self.refused)

    def create(self, bucket: int) -> Txn[None]:
        spec = self.spec
        waiter_id, waiter_idx = self.waiter or (None, None)
        flow_id, flow_step = self.flow or (None, None)
        row: dict[str, Any] = {
            "bucket": bucket, "id": self.id, "task": spec.task, "queue": spec.queue, "priority": spec.priority,
            "attempts": spec.attempts, "parent_id": self.parent_id, "root_id": self.root_id, "step": spec.step,
            "depth": self.depth, "waiter_id": waiter_id, "waiter_idx": waiter_idx, "flow_id": flow_id,
            "flow_step": flow_step,
        }  # fmt: skip
        if self.refused:
            yield SQL.refuse(**row, reason=self.refused)
            return
        yield SQL.create(**row, give_up_after=spec.give_up_after, stale_after=spec.stale_after, stale=spec.stale)
        yield SQL.create_stripe(bucket=bucket, id=self.id)
        yield SQL.create_part(
            bucket=bucket, id=self.id, queue=spec.queue, task=spec.task, priority=spec.priority,
            attempts=spec.attempts, payload=self.payload,
        )  # fmt: skip
        yield SQL.ring(queue=spec.queue)


def refused_facts(job_id: str, task: str, reason: str) -> dict[str, Any]:
    """What the event of a job says that was born refused."""
    return {
        "job_id": job_id, "run": 1, "status": "failed", "outcome": "refused", "reason": reason, "succeeded": 0,
        "failed": 0, "abandoned": 0, "key": None, "task": task, "ended_by": None,
    }  # fmt: skip
