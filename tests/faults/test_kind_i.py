"""Kind I: commit replies get lost, servers restart, transactions are refused."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import psycopg
import pytest

import fanin
from fanin.domain.model import Verdict
from fanin.protocol import lease
from fanin.protocol.steps import Query
from fanin.stores import open_store
from fanin.stores.base import Store
from fanin.stores.pg_async import AsyncPostgres
from tests.protocol.helpers import Clock, claim, done, make, say, settle
from tests.runtime.working import Renewals, until, working
from tests.support.postgres import Server


def refuse_completions(store: Store, code: str, times: int) -> None:
    """Let the next writes of a succeeded part fail with this SQLSTATE, so many times."""
    say(store, "CREATE SEQUENCE fanin.refusals")
    say(
        store,
        "CREATE FUNCTION fanin.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('fanin.refusals') <= {times} THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{code}'; END IF; "
        "RETURN NEW; END $$",
    )
    say(store, "CREATE TRIGGER refuse BEFORE UPDATE ON fanin.part FOR EACH ROW WHEN (NEW.status = 'succeeded') "
        "EXECUTE FUNCTION fanin.refuse()")  # fmt: skip


def test_F060_three_answers_to_a_report_whose_commit_is_unknown(store: Store, clock: Clock) -> None:
    """mine already; done by a later attempt, with the same value even; lost to one that still runs"""
    make(store, 3, attempts=5)
    held = claim(store, seconds=5.0)
    settle(store, done(held[0], "7"))
    clock.advance(6.0)
    store.run(lambda: lease.wake(0))
    later = {found.idx: found for found in claim(store)}
    settle(store, done(later[1], "7"))
    mine, superseded, lost = settle(store, *(done(found, "7") for found in held))
    assert (mine.verdict, mine.status, mine.attempt) == (Verdict.REPLAY, "succeeded", 1)
    assert (superseded.verdict, superseded.status, superseded.attempt) == (Verdict.LOST, "succeeded", 2)
    assert (lost.verdict, lost.status, lost.attempt) == (Verdict.LOST, "running", 2)


@pytest.mark.parametrize(("code", "times"), [("40001", 1), ("40P01", 3), ("40001", 10**9)])
def test_F061_a_completion_that_is_refused_is_said_again_and_the_handler_is_not_run_again(
    app: fanin.App, pg_server: Server, renewals: Renewals, code: str, times: int
) -> None:
    """also when it takes longer than the lease, which is renewed meanwhile"""
    calls: list[int] = []
    refuse_completions(app.store, code, times)

    @app.task
    def work(x: int) -> int:
        calls.append(x)
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[int]:
        return list(found)

    job = app.submit_with(work, [1], then=after)
    with working(app, concurrency=1), working(app, concurrency=1):
        if times > 100:
            until(lambda: calls, "it has run")
            renewals.clear()
            until(lambda: renewals.of(job.id, 0) >= 3, "it is renewed")
            say(app.store, "DROP FUNCTION fanin.refuse CASCADE")
        job.wait(90)
    assert calls == [1]
    assert job.history() == []
    assert (job.account()["attempts"], job.account()["successors"]) == (1, 1)


def test_F063_a_cancelled_query_leaves_no_session_that_idles_in_a_transaction(
    pg_server: Server, migrated_url: str
) -> None:
    store = open_store(f"{migrated_url}&application_name=F063")
    slow = Query("test", "slow", (), {"pg": "SELECT pg_sleep(90)", "lite": ""})
    quick = Query("test", "quick", (), {"pg": "SELECT 1", "lite": ""})

    def say_it(query: Query) -> Any:
        return (yield query())

    def sessions(condition: str) -> list[Any]:
        with psycopg.connect(pg_server.url(), autocommit=True) as connection:
            return connection.execute(
                f"SELECT pid, state FROM pg_stat_activity WHERE application_name = 'F063' AND {condition}"
            ).fetchall()

    async def main() -> None:
        runner = AsyncPostgres(store)  # type: ignore[arg-type]
        for _ in range(3):
            for drive in (runner.run, runner.read):
                task = asyncio.create_task(drive(lambda: say_it(slow)))
                while not await asyncio.to_thread(sessions, "query LIKE '%pg_sleep%' AND state = 'active'"):
                    assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        for _ in range(100):
            assert await runner.run(lambda: say_it(quick)) == [(1,)]
        await runner.close()

    asyncio.run(main())
    until(lambda: not sessions("state <> 'idle'"), "the cancelled queries are over, and no transaction is open")
    store.close()


def test_F065_time_outs_of_the_server_are_answered_by_another_try(
    app: fanin.App, pg_server: Server, migrated_url: str
) -> None:
    """no part fails by one, and no session of ours idles in a transaction between two statements"""
    settings = "-c statement_timeout=2000 -c lock_timeout=100 -c idle_in_transaction_session_timeout=3000"
    hard = fanin.App(f"{migrated_url}&options={settings.replace(' ', '%20').replace('=', '%3D')}")

    @hard.task(attempts=1)
    def work(x: int) -> int:
        return x

    job = hard.map(work, range(200))
    address, _, schema = migrated_url.partition("?fanin_schema=")
    with psycopg.connect(address) as other, working(hard), working(hard):
        for _ in range(2):
            other.execute(f'SELECT 1 FROM "{schema}".job_stripe FOR UPDATE')
            over = time.monotonic() + 0.7
            until(lambda over=over: time.monotonic() > over, "several times the time-out has passed")  # type: ignore[misc]
            other.rollback()
        job.wait(90)
    hard.close()
    assert job.progress().succeeded == 200
    assert {entry["what"] for entry in job.history()} <= {"released"}


def test_F067_no_space_left_stops_the_claims_and_fails_nothing(
    app: fanin.App, pg_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """it is said loudly; reads and a cancel still work; all goes on when there is space again"""
    begun: list[int] = []

    @app.task(attempts=1)
    def work(x: int) -> int:
        begun.append(x)
        return x

    app.store.tries = 2
    refuse_completions(app.store, "53100", 10**9)
    job, other = app.map(work, range(20)), app.map(work, range(20), delay=60)
    with caplog.at_level(logging.WARNING, "fanin"), working(app, concurrency=2):
        until(lambda: sum("refused" in r.getMessage() for r in caplog.records) >= 3, "three tries have failed")
        assert len(begun) <= 4
        assert (job.status, job.progress().remaining) == ("running", 20)
        assert other.cancel("no space")
        say(app.store, "DROP TRIGGER refuse ON fanin.part")
        job.wait(90)
    assert sorted(begun) == list(range(20))
    assert job.history() == []
    assert other.status == "cancelled"


def test_F066_a_callers_transaction_at_a_stricter_level_is_told_to_try_again(
    app: fanin.App, pg_server: Server, migrated_url: str
) -> None:
    """two callers with one key, both at REPEATABLE READ or SERIALIZABLE: one job, the other tries again"""

    @app.task
    def work(x: int) -> int:
        return x

    address = migrated_url.partition("?fanin_schema=")[0]
    for level in (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE):
        with psycopg.connect(address) as first, psycopg.connect(address) as second:
            for connection in (first, second):
                connection.isolation_level = level
                connection.execute("SELECT count(*) FROM pg_class")  # the snapshot is taken
            key = f"at {level.name}"
            made = app.map(work, range(3), key=key, within=first)
            waiting: list[Any] = []

            def ask(key: str = key, second: Any = second, waiting: list[Any] = waiting) -> None:
                try:
                    waiting.append(app.map(work, range(3), key=key, within=second))
                except psycopg.errors.SerializationFailure as problem:
                    waiting.append(problem)

            asking = threading.Thread(target=ask)
            asking.start()
            first.commit()
            asking.join(90)
            if isinstance(waiting[0], Exception):
                second.rollback()
                waiting[0] = app.map(work, range(3), key=key, within=second)
            second.commit()
            assert waiting[0].id == made.id
            assert made.progress().remaining == 3
