"""`App` and `Job` for programs on an event loop: the same names and parameters, awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from fanin.aio.flow import AsyncFlow, AsyncFlowRun
from fanin.aio.job import AsyncJob, AsyncOpenJob
from fanin.aio.runner import Runner, ThreadRunner
from fanin.aio.schedule import AsyncSchedule
from fanin.app import App
from fanin.domain import limits
from fanin.domain.durations import Duration, Instant, seconds
from fanin.domain.errors import BadOption
from fanin.domain.events import Events
from fanin.domain.flows import FlowRow
from fanin.domain.model import JobRow, NewJob
from fanin.domain.policy import Backoff, Policy, check_quorum, make_policy
from fanin.domain.purged import Purged
from fanin.domain.repairs import Repaired
from fanin.domain.signals import Signals
from fanin.protocol import read, signals
from fanin.runtime.codec import check_items
from fanin.runtime.effects import CALL_SECONDS, EffectHandler
from fanin.runtime.fanout import batched, check_overflow
from fanin.runtime.making import check_grows, encoded, encoder
from fanin.runtime.names import find_flow, find_job
from fanin.runtime.part import running_part
from fanin.runtime.payloads import Feed, Spool, Wanted
from fanin.runtime.successor import Then
from fanin.runtime.task import Filter, Task
from fanin.stores.base import Store

if TYPE_CHECKING:
    from fanin.schedule import Schedule


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class AsyncApp:
    """`App` for an event loop. One instance belongs to one loop; the tasks may be ``def`` or ``async def``."""

    def __init__(self, url: str | None = None, *, max_parts: int = limits.JOB_WIDTH_PARTS) -> None:
        self._app = App(url, max_parts=max_parts)
        self._made: Runner | None = None

    @property
    def url(self) -> str:
        return self._app.url

    @property
    def store(self) -> Store:
        return self._app.store

    @property
    def tasks(self) -> dict[str, Task[..., Any]]:
        return self._app.tasks

    @property
    def schedules(self) -> dict[str, Schedule]:
        return self._app.schedules

    @property
    def effects(self) -> dict[str, EffectHandler]:
        return self._app.effects

    @property
    def leaving(self) -> list[threading.Thread]:
        return self._app.leaving

    @property
    def max_parts(self) -> int:
        return self._app.max_parts

    @property
    def _runner(self) -> Runner:
        if self._made is None:
            if self.store.dialect == "pg":
                from fanin.stores.pg_async import AsyncPostgres
                from fanin.stores.postgres import PostgresStore

                assert isinstance(self.store, PostgresStore)
                self._made = AsyncPostgres(self.store)
            else:
                self._made = ThreadRunner(self.store)
        return self._made

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        attempts: int = 3,
        lease: Duration = 60.0,
        timeout: Duration | None = None,
        mode: str | None = None,
        queue: str = "default",
        priority: int = 0,
        backoff: Backoff | Duration | None = None,
        retry_on: Filter = (BaseException,),
        give_up_on: Filter = (),
        item_key: Callable[[Any], str] | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, **options: Any) -> Any:
        """See `App.task`."""
        return self._app.task(**options) if function is None else self._app.task(function)

    def on(
        self, event: str, *, of: Task[..., Any] | Sequence[Task[..., Any]] | None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """See `App.on`."""
        return self._app.on(event, of=of, **options)

    def schedule(
        self,
        name: str,
        cron: str,
        task: Task[..., Any],
        items: Iterable[Any] | Callable[..., Iterable[Any]] | None = None,
        *,
        tz: str = "UTC",
        misfire: str = "once",
        overlap: str = "skip",
        grace: Duration = 60.0,
        catch_up: int = 100,
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0.0,
        then: Then | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        meta: Any = None,
    ) -> AsyncSchedule:
        """See `App.schedule`. Not awaited: nothing is written. A function for ``items`` is a plain one."""
        made = self._app.schedule(
            name, cron, task, items, tz=tz, misfire=misfire, overlap=overlap, grace=grace, catch_up=catch_up,
            start=start, end=end, jitter=jitter, then=then, tolerate=tolerate, fail_fast=fail_fast, sample=sample,
            quorum=quorum, give_up_after=give_up_after, give_up=give_up, attempts=attempts, queue=queue,
            priority=priority, meta=meta,
        )  # fmt: skip
        return AsyncSchedule(self, made)

    def effect(
        self,
        name: str,
        *,
        mode: str,
        timeout: Duration = CALL_SECONDS,
        probe: Callable[..., Any] | None = None,
        attempts: int | None = None,
        backoff: Backoff | Duration | None = None,
        concurrency: int = 8,
    ) -> Callable[[F], F]:
        """See `App.effect`."""
        return self._app.effect(
            name, mode=mode, timeout=timeout, probe=probe, attempts=attempts, backoff=backoff, concurrency=concurrency
        )

    async def map(
        self,
        task: Task[..., Any],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        then: Then | None = None,
        key: str | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        stripes: int | None = None,
        meta: Any = None,
        events: Events | None = None,
        stream: bool = False,
        grows: bool | int = False,
        overflow: str = "refuse",
        within: Any = None,
        run: bool = False,
    ) -> AsyncJob:
        """See `App.map`. ``items`` may be an async iterable; ``within`` is a psycopg.AsyncConnection on PostgreSQL."""
        self._app._maker.own(task)
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        new = await self._new(
            task, policy, then=then, key=key, give_up_after=give_up_after, give_up_at=give_up_at, attempts=attempts,
            queue=queue, priority=priority, delay=delay, stripes=stripes, meta=meta, events=events,
            width=check_grows(grows, self.max_parts),
        )  # fmt: skip
        split = check_overflow(overflow, policy, stream=stream, grows=bool(grows))
        if stream:
            if within is not None:
                raise BadOption("stream=True writes in several transactions, within= asks for one: choose")
            check_quorum(quorum, new.width or self.max_parts)
            ready = items if isinstance(items, AsyncIterable) else check_items(items)
            await self._feed(new, _encoded(ready, encoder(task, new)))
        else:
            listed = [item async for item in items] if isinstance(items, AsyncIterable) else items
            spool = Spool(encoded(task, new, listed), limits.TREE_PARTS if split else self.max_parts)
            check_quorum(quorum, new.width or len(spool))
            new = batched(new, len(spool), self.max_parts)
            await self._create(self._app._maker.striped(new, new.batch or len(spool), stripes), spool, within)
        return AsyncJob(self, new.id, run=run)

    def open(
        self,
        task: Task[..., Any],
        *,
        then: Then | None = None,
        key: str | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        stripes: int | None = None,
        meta: Any = None,
        events: Events | None = None,
        grows: bool | int = False,
        run: bool = False,
    ) -> AbstractAsyncContextManager[AsyncOpenJob]:
        """See `App.open`: ``async with app.open(task) as job: await job.add(item)``."""
        self._app._maker.own(task)
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        width = check_grows(grows, self.max_parts)
        check_quorum(quorum, width or self.max_parts)

        @asynccontextmanager
        async def opened() -> AsyncIterator[AsyncOpenJob]:
            new = await self._new(
                task, policy, then=then, key=key, give_up_after=give_up_after, give_up_at=give_up_at, attempts=attempts,
                queue=queue, priority=priority, delay=delay, stripes=stripes, meta=meta, events=events, width=width,
            )  # fmt: skip
            async with AsyncOpenJob(self, self._app._producer(task, new), run=run) as job:
                yield job

        return opened()

    async def submit(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> AsyncJob:
        """See `App.submit`."""
        return await self.submit_with(task, args, kwargs)

    async def submit_with(
        self,
        task: Task[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        then: Then | None = None,
        key: str | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        meta: Any = None,
        events: Events | None = None,
        within: Any = None,
        run: bool = False,
    ) -> AsyncJob:
        """See `App.submit_with`."""
        payload = self._app._maker.own(task).signature.encode_call(args, {} if kwargs is None else kwargs)
        new = await self._new(
            task, Policy(), then=then, key=key, give_up_after=give_up_after, give_up_at=give_up_at, attempts=attempts,
            queue=queue, priority=priority, delay=delay, stripes=1, meta=meta, events=events,
        )  # fmt: skip
        await self._create(new, Spool([payload], 1), within)
        return AsyncJob(self, new.id, run=run)

    def flow(
        self,
        name: str,
        *,
        key: str | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        fail_fast: bool = True,
        meta: Any = None,
    ) -> AsyncFlow:
        """See `App.flow`. Not awaited: nothing is written before `AsyncFlow.start`."""
        made = self._app.flow(
            name,
            key=key,
            give_up_after=give_up_after,
            give_up_at=give_up_at,
            give_up=give_up,
            fail_fast=fail_fast,
            meta=meta,
        )
        return AsyncFlow(self, made)

    async def flow_run(self, name: str) -> AsyncFlowRun:
        """See `App.flow_run`."""
        buckets = await asyncio.to_thread(lambda: self.store.buckets)
        return AsyncFlowRun(self, await self._runner.read(lambda: find_flow(name, buckets)))

    async def flows(self, status: str | None = None, limit: int = 20) -> list[FlowRow]:
        """See `App.flows`."""
        return await asyncio.to_thread(self._app.flows, status, limit)

    def _job(self, job_id: str, run: bool) -> AsyncJob:
        return AsyncJob(self, job_id, run=run)

    async def job(self, name: str) -> AsyncJob:
        """See `App.job`."""
        buckets = await asyncio.to_thread(lambda: self.store.buckets)
        return AsyncJob(self, await self._runner.read(lambda: find_job(name, buckets)))

    async def jobs(self, status: str | None = None, limit: int = 20) -> list[JobRow]:
        """See `App.jobs`."""
        buckets = await asyncio.to_thread(lambda: self.store.buckets)
        return await self._runner.read(lambda: read.jobs(range(buckets), status, limit))

    async def signals(self, since: Duration = 3600.0) -> Signals:
        """See `App.signals`."""
        back = seconds(since, "since")
        buckets = await asyncio.to_thread(lambda: self.store.buckets)
        return await self._runner.read(lambda: signals.signals(range(buckets), back))

    async def purge(
        self, older_than: Duration, *, unsent: bool = False, outputs: bool = False, dry_run: bool = False
    ) -> Purged:
        """See `App.purge`. In a thread: it may take long."""
        return await asyncio.to_thread(
            lambda: self._app.purge(older_than, unsent=unsent, outputs=outputs, dry_run=dry_run)
        )

    async def repair(self, job: str | None = None, *, dry_run: bool = False) -> Repaired:
        """See `App.repair`. In a thread: it may take long."""
        return await asyncio.to_thread(lambda: self._app.repair(job, dry_run=dry_run))

    async def run_worker(
        self, *, until_idle: bool = False, concurrency: int = 4, queues: Sequence[str] | None = None
    ) -> None:
        """Work in a thread of this process; cancelling the call drains the worker."""
        from fanin.runtime.worker import Worker

        worker = Worker(self, queues=queues, concurrency=concurrency)
        running = asyncio.create_task(asyncio.to_thread(lambda: worker.run(until_idle=until_idle)))
        try:
            await asyncio.shield(running)
        finally:
            worker.stop()
            await running

    async def close(self) -> None:
        """Close the connections."""
        if self._made is not None:
            await self._made.close()
            self._made = None
        await asyncio.to_thread(self._app.close)

    async def __aenter__(self) -> AsyncApp:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _new(self, task: Task[..., Any], policy: Policy, **options: Any) -> NewJob:
        await asyncio.to_thread(lambda: self.store.buckets)
        if running_part() is None:
            return self._app._maker.new_job(task, policy, **options)
        return await asyncio.to_thread(lambda: self._app._maker.new_job(task, policy, **options))

    async def _create(self, new: NewJob, spool: Spool, within: Any) -> None:
        if within is None:
            await self._runner.run(spool.create(new))
        else:
            await self._runner.run_in(within, spool.create(new)())

    async def _feed(self, new: NewJob, payloads: AsyncIterator[Wanted]) -> None:
        feed = Feed(new, self.max_parts)
        await self._runner.run(feed.open())
        async for payload in payloads:
            if (append := feed.add(payload)) is not None:
                await self._runner.run(append)
            if feed.ended:
                return
        if (append := feed.flush()) is not None:
            await self._runner.run(append)
        await self._runner.run(feed.seal())


async def _encoded(
    items: Iterable[Any] | AsyncIterable[Any], encode: Callable[[Any, int], Wanted]
) -> AsyncIterator[Wanted]:
    number = 0
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield encode(item, number)
            number += 1
    else:
        for number, item in enumerate(items):
            yield encode(item, number)
