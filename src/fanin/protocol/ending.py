"""The end of runs: state, event, successor and listeners, written together.

The stripes of each job that ends are held by this transaction, or were emptied by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.events import PAYLOAD_VERSION, EndedBy
from fanin.domain.model import Spec
from fanin.protocol import counting
from fanin.protocol.counting import Endings
from fanin.protocol.steps import Room, Txn, one

SQL = Room("ending")

Event = tuple[str, int, int, dict[str, Any]]
"""(job id, run, sequence number, facts) of an end."""

By = Callable[[str], EndedBy | None]
"""Job id to the attempt that ended it. Asked only of jobs that end."""


def nobody(job_id: str) -> EndedBy | None:
    """No attempt ended the job: a deadline or a person did, or it had no parts."""
    return None


def end_emptied(bucket: int, job_id: str) -> Txn[None]:
    """End a sealed job that has no live part: no worker will arrive to do it."""
    yield from end(bucket, {job_id: (yield from counting.natural_end(bucket, job_id))})


def end(bucket: int, endings: Endings, by: By = nobody) -> Txn[None]:
    """The end of runs: state, event and successor together. The stripes of each job are held or emptied by us."""
    events: list[Event] = []
    born: list[_Successor] = []
    for job_id, (ending, counts) in sorted(endings.items()):
        abandoned = counts.remaining + counts.abandoned  # those that this end leaves behind, and of earlier runs
        ended = yield SQL.end_job(
            bucket=bucket, job_id=job_id, status=ending.status, outcome=ending.outcome, reason=ending.reason,
            succeeded=counts.succeeded, failed=counts.failed, abandoned=abandoned,
        )  # fmt: skip
        run, seq, successor, root_id, depth, key, task, listeners = one(ended)
        facts = {
            "job_id": job_id, "run": run, "status": ending.status, "outcome": ending.outcome,
            "reason": ending.reason, "succeeded": counts.succeeded, "failed": counts.failed,
            "abandoned": abandoned, "key": key, "task": task, "ended_by": by(job_id),
        }  # fmt: skip
        events.append((job_id, run, seq, facts))
        if successor is not None and ending.proceeds:
            spec = msgspec.json.decode(successor, type=Spec)
            payload = _json({"joined": facts, "extra": spec.extra})
            born.append(_Successor(spec, job_id, run, payload, root_id, depth + 1))
        for spec in msgspec.json.decode(listeners, type=list[Spec]) if listeners else ():
            born.append(_Successor(spec, job_id, run, f"[{_payload(facts)}]", root_id, depth + 1))
    for successor in born:
        if successor.refused:
            events.append((successor.id, 1, 1, successor.refused_facts()))
    for job_id, run, seq, facts in events:
        key = identity.finished_key(job_id, run)
        yield SQL.announce(bucket=bucket, event_key=key, job_id=job_id, seq=seq, payload=_payload(facts))
    for successor in born:
        yield from successor.create(bucket)


class _Successor(msgspec.Struct, frozen=True):
    """A job that follows a finished one: one part, created by the finish and by nothing else."""

    spec: Spec
    parent_id: str
    run: int
    payload: str
    root_id: str | None
    depth: int

    @property
    def id(self) -> str:
        return identity.successor_id(self.parent_id, self.spec.step, self.run)

    @property
    def refused(self) -> str | None:
        if self.depth <= limits.JOB_DEPTH_LEVELS:
            return None
        return f"depth {self.depth} is over the limit of {limits.JOB_DEPTH_LEVELS}"

    def refused_facts(self) -> dict[str, Any]:
        return {
            "job_id": self.id, "run": 1, "status": "failed", "outcome": "refused", "reason": self.refused,
            "succeeded": 0, "failed": 0, "abandoned": 0, "key": None, "task": self.spec.task, "ended_by": None,
        }  # fmt: skip

    def create(self, bucket: int) -> Txn[None]:
        spec, parent_id = self.spec, self.parent_id
        row: dict[str, Any] = {
            "bucket": bucket, "id": self.id, "task": spec.task, "queue": spec.queue, "priority": spec.priority,
            "attempts": spec.attempts, "parent_id": parent_id, "root_id": self.root_id or parent_id, "step": spec.step,
            "depth": self.depth,
        }  # fmt: skip
        if self.refused:
            yield SQL.refuse_successor(**row, reason=self.refused)
            return
        yield SQL.create_successor(**row)
        yield SQL.create_successor_stripe(bucket=bucket, id=self.id)
        yield SQL.create_successor_part(
            bucket=bucket, id=self.id, queue=spec.queue, task=spec.task, priority=spec.priority,
            attempts=spec.attempts, payload=self.payload,
        )  # fmt: skip
        yield SQL.ring(queue=spec.queue)


def _payload(facts: dict[str, Any]) -> str:
    """The payload of the event of an end."""
    return _json({"version": PAYLOAD_VERSION, **facts})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
