"""The program under torture: its tasks, and a store that tells the journal what it is about to say."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import fanin
from fanin.domain.errors import Permanent
from fanin.domain.policy import Backoff
from fanin.protocol.steps import Statement
from fanin.testing import crashpoints
from fanin.testing.clock import follow
from fanin.testing.crashpoints import Plan
from fanin.testing.tap import Tap, label, tap
from fanin.testing.torture import breaks, fate, outside, receiver
from fanin.testing.torture.journal import Journal, digest
from fanin.testing.torture.plan import LEASE_SECONDS, Item
from fanin.testing.torture.trips import TripTasks

BACKOFF = Backoff(first=0.05, factor=1.5, cap=0.4)


class Tasks:
    """The tasks of one process. Results name the attempt and the process, so that no two attempts return the same."""

    def __init__(self, app: fanin.App, journal: Journal, who: str) -> None:
        self._journal = journal
        self._who = who
        self.work: Any = app.task(name="torture.work", lease=LEASE_SECONDS, attempts=12, backoff=BACKOFF)(self._work)
        self.work_async: Any = app.task(name="torture.async", lease=LEASE_SECONDS, attempts=12, backoff=BACKOFF)(
            self._work_async
        )
        self.join: Any = app.task(name="torture.join", lease=LEASE_SECONDS, attempts=1000, backoff=BACKOFF)(self._join)
        self.trips = TripTasks(app, journal)

    def _work(self, item: Item) -> Any:
        self._note_body()
        if item.nests:
            return self._nest(item)
        if item.leaves:
            outside.mail(self._journal)
            fanin.current().put(outside.OUTPUT, f"{item.job}/{item.n} by {self._who}")
        receiver.ask(item, self._journal, on_loop=False)
        time.sleep(item.milliseconds / 1000)
        return self._result(item)

    def _nest(self, item: Item) -> fanin.FanOut:
        part = fanin.current()
        self._result(item)
        self._journal.write(e="nest", j=part.job_id, i=part.idx, w=item.nests)
        return part.fan_out(self.work, item.below)

    async def _work_async(self, item: Item) -> dict[str, Any]:
        self._note_body()
        receiver.ask(item, self._journal, on_loop=True)
        await asyncio.sleep(item.milliseconds / 1000)
        return self._result(item)

    def _note_body(self) -> None:
        part = fanin.current()
        self._journal.write(e="body", j=part.job_id, i=part.idx, a=part.attempt)

    def _result(self, item: Item) -> dict[str, Any]:
        part = fanin.current()
        if part.attempt <= item.fails:
            raise Permanent(f"bad at attempt {part.attempt}") if item.bad else ValueError(f"attempt {part.attempt}")
        return {"job": item.job, "n": item.n, "attempt": part.attempt, "by": self._who, "at": time.time()}

    def _join(self, parts: fanin.Joined[Any]) -> dict[str, Any]:
        self._note_body()
        return {"succeeded": parts.succeeded, "failed": parts.failed, "abandoned": parts.abandoned,
                "run": parts.run, "seen": sum(1 for _ in parts), "by": self._who}  # fmt: skip


class Said(Tap):
    """Writes down every report before it is sent: an accepted one that nobody has logged would be a forgery."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def before(self, statement: Statement) -> None:
        if label(statement) == "finish.settle_parts":
            for job_id, idx, attempt, claim_id, verb, result, _ in statement.rows or ():
                self._journal.write(e="say", j=job_id, i=idx, a=attempt, c=claim_id, v=verb, d=digest(result))


def open_app(
    url: str, folder: str, journal: Journal, who: str, clock_file: str | None, plan: Plan | None
) -> tuple[fanin.App, Tasks]:
    """An application on the tortured database, with its history, its crash points and, if asked, a guard missing."""
    app = fanin.App(url)
    follow(app.store, clock_file)
    breaks.split_transactions(app.store)
    tap(app.store, lambda: Said(journal))
    crashpoints.install(app.store, plan)
    receiver.Receiver(folder, journal, who).register(app)
    return app, Tasks(app, journal, who)


def open_points(folder: str, crash: str) -> Plan:
    """The crash points of one process; all processes note what they pass in one file."""
    plan = Plan.parse(crash)
    plan.log = os.open(os.path.join(folder, "points"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return plan


def passed_points(folder: str) -> dict[str, int]:
    """How often each crash point was passed in all workers."""
    found = dict.fromkeys(fate.POINTS, 0)
    path = os.path.join(folder, "points")
    if os.path.exists(path):
        with open(path, encoding="ascii") as file:
            for line in file:
                name = line.split(" ", 1)[0]
                if name in found:
                    found[name] += 1
    return found
