"""Every transaction of the protocol over a network that fails at each of its round trips, in both directions.

A point is a round trip of a transaction (BEGIN, a statement, COMMIT) and a kind of cut, at a message drawn at random.
The short form cuts each round trip in one way, taken in turn, and COMMIT in all; ``FANIN_LONG=1`` cuts each point 20
times. ``FANIN_STORM_SEED`` draws other messages.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from fanin.domain import limits
from fanin.domain.errors import StoreUnreachable
from fanin.protocol.steps import Again, Txn, TxnFactory
from fanin.stores import open_store
from fanin.stores.postgres import PostgresStore
from fanin.testing.clock import Clock
from fanin.testing.invariants import FORGET, Judge, violations
from fanin.testing.proxy import CUTS, PgProxy
from fanin.testing.state import Snapshot
from tests.crashes.repairing import TABLE
from tests.crashes.table import every_second_row
from tests.races.stage import Stage
from tests.runtime.working import until
from tests.support.databases import migrate_database
from tests.support.figures import record

SEED = int(os.environ.get("FANIN_STORM_SEED", "20240229"))
LONG = os.environ.get("FANIN_LONG") == "1"
CUTS_PER_POINT = 20 if LONG else 1
LONGEST_MESSAGES = 9
"""No round trip and no answer has more messages that matter; a higher number cuts at the last one."""
ORPHAN = "fanin-cut-off"
NOON = 1_700_000_000.0


@pytest.fixture
def stage(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)  # neighbours on different counters
    migrate_database(pg_url, witness=True)
    store = open_store(pg_url)
    clock = Clock(store)
    clock.freeze(NOON)
    yield Stage(store)
    clock.reset()
    store.close()


@pytest.fixture
def proxy(pg_url: str) -> Iterator[PgProxy]:
    parts = urlsplit(pg_url)
    assert parts.hostname
    assert parts.port
    with PgProxy((parts.hostname, parts.port), late_seconds=0.02) as made:
        yield made


@pytest.fixture
def cut_off(pg_url: str, proxy: PgProxy) -> Iterator[PostgresStore]:
    """A store behind the proxy that tries once."""
    parts = urlsplit(pg_url)
    url = parts._replace(
        netloc=f"{parts.username}@127.0.0.1:{proxy.port}", query=f"{parts.query}&application_name={ORPHAN}-{proxy.port}"
    )
    store = PostgresStore(url.geturl())
    store.tries = 1
    yield store
    store.close()


def counting(factory: TxnFactory[Any], replaced: list[Again]) -> TxnFactory[Any]:
    """The same transaction; ``replaced`` gets what it throws to be replaced by another one."""

    def txn() -> Txn[Any]:
        try:
            return (yield from factory())
        except Again as again:
            replaced.append(again)
            raise Again(counting(again.factory, replaced)) from None

    return txn


@pytest.mark.parametrize("name", every_second_row(0))
@pytest.mark.timeout(1800)
def test_a_transaction_that_is_cut_at_any_message_has_happened_or_not_and_is_said_again(
    stage: Stage, pg_url: str, proxy: PgProxy, cut_off: PostgresStore, name: str
) -> None:
    """All or nothing is there when the server has noticed; the same words again leave what an uncut run leaves."""
    dice = random.Random(f"{SEED} {name}")
    store, factory = stage.store, TABLE[name].stage(stage)
    judge, start = Judge(), Snapshot(store)
    before = judge.look(store)
    cut_off._touch()
    first = proxy.counts["rounds"]
    replaced: list[Again] = []
    cut_off.run(counting(factory, replaced))
    rounds = proxy.counts["rounds"] - first
    cut_off.close()  # the next one is as fresh: no statement is prepared
    after, left = judge.look(store), TABLE[name].left(before.broken)
    assert before.rows != after.rows, "a transaction that changes nothing proves nothing here"
    points = [
        (number, kind) for number in range(1, rounds + 1) for n, kind in enumerate(CUTS)
        if LONG or number == rounds or number % len(CUTS) == n
    ]  # fmt: skip
    found: Counter[str] = Counter()
    unheard: Counter[int] = Counter()
    waits: list[float] = []
    with psycopg.connect(pg_url.partition("?")[0], autocommit=True) as watch:
        query = f"SELECT pid FROM pg_stat_activity WHERE application_name = '{ORPHAN}-{proxy.port}'"
        for number, kind in points * CUTS_PER_POINT:
            where = f"round {number} of {rounds}, {kind}"
            start.restore(FORGET)
            cut_off._touch()
            proxy.cut_round(number, kind, dice.randint(1, LONGEST_MESSAGES))
            try:
                cut_off.run(factory)
                unheard[number] += 1
                assert judge.look(store).rows == after.rows, f"{where}: was told that it has happened"
                cut_off.close()
                continue
            except StoreUnreachable:
                pass
            if kind == "late":
                store.run(factory)  # while the other may still be under way
            since = time.monotonic()
            until(lambda: not watch.execute(query).fetchall(), "the server has noticed")
            waits.append(time.monotonic() - since)
            committed = number == rounds and kind != "request"
            state = judge.look(store)
            if kind != "late":
                assert state.rows == (after if committed else before).rows, f"{where}: neither all nor nothing of it"
            happened = state.rows == after.rows
            assert state.broken == (left if happened else before.broken), f"{where}: {state.broken}"
            found["said again, had happened" if happened else "said again, had not happened"] += 1
            store.run(factory)
            again = judge.look(store)
            assert again.rows == after.rows, f"{where}: the replay left another state than the uncut run"
            assert again.broken == left, f"{where}, then said again: {again.broken}"
    cut = {kind: proxy.counts[f"cut_{kind}"] for kind in CUTS}
    assert sum(cut.values()) == len(points) * CUTS_PER_POINT, "every point is cut so often"
    # A transaction that is replaced by another goes on elsewhere, whatever becomes of its ROLLBACK and of the
    # DEALLOCATE that psycopg sends after it.
    assert len(unheard) <= 2 * len(replaced), f"nobody heard of the cuts at {unheard}"
    for number, times in unheard.items():
        tried = CUTS_PER_POINT * sum(place == number for place, _ in points)
        assert times == tried, f"{times} of {tried} cuts in round {number} were not heard"
    if not left:
        stage.drain()
        assert not violations(store, history=True), "after workers had finished the rest"
    noticed = Counter("in 10 ms" if wait < 0.01 else "in 100 ms" if wait < 0.1 else "later" for wait in waits)
    record(
        "network", transactions=1, points=len(points), cuts=cut, replays=dict(found), server_noticed=dict(noticed),
        cuts_per_point=str(CUTS_PER_POINT), seed=str(SEED),
    )  # fmt: skip
