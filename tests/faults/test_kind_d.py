"""Kind D: a worker that lost its lease may still be running; only the current attempt may write."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

import fanin
from fanin.domain.errors import LeaseLost
from fanin.domain.identity import new_claim_id
from fanin.domain.model import Report, Verdict
from fanin.protocol import lease
from fanin.runtime.part import Part
from fanin.stores.base import Store
from fanin.testing.proxy import PgProxy
from fanin.testing.state import dump
from tests.faults.crew import ATTEMPTS, Crew
from tests.faults.scale import scaled
from tests.protocol.effects import begun, intent
from tests.protocol.helpers import Clock, claim, done, failed, log, make, part, released, retried, say, settle
from tests.runtime.rows import end_leases
from tests.runtime.working import Renewals, until, working


@pytest.mark.parametrize("first", ["the stalled one", "its successor"])
def test_F023_a_stalled_worker_returns_after_takeover(crew: Crew, first: str) -> None:
    """only the later attempt's result is stored; the earlier one is refused and counted as such"""
    job = crew.map("gated", [7], then=crew.app.tasks["after"])
    stalled = crew.start("stalled")
    crew.until_called("gated", 0, 1)
    with crew.paused(stalled), working(crew.app, name="successor", concurrency=1):
        crew.expire()
        crew.until_called("gated", 0, 2)
        if first == "its successor":
            crew.go(2)
            job.wait(90)
    crew.go(1)
    with working(crew.app, name="third"):
        until(lambda: job.account()["stale_refused"] == 1 or job.progress().ended, "the stalled one has spoken")
        crew.go(2)
        crew.go(3)
        job.wait(90)
        until(lambda: job.account()["stale_refused"] >= 1, "the stalled one was refused")
        assert job.successor is not None
        ((_, attempt),) = job.results()
        assert attempt >= 2
        assert job.successor.result(90) == [[7, attempt]]
    refused = [entry for entry in job.history() if entry["what"] == "refused"]
    assert (refused[0]["attempt"], refused[0]["worker"]) == (1, "stalled")
    assert job.account()["ends"] == 1


@pytest.mark.parametrize(
    "say_it", [failed, retried, lambda held: retried(held, 5.0), released], ids=["fail", "retry", "delay", "release"]
)
def test_F024_a_zombie_reports_failure_not_success(store: Store, clock: Clock, say_it: Any) -> None:
    """the attempt that holds the part is untouched: no attempt consumed, no back-off, no other state"""
    job_id = make(store, 2, attempts=5)
    zombie = next(held for held in claim(store, 1, seconds=5.0))
    clock.advance(6.0)
    store.run(lambda: lease.wake(0))
    holder = next(held for held in claim(store) if held.idx == zombie.idx)
    before = part(store, job_id, zombie.idx)
    (answer,) = settle(store, say_it(zombie))
    assert (answer.verdict, answer.attempt) == (Verdict.LOST, holder.attempt)
    assert part(store, job_id, zombie.idx) == before
    assert (zombie.idx, 1, "refused") in log(store, job_id)
    assert settle(store, done(holder))[0].verdict is Verdict.OK


def test_F025_several_reapers_see_the_same_expired_lease(store: Store) -> None:
    """one says that the lease was lost, and the part becomes claimable once"""
    for _ in range(scaled(15)):
        job_id = make(store, 1, attempts=3)
        for attempt in (1, 2):
            (held,) = claim(store, seconds=-1.0)
            assert held.attempt == attempt
            together = threading.Barrier(4)
            woken: list[int] = []

            def reap(together: threading.Barrier = together, woken: list[int] = woken) -> None:
                together.wait(90)
                woken.append(len(store.run(lambda: lease.wake(0)).queues))
                store.run(lambda: lease.reap(0))

            reapers = [threading.Thread(target=reap) for _ in range(4)]
            for reaper in reapers:
                reaper.start()
            for reaper in reapers:
                reaper.join(90)
            assert sorted(woken) == [0, 0, 0, 1]
            assert log(store, job_id) == [(0, n, "lease_lost") for n in range(1, attempt + 1)]
        (held,) = claim(store)
        assert (held.attempt, held.attempts_allowed) == (3, 3)
        assert claim(store) == []
        settle(store, done(held))


def test_F026_a_part_that_kills_its_worker_every_time(crew: Crew) -> None:
    """it is claimed as often as allowed and no more, and then failed; its siblings are not starved"""
    job = crew.map("aborts", range(10), tolerate=1, then=crew.app.tasks["after"])
    for _ in range(ATTEMPTS):
        assert crew.ended(crew.start()) == -signal.SIGABRT
        crew.expire()
    crew.start()
    until(lambda: job.progress().ended, "the job has ended")
    assert [idx for idx, _ in crew.calls("aborts")].count(3) == ATTEMPTS
    (failure,) = job.failures()
    assert (failure.idx, failure.type) == (3, "WorkerLost")
    assert list(job.results()) == [n for n in range(10) if n != 3]
    assert (job.status, job.account()["ends"]) == ("completed", 1)


def test_F026_a_part_that_kills_its_worker_does_not_take_its_neighbours_along_for_good(crew: Crew) -> None:
    """four at once: those that were lost together have their last attempt one by one"""
    job = crew.map("aborts", range(10), tolerate=1)
    for _ in range(ATTEMPTS):
        assert crew.ended(crew.start(concurrency=4)) == -signal.SIGABRT
        crew.expire()
    crew.start(concurrency=4)
    until(lambda: job.progress().ended, "the job has ended")
    assert [(failure.idx, failure.type) for failure in job.failures()] == [(3, "WorkerLost")]
    assert [idx for idx, _ in crew.calls("aborts")].count(3) == ATTEMPTS
    assert list(job.results()) == [n for n in range(10) if n != 3]


def test_F027_a_restarted_worker_with_the_same_name_does_not_keep_the_lease_of_the_dead_one(crew: Crew) -> None:
    """F028, F032 too: nothing but the lease of the part decides, and any running worker sees it end"""
    held_up = crew.map("gated", [1])
    pid = crew.start("pod-0")
    crew.until_called("gated", 0, 1)
    crew.kill(pid)
    crew.go(2)
    with working(crew.app, name="pod-0"):
        crew.map("quick", range(5)).wait(90)
        crew.expire()
        held_up.wait(90)
    assert list(held_up.results()) == [[1, 2]]
    assert [(entry["what"], entry["worker"]) for entry in held_up.history()] == [("lease_lost", "pod-0")]


def test_F029_the_claim_was_committed_but_the_worker_never_heard_of_it(pg_url: str, migrated_url: str) -> None:
    """its lease ends and another attempt runs it; one result"""
    parts = urlsplit(pg_url)
    with PgProxy((str(parts.hostname), int(parts.port or 0))) as proxy:
        app = fanin.App(parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}").geturl())

        @app.task
        def echo(x: int) -> int:
            return x

        job = app.map(echo, [5])

        proxy.cut_next_commit("reply")  # the first COMMIT of the worker is that of its claim
        with working(app):
            until(lambda: proxy.counts["cut_reply"], "the answer is lost")
            until(
                lambda: say(app.store, "SELECT 1 FROM fanin.part WHERE status = 'running'"),
                "it was claimed all the same",
            )
            end_leases(app.store)
            job.wait(90)
        assert proxy.counts["cut_reply"] == 1
        assert list(job.results()) == [5]
        assert job.account()["attempts"] == 2
        assert [entry["what"] for entry in job.history()] == ["lease_lost"]
        app.close()


def test_F030_healthy_parts_that_outlast_their_lease_run_once(app: fanin.App, renewals: Renewals) -> None:
    """a sleeping one, an awaiting one and one that computes, while idle peers wait"""
    import asyncio

    @app.task
    def sleeps(x: int) -> int:
        part = fanin.current()
        until(lambda: renewals.enough(part), "it is renewed")
        return part.attempt

    @app.task
    async def awaits(x: int) -> int:
        part = fanin.current()
        await asyncio.to_thread(until, lambda: renewals.enough(part), "it is renewed")
        return part.attempt

    @app.task
    def computes(x: int) -> int:
        part = fanin.current()
        until(lambda: sum(range(1_000)) and renewals.enough(part), "it is renewed", pause=0)
        return part.attempt

    jobs = [app.submit(task, 1) for task in (sleeps, awaits, computes)]
    with working(app), working(app), working(app):
        for job in jobs:
            assert job.wait(90).result() == 1
            assert job.account()["attempts"] == 1
            assert job.history() == []


def test_F031_every_kind_of_write_carries_the_fence(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=5)
    (zombie,) = claim(store, seconds=5.0)
    clock.advance(6.0)
    store.run(lambda: lease.wake(0))
    (holder,) = claim(store)
    own = Part(zombie, 5.0, store)

    def rows() -> dict[str, Any]:
        return {table: found for table, found in dump(store).items() if table != "attempt_log"}

    before = rows()
    with pytest.raises(LeaseLost):
        own.heartbeat()
    with pytest.raises(LeaseLost):
        Part(zombie, 5.0, store).checkpoint({"reached": 1})
    for verb in ("succeed", "fail", "retry", "release"):
        result = "1" if verb == "succeed" else None
        error = None if verb in ("succeed", "release") else "{}"
        wants = (intent(),) if verb == "succeed" else ()
        (answer,) = settle(store, Report(zombie, verb, result, error, effects=wants))
        assert (answer.verdict, answer.attempt) == (Verdict.LOST, holder.attempt), verb
    assert begun(store, zombie).status == "lost", "it calls nothing any more"
    assert rows() == before
    assert say(store, "SELECT count(*) FROM fanin.outbox") == [(0,)]
    assert log(store, job_id) == [(0, 1, "lease_lost"), (0, 1, "refused"), (0, 1, "stopped")]


def test_F026_a_last_attempt_after_a_lost_one_has_no_company(app: fanin.App) -> None:
    """what runs beside it is waited for, and nothing is claimed meanwhile"""
    running: set[int] = set()
    company: list[int] = []

    @app.task(attempts=2, lease=30)
    def work(x: int) -> int:
        running.add(x)
        deadline = time.monotonic() + 0.2
        while x < 3 and time.monotonic() < deadline:
            company.extend(running - {x})
        running.discard(x)
        return x

    job = app.map(work, range(3))
    dead = app.store.run(lambda: lease.claim(0, "default", {work.name: -1.0}, 3, new_claim_id(), "dead"))
    assert [held.alone for held in dead] == [False] * 3
    app.store.run(lambda: lease.wake(0))
    others = app.map(work, range(3, 60))
    with working(app, concurrency=4):
        job.wait(90)
        others.wait(90)
    assert company == []
    assert list(job.results()) == [0, 1, 2]
    assert job.account()["attempts"] >= 6, "each once more, and those that were given back to come one by one"


def test_F026_a_last_attempt_is_given_back_where_its_company_does_not_end(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a handler that never ends does not hold up the others for ever"""
    monkeypatch.setattr("fanin.runtime.worker.ALONE_SECONDS", 0.5)
    begun, go_on = threading.Event(), threading.Event()

    @app.task(attempts=2, lease=30)
    def work(x: int) -> int:
        if x == 9:
            begun.set()
            assert go_on.wait(90)
        return x

    stuck = app.map(work, [9])
    with working(app, concurrency=4):
        assert begun.wait(90)
        job = app.map(work, range(3), delay=60)
        lost = f"attempt = 1, status = 'running', due_at = 0, claim_id = '{new_claim_id()}', worker = 'dead'"
        say(app.store, f"UPDATE fanin.part SET {lost} WHERE job_id = '{job.id}'")
        job.wait(90)
        assert stuck.status == "running"
        go_on.set()
        stuck.wait(90)
    assert list(job.results()) == [0, 1, 2]
    assert {entry["what"] for entry in job.history()} == {"lease_lost", "released"}
