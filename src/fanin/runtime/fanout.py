"""A part that ends with a job of its own: what its handler returns, and how it is handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import LimitExceeded
from fanin.domain.model import Claim, NewJob, Spec
from fanin.domain.policy import check_quorum, make_policy
from fanin.protocol import nest, read
from fanin.protocol.nest import Nested
from fanin.runtime.payloads import Spool
from fanin.runtime.task import Task, check_attempts, check_name, check_priority
from fanin.stores.base import Store

SUCCESSOR_PRIORITY = 10


class FanOut:
    """The job that a part ends with. Made by `Part.fan_out`, and returned by the handler.

    The part waits for it without a worker. Its result is that of the job: of its successor, where there is one, else
    the results of all parts, as a `Joined`. If the job does not complete, the part has failed.
    """

    __fanin_fan_out__ = True

    def __init__(
        self,
        task: Task[..., Any],
        items: Iterable[Any],
        *,
        then: Task[..., Any] | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
    ) -> None:
        self._payloads: Iterator[str] = (task.signature.encode_item(item, n) for n, item in enumerate(items))
        self._then = then
        self._quorum = quorum
        self._policy = msgspec.json.encode(make_policy(tolerate, fail_fast, sample, quorum, give_up)).decode()
        self._task = task.name
        self._queue = task.queue if queue is None else check_name(queue, "queue")
        self._attempts = task.attempts if attempts is None else check_attempts(attempts)
        self._priority = task.priority if priority is None else check_priority(priority)
        self._delay = seconds(delay, "delay")
        self._give_up_after = None if give_up_after is None else seconds(give_up_after, "give_up_after")

    def hand_over(self, held: Claim, store: Store) -> tuple[Nested, str]:
        """Make the job and let the part wait for it: see `fanin.protocol.nest.nest`.

        Raises `BadPayload`, `BadOption`, `LimitExceeded` before anything is written, `KeyConflict` if an earlier
        attempt has made the job with other items, `LeaseLost`.
        """
        spool = Spool(self._payloads, limits.JOB_WIDTH_PARTS)
        check_quorum(self._quorum, len(spool))
        above = store.read(lambda: read.job(held.bucket, held.job_id))
        assert above is not None, f"there is no job {held.job_id} of a part that is held"
        if above.depth + 1 > limits.JOB_DEPTH_LEVELS:
            raise LimitExceeded(
                f"this job would stand {above.depth + 1} levels deep, the limit is {limits.JOB_DEPTH_LEVELS}: "
                "parts that fan out into their own kind must stop somewhere"
            )
        new = spool.sealed(
            NewJob(
                id=identity.nested_id(held.job_id, held.idx), bucket=held.bucket, task=self._task, queue=self._queue,
                priority=self._priority, attempts=self._attempts, policy=self._policy, successor=self._successor(),
                give_up_after=self._give_up_after, delay=self._delay, parent_id=above.id,
                root_id=above.root_id or above.id, depth=above.depth + 1, waiter_id=held.job_id, waiter_idx=held.idx,
            )
        )  # fmt: skip
        return store.run(lambda: nest.nest(held, new, len(spool), spool.chunks))

    def _successor(self) -> str | None:
        if self._then is None:
            return None
        return msgspec.json.encode(spec_of(self._then, self._priority)).decode()


def spec_of(task: Task[..., Any], above: int) -> Spec:
    """The successor that runs ``task`` after parts of the priority ``above``: it never waits behind them."""
    priority = min(max(above, task.priority) + SUCCESSOR_PRIORITY, limits.PRIORITY_MAX)
    return Spec(task=task.name, queue=task.queue, attempts=task.attempts, priority=priority)
