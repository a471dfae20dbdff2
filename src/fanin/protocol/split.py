"""A job that is too wide for one: its parts are batches, each a job of its own, and all are made in one transaction.

create -> the job, a part for each batch, and the jobs of the batches with their parts
a batch is claimed -> `nest.rejoin` -> it waits for its job, as any part that ends with a job of its own
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from fanin.domain import identity, limits, policy
from fanin.domain.flows import BATCH, BATCH_ATTEMPTS
from fanin.domain.model import NewJob, Spec
from fanin.domain.policy import Policy
from fanin.protocol import submit
from fanin.protocol.steps import Room, Txn
from fanin.protocol.submit import Chunks

SQL = Room("split")


def create(job: NewJob, parts: int, chunks: Chunks, keys: Chunks | None = None) -> Txn[bool]:
    """`submit.create`; a job with a ``batch`` is split into so many parts each. Raises what that raises."""
    if job.batch is None:
        return (yield from submit.create(job, parts, chunks, keys))
    batches = -(-parts // job.batch)
    rule = policy.decode(job.policy)
    above = msgspec.structs.replace(
        job, policy=_json(Policy(fail_fast=rule.fail_fast)), successor=_of_batches(job), stripes=1
    )
    submit.check_bounds(above, batches)
    if job.root_id is not None:
        yield from submit.check_tree(job, job.root_id, parts)
    turn = yield from submit.insert_job(above, "running", batches, 1)
    if turn is None:
        return False
    yield submit.SQL.create_stripes(bucket=job.bucket, rows=[(job.id, 0, batches, True, False)])
    for first in range(0, batches, limits.CHUNK_PARTS):
        some = range(first, min(first + limits.CHUNK_PARTS, batches))
        yield SQL.create_batches(
            bucket=job.bucket, job_id=job.id, rows=[(n, identity.nested_id(job.id, n)) for n in some], task=BATCH,
            queue=job.queue, priority=min(job.priority + 1, limits.PRIORITY_MAX), turn=turn, attempts=BATCH_ATTEMPTS,
        )  # fmt: skip
    payloads = Payloads(chunks())
    for n in range(batches):
        size = min(job.batch, parts - n * job.batch)
        made = yield from submit.create(_job_of(job, rule, n), size, lambda size=size: payloads.take(size))  # type: ignore[misc]
        assert made, f"batch {n} of a new job stood there already"
    return True


def _job_of(job: NewJob, rule: Policy, n: int) -> NewJob:
    """The job of a batch. It judges its own parts; the deadline is that of the whole, whose end cancels it."""
    return NewJob(
        id=identity.nested_id(job.id, n), bucket=job.bucket, task=job.task, queue=job.queue, priority=job.priority,
        attempts=job.attempts, stripes=job.stripes, policy=_json(rule), delay=job.delay, parent_id=job.id,
        root_id=job.root_id or job.id, depth=job.depth + 1, waiter_id=job.id, waiter_idx=n,
        failure_events=job.failure_events,
    )  # fmt: skip


def _of_batches(job: NewJob) -> str | None:
    """The successor is told that it follows batches."""
    if job.successor is None:
        return None
    spec = msgspec.json.decode(job.successor, type=Spec)
    return _json(msgspec.structs.replace(spec, batch=job.batch))


def _json(value: Policy | Spec) -> str:
    return msgspec.json.encode(value).decode()


class Payloads:
    """A stream of payloads in chunks, of which any number can be taken, in chunks again."""

    def __init__(self, chunks: Iterable[list[str]]) -> None:
        self._chunks = iter(chunks)
        self._rest: list[str] = []

    def take(self, count: int) -> Iterator[list[str]]:
        while count > 0:
            chunk = self._rest or next(self._chunks)
            taken, self._rest = chunk[:count], chunk[count:]
            count -= len(taken)
            yield taken
