"""`Job` and `OpenJob` for programs on an event loop: the same names and parameters, awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fanin.domain.durations import Duration, seconds
from fanin.domain.effects import Effect
from fanin.domain.errors import FaninError, JobFailed, UnknownJob
from fanin.domain.model import NESTED, Failure, JobRow, Progress
from fanin.domain.timeline import Explanation
from fanin.job import Job, check_part, check_parts, check_whole, deed, result_text
from fanin.opened import Producer
from fanin.protocol import close, effect, explain, pause, read, redrive, skip
from fanin.protocol.steps import Rows
from fanin.runtime.codec import Codec, check_items
from fanin.runtime.joined import first_failure, value_of
from fanin.runtime.outputs import LARGE, Output
from fanin.runtime.patience import Patience
from fanin.runtime.task import check_attempts
from fanin.runtime.timeline import explanation

if TYPE_CHECKING:
    from fanin.aio.app import AsyncApp

log = logging.getLogger("fanin")


_NOTHING = object()


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

    async def progress(self, *, tree: bool = False) -> Progress:
        found = await self._runner.read(lambda: read.progress(self._bucket, self.id, tree))
        if found is None:
            raise UnknownJob(f"there is no job {self.id} in {self._app.url.split('@')[-1]}")
        return found

    async def wait(
        self, timeout: Duration | None = None, *, progress: bool = False, run: bool | None = None
    ) -> AsyncJob:
        if progress or (self._run if run is None else run):
            await asyncio.to_thread(lambda: self._sync.wait(timeout, progress=progress, run=run))
            return self
        patience = Patience(f"job {self.id}", timeout)
        while not (found := await self.progress()).ended:
            await asyncio.sleep(patience.pause(found.status))
        return self

    async def results(self) -> AsyncIterator[Any]:
        codec = await self._codec()
        if (await self.row()).batch is not None:
            found = self._sync.results()
            while (value := await asyncio.to_thread(next, found, _NOTHING)) is not _NOTHING:
                yield value
            return
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
        found = await asyncio.to_thread(self._sync.outputs, name)
        while (output := await asyncio.to_thread(next, found, None)) is not None:
            yield output

    async def _page(self, first: int) -> list[tuple[int, str, str | None]]:
        return await self._runner.read(lambda: read.results(self._bucket, self.id, first))

    async def result(self, timeout: Duration | None = None) -> Any:
        await self.wait(timeout)
        row = await self.row()
        if row.status != "completed":
            first = await asyncio.to_thread(first_failure, self._sync._app.store, self.id, row.batch)
            raise JobFailed(f"job {self.id} {row.status} ({row.outcome}): {first or row.reason}")
        found = [value async for value in self.results()]
        return found[0] if row.sealed_parts == 1 and row.width is None and found else found

    async def failures(self) -> list[Failure]:
        return await asyncio.to_thread(self._sync.failures)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        done = deed(by, reason)
        return await self._runner.run(lambda: close.cancel(self._bucket, self.id, done))

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
        while found := await self._runner.read(lambda: pause.walking_of(self._bucket, self.id)):
            for job_id in found:
                while await self._runner.run(partial(pause.walk, self._bucket, job_id)):
                    pass

    async def skip(
        self, part: int, *, result: Any = None, failed: bool = False, reason: str | None = None, by: str | None = None
    ) -> bool:
        check_whole(await self.row())
        check_part(part)
        if await self._runner.read(lambda: read.part(self._bucket, self.id, part)) is None:
            raise skip.unknown_part(self.id, part)
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
        parts = check_parts(parts)
        allowance = None if attempts is None else check_attempts(attempts)
        done = deed(by, reason)
        row = await self.row()
        if parts is not None:
            check_whole(row)
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
        if part is not None:
            check_part(part)
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
            for item in check_items(items):
                if not await self.add(item):
                    return False
        return True

    async def flush(self) -> None:
        self._producer.check()
        if (append := self._producer.feed.flush()) is not None and not self._producer.feed.ended:
            await self._runner.run(append)
        self._producer.wrote()
