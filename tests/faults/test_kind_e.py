"""Kind E: the signal that keeps a lease alive must not depend on the work it vouches for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.domain.errors import StoreUnreachable
from fanin.domain.identity import new_claim_id
from fanin.protocol import lease
from fanin.runtime.executors import Running
from fanin.runtime.heart import Heart
from fanin.stores.base import Store
from tests.protocol.helpers import say
from tests.runtime.rows import end_leases
from tests.runtime.working import Renewals, until, working


class Cut:
    """A reserved store that can be cut off from its database: what a heart has."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.off = False
        self.refused = 0

    def _check(self) -> None:
        if self.off:
            self.refused += 1
            raise StoreUnreachable("cut off")

    def run(self, factory: Any) -> Any:
        self._check()
        return self._store.run(factory)

    def read(self, factory: Any) -> Any:
        self._check()
        return self._store.read(factory)

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def cut(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> Cut:
    made = Cut(app.store.reserve())
    monkeypatch.setattr(app.store, "reserve", lambda: made)
    return made


def test_F033_a_handler_that_computes_in_pure_python_keeps_its_lease(app: fanin.App, renewals: Renewals) -> None:
    """four of them in one process, an idle peer; each goes on until its lease was renewed again and again"""

    @app.task
    def primes(x: int) -> int:
        part = fanin.current()
        until(lambda: all(97 % d for d in range(2, 97)) and renewals.enough(part), "it is renewed", pause=0)
        return part.attempt

    job = app.map(primes, range(4))
    with working(app, concurrency=4), working(app):
        job.wait(90)
    assert list(job.results()) == [1, 1, 1, 1]
    assert job.account()["attempts"] == 4


def test_F034_an_async_handler_that_blocks_the_event_loop_harms_no_other(
    app: fanin.App, caplog: pytest.LogCaptureFixture, renewals: Renewals
) -> None:
    """ten run once, and the one that blocks is named"""
    blocked = threading.Event()

    def named() -> list[str]:
        return [said for record in caplog.records if "event loop" in (said := record.getMessage())]

    @app.task(name="blocker")
    async def blocker(x: int) -> int:
        part = fanin.current()
        blocked.set()
        until(lambda: named() and renewals.enough(part), "it is named, and renewed")
        return part.attempt

    @app.task(name="polite")
    async def polite(x: int) -> int:
        while not blocked.is_set():
            await asyncio.sleep(0.01)
        return fanin.current().attempt

    polites = app.map(polite, range(9))
    with caplog.at_level(logging.WARNING, "fanin"), working(app, concurrency=10), working(app):
        until(lambda: say(app.store, "SELECT 1 FROM fanin.part WHERE status = 'running'"), "they have begun")
        blocking = app.submit(blocker, 1)
        assert blocking.wait(90).result() == 1
        assert list(polites.wait(90).results()) == [1] * 9
    assert blocking.account()["attempts"] == 1
    assert polites.account()["attempts"] == 9
    assert "blocker" in named()[0]


def test_F035_a_heartbeat_that_fails_now_and_then_changes_nothing(
    app: fanin.App, cut: Cut, caplog: pytest.LogCaptureFixture, renewals: Renewals
) -> None:
    @app.task
    def work(x: int) -> list[Any]:
        part = fanin.current()
        cut.off = True
        until(lambda: cut.refused >= 1, "a heartbeat has failed")
        cut.off = False
        until(lambda: renewals.enough(part), "later ones have not")
        return [part.attempt, part.cancelled]

    job = app.submit(work, 1)
    with caplog.at_level(logging.WARNING, "fanin"), working(app):
        assert job.wait(90).result() == [1, False]
    assert any("heartbeat: cut off; trying again" in record.getMessage() for record in caplog.records)


@pytest.mark.usefixtures("renewals")
def test_F035_a_heartbeat_that_fails_for_a_whole_lease_stops_the_work_and_starts_no_other(
    app: fanin.App, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """by the worker's own clock; afterwards it serves again by itself"""
    told = threading.Event()
    begun: list[int] = []

    @app.task(attempts=5)
    def work(x: int) -> int:
        part = fanin.current()
        begun.append(x)
        if x == 0 and part.attempt == 1:
            before = cut.refused
            until(lambda: cut.refused > before, "a heartbeat has failed")
            monkeypatch.setattr("fanin.runtime.heart.GIVE_UP_SHARE", 0.0)  # the lease is about to run out
            until(lambda: part.cancelled, "the work is told to stop")
            monkeypatch.setattr("fanin.runtime.heart.GIVE_UP_SHARE", 0.9)
            told.set()
            part.heartbeat()
        return x

    cut.off = True
    job = app.map(work, range(3))
    with working(app, concurrency=1):
        assert told.wait(90)
        refused = cut.refused
        until(lambda: cut.refused >= refused + 4, "four more heartbeats have failed")
        assert begun == [0]
        end_leases(app.store)
        cut.off = False
        job.wait(90)
    assert list(job.results()) == [0, 1, 2]
    assert job.account()["attempts"] == 4


def test_F035_the_work_is_told_before_its_lease_can_have_ended(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """whatever the database does: the watch asks the clock alone"""

    @app.task(lease=10)
    def work(x: int) -> int:
        return x

    app.submit(work, 1)
    (claim,) = app.store.run(lambda: lease.claim(0, "default", {work.name: 10.0}, 1, new_claim_id(), "w"))
    start = time.monotonic()
    stopped: list[float] = []
    heart = Heart(app.store, lambda: [Running(claim, work, app.store, start)], lambda *_: stopped.append(ahead), print)
    for ahead in (0.1, 5.0, 8.9, 9.1):
        monkeypatch.setattr("fanin.runtime.heart.time.monotonic", lambda now=start + ahead: now)
        heart.watch()
    monkeypatch.undo()
    heart.close()
    assert stopped == [9.1]


@pytest.mark.parametrize("bad", [0.3, 0, "100ms", 8 * 86_400])
def test_F039_a_lease_that_cannot_work_is_refused_where_the_task_is_made(sqlite_url: str, bad: Any) -> None:
    with fanin.App(sqlite_url) as app, pytest.raises(fanin.BadOption, match="lease"):
        app.task(lease=bad)(lambda x: x)


def test_F039_each_part_is_renewed_by_its_own_need(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 s and 600 s in one worker: a third of its own lease after the last renewal"""

    @app.task(lease=5)
    def short(x: int) -> int:
        return x

    @app.task(lease=600)
    def long(x: int) -> int:
        return x

    app.submit(short, 1)
    app.submit(long, 1)
    leases = {"default": {task.name: task.lease for task in app.tasks.values()}}
    claims = app.store.run(lambda: lease.claim(0, "default", leases["default"], 10, new_claim_id(), "w"))
    start = time.monotonic()
    held = [Running(claim, app.tasks[claim.task], app.store, start) for claim in claims]
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    heart = Heart(app.store, lambda: held, nothing, nothing)
    renewed: list[list[str]] = []
    for ahead in (1.0, 2.0, 3.0, 4.0, 199.0, 200.5):
        monkeypatch.setattr("fanin.runtime.heart.time.monotonic", lambda ahead=ahead: start + ahead)
        before = {running.task.name: running.renewed for running in held}
        heart.beat()
        renewed.append([r.task.function.__name__ for r in held if r.renewed != before[r.task.name]])
    monkeypatch.undo()
    heart.close()
    assert [sorted(names) for names in renewed] == [[], ["short"], [], ["short"], ["short"], ["long"]]
