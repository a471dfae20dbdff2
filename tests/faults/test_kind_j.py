"""Kind J: PostgreSQL as a queue: planner, locks, notifications, numbers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

import fanin
from fanin.domain import limits
from fanin.domain.identity import new_claim_id
from fanin.domain.model import Claim
from fanin.protocol import close, lease
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.stores import open_store
from fanin.stores.base import Store
from fanin.testing.proxy import PgProxy
from tests.faults.scale import scaled
from tests.protocol.helpers import QUEUE, TASK, claim, done, make, say, settle
from tests.runtime.working import until, working
from tests.support.databases import migrate_database
from tests.support.postgres import Server

BAD_PLANS = (
    "-c enable_hashjoin=off -c enable_mergejoin=off -c enable_material=off -c random_page_cost=1000 "
    "-c plan_cache_mode=force_custom_plan"
)


@pytest.mark.parametrize("limit", [1, 10])
def test_F068_a_claim_takes_no_more_rows_than_asked(pg_server: Server, migrated_url: str, limit: int) -> None:
    """many at once, on a table without statistics, with plans that once took too many"""
    store = open_store(f"{migrated_url}&options={BAD_PLANS.replace(' ', '%20').replace('=', '%3D')}")
    parts = scaled(4_000)
    make(store, parts, attempts=1)
    taken: list[Claim] = []
    longest: list[int] = []

    def take() -> None:
        for _ in range(scaled(50)):
            found = store.run(lambda: lease.claim(0, QUEUE, {TASK: 60.0}, limit, new_claim_id(), "w"))
            longest.append(len(found))
            taken.extend(found)

    takers = [threading.Thread(target=take) for _ in range(6)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join(scaled(90))
    assert max(longest) == limit
    assert len({found.idx for found in taken}) == len(taken)
    stamped = say(store, "SELECT idx, claim_id FROM fanin.part WHERE status = 'running'")
    assert {(idx, str(claim_id)) for idx, claim_id in stamped} == {(found.idx, found.claim_id) for found in taken}
    store.close()


def test_F069_writers_of_many_rows_do_not_lock_each_other(own_pg: Callable[..., Server]) -> None:
    """batches of completions, heartbeats, the upkeep and cancels on the same jobs: no deadlock is counted"""
    server = own_pg()
    migrate_database(server.url("fanin"))
    store = open_store(server.url("fanin"))

    def deadlocks() -> int:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            row = connection.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone()
            assert row
            return int(row[0])

    jobs = [make(store, 300, attempts=50, stripes=4) for _ in range(4)]
    stop = time.monotonic() + scaled(4)
    problems: list[BaseException] = []

    def repeat(step: Any) -> None:
        try:
            while time.monotonic() < stop:
                step()
        except BaseException as problem:
            problems.append(problem)

    def work() -> None:
        held = claim(store, 60, seconds=0.05)
        store.run(lambda: lease.renew(0, [(found, 0.05) for found in reversed(held)]))
        settle(store, *(done(found) for found in reversed(held)))

    def cancel() -> None:
        for job_id in jobs[:2]:
            store.run(lambda job_id=job_id: close.cancel(0, job_id))  # type: ignore[misc]

    steps = [work, work, work, lambda: upkeep.once(store, 0), lambda: upkeep.once(store, 0), cancel]
    threads = [threading.Thread(target=repeat, args=[step]) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert problems == []
    assert deadlocks() == 0
    store.close()


def test_F071_a_listener_that_is_silently_dead_costs_one_poll(
    app: fanin.App, pg_server: Server, migrated_url: str
) -> None:
    """nothing comes through and nothing is reset; work is picked up all the same"""
    address = urlsplit(migrated_url)
    with PgProxy((str(address.hostname), int(address.port or 0))) as proxy:
        through = address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}", query="").geturl()
        deaf = fanin.App(f"{migrated_url}&fanin_listen={through.replace(':', '%3A').replace('/', '%2F')}")

        @deaf.task(name="echo")
        def echo(x: int) -> int:
            return x

        app.tasks.update(deaf.tasks)
        with working(deaf):
            until(lambda: proxy.counts["messages"] >= 3, "the listener listens")
            app.map(echo, [0]).wait(90)
            proxy.black_hole()
            app.map(echo, [1]).wait(90)
            proxy.black_hole(False)
        deaf.close()


def test_F072_a_part_that_comes_between_the_look_and_the_wait_is_found(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on both databases, with no further traffic"""

    @app.task
    def echo(x: int) -> int:
        return x

    made: list[fanin.Job] = []
    rest = Worker._rest
    monkeypatch.setattr("fanin.runtime.worker.POLL_SECONDS", 3600.0)

    def late(self: Worker, busy: bool, poll: float) -> None:
        if not made:
            made.append(app.submit(echo, 1))
        rest(self, busy, poll)

    monkeypatch.setattr(Worker, "_rest", late)
    with working(app):
        job = until(lambda: made and made[0], "the worker is about to rest")
        job.wait(90)


@pytest.mark.parametrize("turn", [2**31 - 2, 2**53 - 1])
def test_F073_numbers_beyond_32_and_53_bits_keep_their_order(store: Store, turn: int) -> None:
    """the places in a queue are the only numbers that grow for ever"""
    make(store, 2)
    say(store, f"UPDATE fanin.part SET turn = {turn} + idx")
    job_id = make(store, 5)
    turns = say(store, f"SELECT turn FROM fanin.part WHERE job_id = '{job_id}' ORDER BY idx")
    assert turns == [(turn + n,) for n in range(5)]
    held = claim(store, 10)
    assert len(held) == 7
    settle(store, *map(done, held))
    assert say(store, "SELECT turn FROM fanin.job WHERE turn > 1") == [(turn,)]


def test_F074_long_payloads_keys_and_errors_do_not_go_into_notifications(app: fanin.App) -> None:
    """on both databases: a payload at the limit, a multi-byte key, many parts at once, a long error"""
    key = "\u6f22" * limits.KEY_CHARS
    queue = "\u00fc" * limits.NAME_CHARS

    @app.task(attempts=1, queue=queue)
    def work(x: str) -> int:
        raise fanin.Permanent("\u6f22" * 9_000)

    @app.task(queue=queue)
    def count(x: str) -> int:
        return len(x)

    big = app.map(count, ["y" * (limits.PAYLOAD_BYTES - 2)], key=key)
    many = app.map(count, ["z"] * 5_000)
    bad = app.map(work, ["w"])
    with working(app):
        assert big.wait(60).result() == limits.PAYLOAD_BYTES - 2
        assert many.wait(60).progress().succeeded == 5_000
        (failure,) = bad.wait(60).failures()
    assert "characters cut" in failure.message
    assert len(json.dumps(failure.message).encode()) < 2 * limits.ERROR_BYTES
    assert app.job(key).id == big.id
