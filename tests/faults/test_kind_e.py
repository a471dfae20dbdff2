"""Kind E: the signal that keeps a lease alive must not depend on the work it vouches for."""

from __future__ import annotations

import asyncio
import itertools
import logging
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
from tests.runtime.working import until, working


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """(moment, part) of every lease that a heart has renewed."""
    found: list[tuple[float, int]] = []
    renew = lease.renew

    def noted(bucket: int, held: Any) -> Any:
        lost = yield from renew(bucket, held)
        found.extend((time.monotonic(), claim.idx) for claim, _ in held if claim not in lost)
        return lost

    monkeypatch.setattr(lease, "renew", noted)
    return found


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


def test_F033_a_handler_that_computes_in_pure_python_keeps_its_lease(
    app: fanin.App, renewals: list[tuple[float, int]]
) -> None:
    """four of them in one process, an idle peer; no gap between renewals is longer than two thirds of the lease"""
    seconds = 1.5

    @app.task(lease=seconds)
    def primes(x: int) -> int:
        n, end = 2, time.monotonic() + 3 * seconds
        while time.monotonic() < end:
            n += all(n % d for d in range(2, 100))
        return fanin.current().attempt

    begun = time.monotonic()
    job = app.map(primes, range(4))
    with working(app, concurrency=4), working(app):
        job.wait(90)
    assert list(job.results()) == [1, 1, 1, 1]
    assert job.account()["attempts"] == 4
    for idx in range(4):
        moments = [begun, *(moment for moment, part in renewals if part == idx)]
        assert len(moments) >= 4
        assert max(b - a for a, b in itertools.pairwise(moments)) < 2 / 3 * seconds + 0.4


def test_F034_an_async_handler_that_blocks_the_event_loop_harms_no_other(
    app: fanin.App, caplog: pytest.LogCaptureFixture
) -> None:
    """ten run once, and the one that blocks is named"""
    seconds = 1.0

    @app.task(name="blocker", lease=seconds)
    async def blocker(x: int) -> int:
        time.sleep(3 * seconds)
        return fanin.current().attempt

    @app.task(name="polite", lease=seconds)
    async def polite(x: int) -> int:
        await asyncio.sleep(0.5)
        return fanin.current().attempt

    polites = app.map(polite, range(9))
    with caplog.at_level(logging.WARNING, "fanin"), working(app, concurrency=10), working(app):
        until(lambda: say(app.store, "SELECT 1 FROM fanin.part WHERE status = 'running'"), "they have begun")
        blocking = app.submit(blocker, 1)
        assert blocking.wait(90).result() == 1
        assert list(polites.wait(90).results()) == [1] * 9
    assert blocking.account()["attempts"] == 1
    assert polites.account()["attempts"] == 9
    named = [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]
    assert named
    assert "blocker" in named[0]


def test_F035_a_heartbeat_that_fails_for_a_third_of_a_lease_changes_nothing(
    app: fanin.App, cut: Cut, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(lease=1.5)
    def work(x: int) -> list[Any]:
        cut.off = True
        until(lambda: cut.refused >= 1, "a heartbeat has failed")
        cut.off = False
        refused = cut.refused
        until(lambda: fanin.current().cancelled or time.monotonic() > end[0], "a lease has passed", 10)
        return [fanin.current().attempt, fanin.current().cancelled, refused]

    end = [time.monotonic() + 2.0]
    job = app.submit(work, 1)
    with caplog.at_level(logging.WARNING, "fanin"), working(app):
        assert job.wait(90).result()[:2] == [1, False]
    assert any("heartbeat: cut off; trying again" in record.getMessage() for record in caplog.records)


def test_F035_a_heartbeat_that_fails_for_a_whole_lease_stops_the_work_and_starts_no_other(
    app: fanin.App, cut: Cut
) -> None:
    """by the worker's own clock, before the lease can have ended; afterwards it serves again by itself"""
    seconds = 1.5
    claimed, told, begun = [0.0], [0.0], []

    @app.task(lease=seconds, attempts=5)
    def work(x: int) -> int:
        begun.append(x)
        if x == 0 and fanin.current().attempt == 1:
            claimed[0] = time.monotonic()
            until(lambda: fanin.current().cancelled, "the work is told to stop")
            told[0] = time.monotonic()
            fanin.current().heartbeat()
        return x

    cut.off = True
    job = app.map(work, range(3))
    with working(app, concurrency=1):
        until(lambda: told[0], "the handler was told")
        refused = cut.refused
        until(lambda: cut.refused >= refused + 4, "four more heartbeats have failed")
        assert begun == [0]
        assert told[0] - claimed[0] < seconds
        cut.off = False
        job.wait(90)
    assert list(job.results()) == [0, 1, 2]
    assert job.account()["attempts"] == 4


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
