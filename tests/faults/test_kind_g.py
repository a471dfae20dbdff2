"""Kind G: time as seen by different machines, and arithmetic on it."""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.protocol import lease
from fanin.runtime.schedule import Scheduler
from fanin.stores.base import Store
from fanin.testing.clock import Clock
from tests.faults.crew import Crew
from tests.protocol.helpers import claim, failed, make, part, retried, say, settle
from tests.runtime.working import until, working
from tests.support.postgres import Server


def test_F047_worker_clocks_that_disagree_decide_nothing(pg_server: Server, crew: Crew) -> None:
    """ten minutes behind and ten ahead: no lease of a minute is taken for over, deadlines and retries are on time"""
    held = crew.map("gated", range(2))
    for n, skew in enumerate((-600.0, 600.0)):
        crew.start(f"pod-{n}", skew=skew)
    crew.until_called("gated", 0, 1)
    crew.until_called("gated", 1, 1)
    asked = time.time()
    deadline = crew.map("gated", [1], give_up_after=1.0, delay=3600.0)
    delayed = crew.map("quick", range(3), delay=1.0)
    until(lambda: deadline.progress().ended, "the deadline has passed")
    assert deadline.row().outcome == "gave_up"
    with working(crew.app):
        delayed.wait(90)
    for early in (deadline, delayed):
        assert (early.row().finished_at or 0.0) >= asked + 1.0  # and none waited for a clock that is ten minutes behind
    crew.go(1)
    held.wait(90)
    assert list(held.results()) == [[0, 1], [1, 1]]
    assert held.history() == []


def test_F048_a_suspended_worker_without_a_rival_finishes_its_own_attempt(crew: Crew) -> None:
    job = crew.map("gated", [7])
    pid = crew.start(tends=False)
    crew.until_called("gated", 0, 1)
    with crew.paused(pid):
        crew.expire()
        crew.go(1)
    job.wait(90)
    assert list(job.results()) == [[7, 1]]
    assert job.account()["attempts"] == 1


def test_F048_a_suspended_worker_is_fenced_before_its_next_effect(crew: Crew) -> None:
    job = crew.map("careful", [7])
    pid = crew.start("suspended")
    crew.until_called("careful", 0, 1)
    with crew.paused(pid), working(crew.app, concurrency=1):
        crew.expire()
        crew.until_called("careful", 0, 2)
        crew.go(2)
        job.wait(90)
    crew.go(1)
    idle = crew.map("quick", [1])
    idle.wait(90)  # the suspended worker is back at work, so it has let go of what it held
    assert crew.calls("effect") == [(0, 2)]
    assert list(job.results()) == [[7, 2]]


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "UTC"])
def test_F049_the_same_moment_is_stored_in_every_time_zone(
    store_url: str, app: fanin.App, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    url = store_url
    if app.store.dialect == "pg":
        monkeypatch.setenv("PGTZ", zone)
        url += f"&options=-c%20timezone%3D{zone}"
    with fanin.App(url) as there:

        @there.task
        def work(x: int) -> int:
            return x

        job = there.map(work, [1, 2], give_up_after="1h", delay="10m")
        row = job.row()
        assert row.give_up_at is not None
        assert abs(row.created_at - time.time()) < 300
        assert abs(row.give_up_at - row.created_at - 3600) < 1
        due = say(app.store, "SELECT min(due_at) FROM fanin.part")[0][0]
        assert abs(due - row.created_at - 600) < 1
        looked = app.store.read(lambda: lease.look(0))
        assert looked.due_in is not None
        assert 300 < looked.due_in <= 600


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "UTC"])
def test_F049_a_schedule_fires_at_the_same_moment_in_every_time_zone(
    store_url: str, app: fanin.App, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    url = store_url
    if app.store.dialect == "pg":
        monkeypatch.setenv("PGTZ", zone)
        url += f"&options=-c%20timezone%3D{zone}"
    midsummer = dt.datetime(2026, 7, 1, 0, 0, tzinfo=dt.UTC)  # two o'clock in Berlin
    with fanin.App(url) as there:

        @there.task
        def work(slot: dt.datetime) -> str:
            return slot.isoformat()

        nightly = there.schedule("nightly", "0 2 * * *", work, tz="Europe/Berlin")
        clock = Clock(there.store)
        clock.freeze(midsummer.timestamp() - 1)
        scheduler = Scheduler(there.store, there.schedules, lambda: None)
        scheduler.step()
        scheduler.step()
        assert nightly.firings() == []
        clock.freeze(midsummer.timestamp())
        scheduler.step()
        assert [firing.slot for firing in nightly.firings()] == [midsummer.timestamp()]
        there.run_worker(until_idle=True)
        assert nightly.jobs()[0].result() == "2026-07-01T02:00:00+02:00"


@pytest.fixture(autouse=True)
def zone_as_before() -> Any:
    before = os.environ.get("TZ")
    yield
    if before is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    "moment",
    [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.time(9)],
    ids=["naive", "aware", "time"],
)
def test_F049_a_moment_is_refused_where_a_duration_is_meant(app: fanin.App, moment: Any) -> None:
    @app.task
    def work(x: int) -> int:
        return x

    with pytest.raises(fanin.BadOption, match="give_up_after"):
        app.map(work, [1], give_up_after=moment)
    with pytest.raises(fanin.BadOption, match="delay"):
        app.map(work, [1], delay=moment)


@pytest.mark.parametrize("attempt", [46, 47, 255, 256, 1_024, 32_767, 32_768, 2**31 - 3])
def test_F050_a_part_at_a_very_late_attempt_keeps_its_schedule(store: Store, attempt: int) -> None:
    job_id = make(store, 2, attempts=3)
    say(store, f"UPDATE fanin.part SET attempt = {attempt - 1}, attempts_allowed = {attempt + 1}, "
        "claim_id = '11111111-2222-3333-4444-555555555555'")  # fmt: skip
    held = claim(store)
    assert [found.attempt for found in held] == [attempt, attempt]
    pause = fanin.Backoff(first=5, factor=10, cap=3600, jitter=0).delay(attempt)
    assert pause == 3600
    settle(store, retried(held[0], pause), failed(held[1]))
    assert [part(store, job_id, idx)["status"] for idx in (0, 1)] == ["pending", "failed"]
    due = app_due(store)
    assert 3300 < due <= 3600
    settle(store, retried(held[0], limits.DELAY_SECONDS_MAX * 10))
    assert app_due(store) == pytest.approx(due, abs=300)


def app_due(store: Store) -> float:
    looked = store.read(lambda: lease.look(0)).due_in
    assert looked is not None
    return looked


def test_F050_an_allowance_cannot_grow_past_what_the_database_can_count(store: Store) -> None:
    """a redrive at the very end of the numbers is refused as a whole, not cut or wrapped around"""
    job_id = make(store, 1, attempts=3)
    say(store, "UPDATE fanin.part SET attempt = 999999, attempts_allowed = 1000000, "
        "claim_id = '11111111-2222-3333-4444-555555555555'")  # fmt: skip
    (held,) = claim(store)
    settle(store, failed(held))
    from fanin.protocol import redrive

    assert store.run(lambda: redrive.redrive(0, job_id, 1, limits.ATTEMPTS)) == 2
    (held,) = claim(store)
    assert (held.attempt, held.attempts_allowed) == (1_000_001, 1_000_000 + limits.ATTEMPTS)
