"""`App` and `Job` for programs on an event loop: the same names and parameters, awaited."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

import msgspec

from fanin.aio_flow import AsyncFlow, AsyncFlowRun
from fanin.app import App, check_grows, encoded, encoder, find, find_flow
from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.effects import Effect
from fanin.domain.errors import BadOption, FaninError, JobFailed, UnknownJob, WaitTimeout
from fanin.domain.flows import FlowRow
from fanin.domain.model import NESTED, Failure, Firing, JobRow, NewJob, Progress, ScheduleRow
from fanin.domain.policy import Backoff, Policy, check_quorum, make_policy
from fanin.domain.purged import Purged
from fanin.domain.signals import Signals
from fanin.domain.timeline import Explanation
from fanin.job import LATEST_SECONDS, SOONEST_SECONDS, Job, check_parts, deed, result_text
from fanin.opened import Producer
from fanin.protocol import close, effect, explain, pause, read, redrive, signals, skip
from fanin.protocol.steps import Rows, Txn, TxnFactory
from fanin.runtime.codec import Codec
from fanin.runtime.effects import CALL_SECONDS, EffectHandler
from fanin.runtime.joined import value_of
from fanin.runtime.outputs import LARGE, Output, output_pages
from fanin.runtime.part import running_part
from fanin.runtime.payloads import Feed, Spool, Wanted
from fanin.runtime.task import Filter, Task, check_attempts
from fanin.runtime.timeline import explanation
from fanin.runtime.whoever import whoever
from fanin.stores.base import Store

if TYPE_CHECKING:
    from fanin.schedule import Schedule

log = logging.getLogger("fanin")

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Runner(Protocol):
    """Drives transactions for coroutines."""

    async def run(self, factory: TxnFactory[T]) -> T: ...
    async def read(self, factory: TxnFactory[T]) -> T: ...
    async def run_in(self, connection: Any, txn: Txn[T]) -> T: ...
    async def close(self) -> None: ...


class ThreadRunner:
    """For SQLite: a commit waits for the disk, so it happens in a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, factory: TxnFactory[T]) -> T:
        return await asyncio.to_thread(self._store.run, factory)

    async def read(self, factory: TxnFactory[T]) -> T:
        return await asyncio.to_thread(self._store.read, factory)

    async def run_in(self, connection: Any, txn: Txn[T]) -> T:
        return self._store.run_in(connection, txn)  # the caller's connection stays in the caller's thread

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)


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
        then: Task[..., Any] | None = None,
        key: str | None = None,
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
        stripes: int | None = None,
        meta: Any = None,
        stream: bool = False,
        grows: bool | int = False,
        within: Any = None,
        run: bool = False,
    ) -> AsyncJob:
        """See `App.map`. ``items`` may be an async iterable; ``within`` is a psycopg.AsyncConnection on PostgreSQL."""
        self._app._own(task)
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        new = await self._new(
            task, policy, then=then, key=key, give_up_after=give_up_after, attempts=attempts, queue=queue,
            priority=priority, delay=delay, stripes=stripes, meta=meta, width=check_grows(grows, self.max_parts),
        )  # fmt: skip
        if stream:
            if within is not None:
                raise BadOption("stream=True writes in several transactions, within= asks for one: choose")
            await self._feed(new, _encoded(items, encoder(task, new)))
        else:
            listed = [item async for item in items] if isinstance(items, AsyncIterable) else items
            spool = Spool(encoded(task, new, listed), self.max_parts)
            check_quorum(quorum, new.width or len(spool))
            await self._create(self._app._striped(new, len(spool), stripes), spool, within)
        return AsyncJob(self, new.id, run=run)

    def open(
        self,
        task: Task[..., Any],
        *,
        then: Task[..., Any] | None = None,
        key: str | None = None,
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
        stripes: int | None = None,
        meta: Any = None,
        grows: bool | int = False,
        run: bool = False,
    ) -> AbstractAsyncContextManager[AsyncOpenJob]:
        """See `App.open`: ``async with app.open(task) as job: await job.add(item)``."""
        self._app._own(task)
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        width = check_grows(grows, self.max_parts)

        @asynccontextmanager
        async def opened() -> AsyncIterator[AsyncOpenJob]:
            new = await self._new(
                task, policy, then=then, key=key, give_up_after=give_up_after, attempts=attempts, queue=queue,
                priority=priority, delay=delay, stripes=stripes, meta=meta, width=width,
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
        then: Task[..., Any] | None = None,
        key: str | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        give_up_after: Duration | None = None,
        meta: Any = None,
        within: Any = None,
        run: bool = False,
    ) -> AsyncJob:
        """See `App.submit_with`."""
        payload = self._app._own(task).signature.encode_call(tuple(args), kwargs or {})
        new = await self._new(
            task, Policy(), then=then, key=key, give_up_after=give_up_after, attempts=attempts, queue=queue,
            priority=priority, delay=delay, stripes=1, meta=meta,
        )  # fmt: skip
        await self._create(new, Spool([payload], 1), within)
        return AsyncJob(self, new.id, run=run)

    def flow(
        self,
        name: str,
        *,
        key: str | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        fail_fast: bool = True,
        meta: Any = None,
    ) -> AsyncFlow:
        """See `App.flow`. Not awaited: nothing is written before `AsyncFlow.start`."""
        made = self._app.flow(
            name, key=key, give_up_after=give_up_after, give_up=give_up, fail_fast=fail_fast, meta=meta
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
        return AsyncJob(self, await self._runner.read(lambda: find(name, buckets)))

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
            return self._app._new_job(task, policy, **options)
        return await asyncio.to_thread(lambda: self._app._new_job(task, policy, **options))

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


class AsyncJob:
    """`fanin.job.Job` with the same names, awaited; ``results()`` is an async iterator, the properties are awaited."""

    def __init__(self, app: AsyncApp, job_id: str, *, run: bool = False) -> None:
        self._app = app
        self._runner = app._runner
        self.id = job_id
        self._bucket = app.store.bucket(job_id)
        self._run = run
        self._sync = Job(app._app, job_id, run=run)

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncJob) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def row(self) -> JobRow:
        found = await self._runner.read(lambda: read.job(self._bucket, self.id))
        if found is None:
            raise UnknownJob(f"there is no job {self.id} in {self._app.url.split('@')[-1]}")
        return found

    @property
    async def status(self) -> str:
        return (await self.progress()).status

    async def progress(self) -> Progress:
        found = await self._runner.read(lambda: read.progress(self._bucket, self.id))
        if found is None:
            raise UnknownJob(f"there is no job {self.id} in {self._app.url.split('@')[-1]}")
        return found

    async def wait(
        self, timeout: Duration | None = None, *, progress: bool = False, run: bool | None = None
    ) -> AsyncJob:
        if progress or (self._run if run is None else run):
            await asyncio.to_thread(lambda: self._sync.wait(timeout, progress=progress, run=run))
            return self
        limit = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        patience = SOONEST_SECONDS
        while not (found := await self.progress()).ended:
            if limit is not None and time.monotonic() >= limit:
                raise WaitTimeout(f"job {self.id} is {found.status} after the time given; it goes on")
            await asyncio.sleep(patience if limit is None else min(patience, max(limit - time.monotonic(), 0)))
            patience = min(patience * 1.3, LATEST_SECONDS)
        return self

    async def results(self) -> AsyncIterator[Any]:
        codec = await self._codec()
        first = 0
        while page := await self._page(first):
            for idx, status, text in page:
                if status == "succeeded" and text is not None:
                    if text[0] in (LARGE, NESTED):
                        yield await asyncio.to_thread(value_of, self._app.store, self.id, idx, text, codec)
                    else:
                        yield codec.decode(text)
            first = page[-1][0] + 1

    async def effects(self) -> AsyncIterator[Effect]:
        """See `Job.effects`."""
        after: effect.Place | None = effect.FIRST
        while after is not None:
            page, after = await self._runner.read(partial(effect.of_job, self._bucket, self.id, after))
            for one in page:
                yield one

    async def outputs(self, name: str | None = None) -> AsyncIterator[Output]:
        found = output_pages(self._app.store, self.id, name)
        while (output := await asyncio.to_thread(next, found, None)) is not None:
            yield output

    async def _page(self, first: int) -> list[tuple[int, str, str | None]]:
        return await self._runner.read(lambda: read.results(self._bucket, self.id, first))

    async def result(self, timeout: Duration | None = None) -> Any:
        await self.wait(timeout)
        row = await self.row()
        if row.status != "completed":
            first = next(iter(await self.failures()), None)
            raise JobFailed(f"job {self.id} {row.status} ({row.outcome}): {first or row.reason}")
        found = [value async for value in self.results()]
        return found[0] if row.sealed_parts == 1 and row.width is None and found else found

    async def failures(self) -> list[Failure]:
        return await asyncio.to_thread(self._sync.failures)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        return await self._runner.run(lambda: close.cancel(self._bucket, self.id, reason, by or whoever()))

    async def finish(self, reason: str | None = None, *, by: str | None = None) -> bool:
        done = deed(by, reason)
        return await self._runner.run(lambda: close.finish_now(self._bucket, self.id, done))

    async def pause(self, reason: str | None = None, *, by: str | None = None) -> bool:
        done = deed(by, reason)
        did = await self._runner.run(lambda: pause.pause(self._bucket, self.id, done))
        await self._walk()
        return did

    async def resume(self, reason: str | None = None, *, by: str | None = None) -> bool:
        done = deed(by, reason)
        did = await self._runner.run(lambda: pause.resume(self._bucket, self.id, done))
        await self._walk()
        return did

    async def _walk(self) -> None:
        while await self._runner.run(lambda: pause.walk(self._bucket, self.id)):
            pass

    async def skip(
        self, part: int, *, result: Any = None, failed: bool = False, reason: str | None = None, by: str | None = None
    ) -> bool:
        text = result_text(await self._codec(), part, result, failed)
        done = deed(by, reason)
        return await self._runner.run(lambda: skip.skip(self._bucket, self.id, part, text, done))

    async def redrive(
        self,
        parts: Sequence[int] | None = None,
        *,
        attempts: int | None = None,
        give_up_after: Duration | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        check_parts(parts)
        allowance = None if attempts is None else check_attempts(attempts)
        done = deed(by, reason)
        row = await self.row()
        wait = None if give_up_after is None else seconds(give_up_after, "give_up_after")
        for stripe in range(row.stripes if row.ended else 0):
            while await self._runner.run(lambda: close.sweep(self._bucket, self.id, stripe)):
                pass
        return await self._runner.run(
            lambda: redrive.redrive(self._bucket, self.id, row.run, allowance or row.attempts, parts, wait, done)
        )

    @property
    async def successor(self) -> AsyncJob | None:
        born = await self._runner.read(lambda: read.successor(self._bucket, self.id))
        return AsyncJob(self._app, born, run=self._run) if born is not None else None

    async def children(self) -> list[AsyncJob]:
        buckets = range(self._app.store.buckets)
        return [AsyncJob(self._app, job_id) for job_id, step in await self._children(buckets) if step is None]

    async def _children(self, buckets: Iterable[int]) -> list[tuple[str, str | None]]:
        return await self._runner.read(lambda: read.children(buckets, self.id))

    async def account(self) -> dict[str, int]:
        found = await self._runner.read(lambda: read.account(self._bucket, self.id))
        return {**found, "ends": found["events"]}

    async def history(self) -> list[dict[str, Any]]:
        return await self._runner.read(lambda: read.history(self._bucket, self.id))

    async def explain(self, part: int | None = None) -> Explanation:
        buckets = range(self._app.store.buckets)
        found = await self._runner.read(lambda: explain.known(self._bucket, self.id, buckets, part))
        return explanation(self.id, found, part)

    async def events(self) -> Rows:
        return await self._runner.read(lambda: read.events(self._bucket, self.id))

    async def _codec(self) -> Codec:
        task = self._app.tasks.get((await self.row()).task)
        return task.signature.result if task is not None else Codec(Any, f"a result of job {self.id}")

    async def meta(self) -> Any:
        text = (await self.row()).meta
        return None if text is None else msgspec.json.decode(text)


class AsyncSchedule:
    """`fanin.schedule.Schedule` with the same names, awaited."""

    def __init__(self, app: AsyncApp, made: Schedule) -> None:
        self._app = app
        self._sync = made
        self.name = made.name
        self.timing = made.timing
        self.rule = made.rule

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"

    async def next(self, count: int = 1) -> list[datetime]:
        return await asyncio.to_thread(self._sync.next, count)

    async def row(self) -> ScheduleRow:
        return await asyncio.to_thread(self._sync.row)

    async def firings(self, limit: int = 20) -> list[Firing]:
        return await asyncio.to_thread(self._sync.firings, limit)

    async def jobs(self, limit: int = 20) -> list[AsyncJob]:
        return [AsyncJob(self._app, one.id) for one in await asyncio.to_thread(self._sync.jobs, limit)]

    async def pause(self, note: str | None = None) -> bool:
        return await asyncio.to_thread(self._sync.pause, note)

    async def resume(self) -> bool:
        return await asyncio.to_thread(self._sync.resume)

    async def fire(self) -> AsyncJob | None:
        made = await asyncio.to_thread(self._sync.fire)
        return None if made is None else AsyncJob(self._app, made.id)

    async def backfill(self, since: datetime, until: datetime) -> list[AsyncJob]:
        made = await asyncio.to_thread(self._sync.backfill, since, until)
        return [AsyncJob(self._app, one.id) for one in made]


class AsyncOpenJob(AsyncJob):
    """`fanin.opened.OpenJob` with the same names, awaited; ``extend`` takes async iterables too."""

    def __init__(self, app: AsyncApp, producer: Producer, *, run: bool = False) -> None:
        super().__init__(app, producer.new.id, run=run)
        self._producer = producer

    async def __aenter__(self) -> AsyncOpenJob:
        self._producer.enter()
        await self._runner.run(self._producer.feed.open())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, problem: BaseException | None, *_: object) -> None:
        try:
            if problem is None:
                await self.flush()
                if not self._producer.feed.ended:
                    await self._runner.run(self._producer.feed.seal())
            elif not self._producer.again:
                await self.cancel(self._producer.reason(problem))
        except FaninError:
            if problem is None:
                raise
            log.warning("job %s could not be cancelled; it ends at its deadline", self.id, exc_info=True)
        finally:
            self._producer.leave()

    async def add(self, item: Any) -> bool:
        if self._producer.take(item):
            await self.flush()
        return not self._producer.feed.ended

    async def extend(self, items: Iterable[Any] | AsyncIterable[Any]) -> bool:
        if isinstance(items, AsyncIterable):
            async for item in items:
                if not await self.add(item):
                    return False
        else:
            for item in items:
                if not await self.add(item):
                    return False
        return True

    async def flush(self) -> None:
        self._producer.check()
        if (append := self._producer.feed.flush()) is not None and not self._producer.feed.ended:
            await self._runner.run(append)
        self._producer.wrote()


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
