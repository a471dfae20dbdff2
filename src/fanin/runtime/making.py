"""How a job is made of what a call says: checked, named, placed below the running part, ready to be written."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.durations import Duration, Instant, deadline, seconds
from fanin.domain.errors import BadOption, LimitExceeded, NotAllowedNow, UnknownTask, shown
from fanin.domain.events import Events
from fanin.domain.model import JobRow, NewJob
from fanin.domain.policy import Policy
from fanin.protocol import read
from fanin.runtime.children import refuse_while_starting
from fanin.runtime.codec import check_items, encode_plain
from fanin.runtime.listeners import Listeners
from fanin.runtime.part import next_child_id, running_part
from fanin.runtime.payloads import Wanted
from fanin.runtime.spawning import item_key
from fanin.runtime.successor import Then, spec_of, successor_of
from fanin.runtime.task import Application, Task, check_attempts, check_key, check_name, check_priority

STRIPED_FROM_PARTS = 10_000
STRIPES = 8


class Maker:
    """Makes the jobs of one application, for `App` and `AsyncApp`. Nothing is written here."""

    def __init__(self, app: Application, listeners: Listeners) -> None:
        self._app = app
        self._listeners = listeners

    def own(self, task: Task[..., Any]) -> Task[..., Any]:
        """The task, if it is one of this application. Raises `UnknownTask`."""
        name = getattr(task, "name", None)
        if name is None or self._app.tasks.get(name) is not task:
            known = ", ".join(sorted(self._app.tasks)) or "none"
            said = shown(task) if name is None else repr(task)
            raise UnknownTask(f"{said} is not a task of this application (it has: {known}): decorate it with @app.task")
        return task

    def new_job(
        self,
        task: Task[..., Any],
        policy: Policy,
        *,
        then: Then | None,
        key: str | None,
        give_up_after: Duration | None,
        attempts: int | None,
        queue: str | None,
        priority: int | None,
        delay: Duration,
        stripes: int | None,
        meta: Any,
        give_up_at: Instant | None = None,
        events: Events | None = None,
        width: int | None = None,
    ) -> NewJob:
        """A job with the options of `App.map`, of an application's own task. A parent is looked up in the database.

        Raises `BadOption`, `BadPayload`, `LimitExceeded`, `NotAllowedNow`, `UnknownTask`.
        """
        refuse_while_starting("not submitted")
        check_key(key)
        if not isinstance(events, Events | None):
            raise BadOption(f"events={shown(events)}: give fanin.Events(…), or None")
        if stripes is not None and (type(stripes) is not int or not 1 <= stripes <= limits.STRIPES):
            raise BadOption(f"stripes={shown(stripes)}: give 1 to {limits.STRIPES}")
        queue = check_name(queue, "queue") if queue is not None else task.queue
        priority = check_priority(priority) if priority is not None else task.priority
        successor = None
        if then is not None:
            self.own(successor_of(then).task)
            successor = spec_of(then, task, priority)
        parent = running_part()
        if key is not None:
            job_id = identity.keyed_job_id(key)
        else:
            job_id = next_child_id(parent) if parent else identity.new_job_id()
        above = self._above()
        if above is not None and above.depth + 1 > limits.JOB_DEPTH_LEVELS:
            raise LimitExceeded(
                f"this job would stand {above.depth + 1} levels deep, the limit is {limits.JOB_DEPTH_LEVELS}: "
                "jobs that start jobs of their own kind must stop somewhere"
            )
        after, at = deadline(give_up_after, give_up_at)
        return NewJob(
            id=job_id,
            bucket=self._app.store.bucket(job_id),
            task=task.name,
            queue=queue,
            key=key,
            priority=priority,
            attempts=check_attempts(attempts) if attempts is not None else task.attempts,
            stripes=stripes or 1,
            policy=msgspec.json.encode(policy).decode(),
            successor=successor,
            give_up_after=after,
            give_up_at=at,
            delay=seconds(delay, "delay"),
            parent_id=above.id if above else None,
            parent_bucket=above.bucket if above else None,
            root_id=(above.root_id or above.id) if above else None,
            depth=above.depth + 1 if above else 0,
            meta=None if meta is None else encode_plain(meta, "meta", limits.PAYLOAD_BYTES),
            listeners=self._listeners.to_job(task.name, above),
            width=width,
            failure_events=events is not None and events.failures,
            progress_every=None if events is None else events.progress,
        )

    def heard_by(self) -> str | None:
        """What listens to a flow that is started now."""
        return self._listeners.to_flow(self._above())

    def striped(self, new: NewJob, parts: int, stripes: int | None) -> NewJob:
        """With as many counters as fit a job of so many parts, where ``stripes`` leaves it open."""
        if (
            stripes is None
            and self._app.store.dialect == "pg"
            and parts >= STRIPED_FROM_PARTS
            and '"quorum"' not in new.policy
        ):
            return msgspec.structs.replace(new, stripes=STRIPES)
        return new

    def _above(self) -> JobRow | None:
        """The job whose handler is running. Raises `NotAllowedNow` if it was purged meanwhile."""
        if (parent := running_part()) is None:
            return None
        above = self._app.store.read(lambda: read.job(self._app.store.bucket(parent.job_id), parent.job_id))
        if above is None:
            raise NotAllowedNow(f"job {parent.job_id}, whose handler asks for this one, has ended and was purged")
        return above


def check_grows(grows: bool | int, most: int) -> int | None:
    """The width of a job that grows, None for one that does not. Raises `BadOption`."""
    if type(grows) is bool:
        return most if grows else None
    if type(grows) is not int or not 1 <= grows <= most:
        raise BadOption(f"grows={shown(grows)}: True, False, or the most parts that the job may have, up to {most}")
    return grows


def encoded(task: Task[..., Any], new: NewJob, items: Iterable[Any]) -> Iterable[Wanted]:
    """What is written for the items: their payloads, and before each its key if the job grows."""
    if new.width is None:
        return task.signature.encode_items(items)
    return map(encoder(task, new), check_items(items), itertools.count())


def encoder(task: Task[..., Any], new: NewJob) -> Callable[[Any, int], Wanted]:
    """`encoded` for an item and its number."""
    encode_item = task.signature.encode_item
    if new.width is None:
        return encode_item

    def keyed(item: Any, number: int) -> Wanted:
        payload = encode_item(item, number)
        return item_key(task, item, payload), payload

    return keyed
