"""`Flow` and `FlowRun` for programs on an event loop: the same names and parameters, awaited where something is read or
written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fanin.domain.durations import Duration
from fanin.domain.flows import FlowRow, StepRow
from fanin.domain.timeline import Explanation
from fanin.flow import Flow, FlowRun, Manual, Step
from fanin.protocol import flow
from fanin.runtime.patience import Patience
from fanin.runtime.task import Task

if TYPE_CHECKING:
    from fanin.aio.app import AsyncApp
    from fanin.aio.job import AsyncJob


class AsyncFlow:
    """See `Flow`. Declaring steps writes nothing, so it is not awaited."""

    def __init__(self, app: AsyncApp, made: Flow) -> None:
        self._app = app
        self._sync = made
        self.name = made.name
        self.key = made.key

    def step(
        self,
        task: Task[..., Any],
        *args: Any,
        name: str | None = None,
        after: Step | str | Sequence[Step | str] = (),
        on: str = "ok",
        undo: Task[..., Any] | Manual | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        give_up_after: Duration | None = None,
        stale_after: Duration | None = None,
        stale: str = "run",
    ) -> Step:
        """See `Flow.step`."""
        return self._sync.step(
            task, *args, name=name, after=after, on=on, undo=undo, attempts=attempts, queue=queue, priority=priority,
            give_up_after=give_up_after, stale_after=stale_after, stale=stale,
        )  # fmt: skip

    def map(
        self,
        task: Task[..., Any],
        items: Step | Iterable[Any],
        *,
        name: str | None = None,
        after: Step | str | Sequence[Step | str] = (),
        on: str = "ok",
        undo: Task[..., Any] | Manual | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        stale_after: Duration | None = None,
        stale: str = "run",
    ) -> Step:
        """See `Flow.map`."""
        return self._sync.map(
            task, items, name=name, after=after, on=on, undo=undo, tolerate=tolerate, fail_fast=fail_fast,
            sample=sample, quorum=quorum, attempts=attempts, queue=queue, priority=priority,
            give_up_after=give_up_after, give_up=give_up, stale_after=stale_after, stale=stale,
        )  # fmt: skip

    async def start(self, *, within: Any = None, run: bool = False) -> AsyncFlowRun:
        """See `Flow.start`. within: a ``psycopg.AsyncConnection`` on PostgreSQL."""
        new = await asyncio.to_thread(self._sync._new)
        if within is None:
            await self._app._runner.run(lambda: flow.create(new))
        else:
            await self._app._runner.run_in(within, flow.create(new))
        return AsyncFlowRun(self._app, new.id, run=run)


class AsyncFlowRun:
    """See `FlowRun`."""

    def __init__(self, app: AsyncApp, flow_id: str, run: bool = False) -> None:
        self._app = app
        self._run = run
        self._sync = FlowRun(app._app, flow_id, run=run)
        self.id = flow_id

    async def row(self) -> FlowRow:
        return await asyncio.to_thread(self._sync.row)

    @property
    def status(self) -> Any:
        """Awaited: ``await run.status``."""
        return self._status()

    async def _status(self) -> str:
        return (await self.row()).status

    async def steps(self) -> list[StepRow]:
        return await asyncio.to_thread(self._sync.steps)

    async def job(self, step: str) -> AsyncJob:
        return self._app._job((await asyncio.to_thread(self._sync.job, step)).id, self._run)

    async def jobs(self) -> AsyncIterator[AsyncJob]:
        for one in await asyncio.to_thread(lambda: list(self._sync.jobs())):
            yield self._app._job(one.id, False)

    async def wait(
        self, timeout: Duration | None = None, *, progress: bool = False, run: bool | None = None
    ) -> AsyncFlowRun:
        if progress or (self._run if run is None else run):
            await asyncio.to_thread(lambda: self._sync.wait(timeout, progress=progress, run=run))
            return self
        patience = Patience(f"flow {self.id}", timeout)
        while not (found := await self.row()).ended:
            await asyncio.sleep(patience.pause(found.status))
        return self

    async def result(self, step: str | None = None, timeout: Duration | None = None) -> Any:
        await self.wait(timeout)
        return await asyncio.to_thread(self._sync.result, step)

    async def explain(self) -> Explanation:
        return await asyncio.to_thread(self._sync.explain)

    async def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        return await asyncio.to_thread(lambda: self._sync.cancel(reason, by=by))

    async def redrive(
        self, give_up_after: Duration | None = None, *, reason: str | None = None, by: str | None = None
    ) -> int:
        return await asyncio.to_thread(lambda: self._sync.redrive(give_up_after, reason=reason, by=by))

    async def resolve(self, step: str, note: str, *, nothing_to_undo: bool = False, by: str | None = None) -> None:
        await asyncio.to_thread(lambda: self._sync.resolve(step, note, nothing_to_undo=nothing_to_undo, by=by))

    async def abandon_undo(self, step: str, note: str, *, by: str | None = None) -> None:
        await asyncio.to_thread(lambda: self._sync.abandon_undo(step, note, by=by))

    async def undo_again(self, step: str, note: str | None = None, *, by: str | None = None) -> None:
        await asyncio.to_thread(lambda: self._sync.undo_again(step, note, by=by))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncFlowRun) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<AsyncFlowRun {self.id}>"
