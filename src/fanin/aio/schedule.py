"""`Schedule` for programs on an event loop: the same names and parameters, awaited."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from fanin.aio.job import AsyncJob
from fanin.domain.model import Firing, ScheduleRow

if TYPE_CHECKING:
    from fanin.aio.app import AsyncApp
    from fanin.schedule import Schedule


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
