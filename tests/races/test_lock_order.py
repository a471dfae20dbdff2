"""A batch takes its rows in the order of their keys before it writes one, whatever way the planner finds to them.

The planner is sent the long way here, over rows that lie on disk in the opposite order: as it may go one day by itself,
when the statistics say so. Somebody who holds the first row and wants the second must then find it free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.domain.model import Claim, Report
from fanin.domain.policy import Policy
from fanin.protocol import effect, finish, lease, outbox, pause, redrive, submit
from fanin.protocol.effect import Call
from fanin.protocol.steps import Query, Txn, TxnFactory
from fanin.stores import open_store
from fanin.stores.postgres import PostgresStore
from fanin.testing.state import execute, select
from fanin.testing.stepper import COMMIT, Session, Watcher, once
from tests.races.arena import Arena
from tests.races.races_effects import OFTEN, wanting
from tests.races.stage import BUCKET, LAPSED, succeed

THE_LONG_WAY = {
    "part": " -c enable_tidscan=off",
    "outbox": " -c enable_tidscan=off",
    "effect": " -c enable_tidscan=off -c enable_indexscan=off -c enable_bitmapscan=off -c enable_hashjoin=off",
    "job_stripe": " -c enable_indexscan=off -c enable_indexonlyscan=off -c enable_material=off -c enable_seqscan=on",
}
"""What makes the planner begin with the rows as they lie, and not with the list."""


def in_order(table: str, column: str) -> TxnFactory[None]:
    """Somebody who takes the first row, and then the second."""
    which = f"(SELECT {column} FROM fanin.{table} ORDER BY {column} OFFSET :number LIMIT 1)"
    text = f"SELECT 1 FROM fanin.{table} WHERE bucket = 0 AND {column} = {which} FOR NO KEY UPDATE"
    queries = [Query("test", name, (), {"pg": text}) for name in ("first", "second")]

    def txn() -> Txn[None]:
        for number, query in enumerate(queries):
            yield query(number=number)

    return txn


def held(arena: Arena, **options: Any) -> list[Claim]:
    arena.job(2, successor=None, **options)
    return arena.claims(2, LAPSED if options else {"work": 600.0})


def settles(arena: Arena) -> TxnFactory[object]:
    reports = [succeed(claim) for claim in held(arena)]
    return lambda: finish.settle(BUCKET, reports, "w")


def renews(arena: Arena) -> TxnFactory[object]:
    claims = held(arena)
    return lambda: lease.renew(BUCKET, [(claim, 60.0) for claim in claims])


def reaps(arena: Arena) -> TxnFactory[object]:
    seen = [(claim.job_id, claim.idx, claim.attempt) for claim in held(arena, attempts=1)]
    return lambda: finish.reap(BUCKET, seen)


def appends(arena: Arena) -> TxnFactory[object]:
    job_id = arena.open(2, stripes=2)
    return lambda: submit.append(BUCKET, job_id, 2, ["1", "1"])


def walks(arena: Arena) -> TxnFactory[object]:
    job_id = arena.job(2, successor=None)
    arena.paused(job_id, walked=False)
    return lambda: pause.walk(BUCKET, job_id)


def settles_events(arena: Arena) -> TxnFactory[object]:
    arena.events(2)
    claim_id, events = arena.taken()
    said = [outbox.Said(event.key, "mark") for event in events]
    return lambda: outbox.settle(BUCKET, claim_id, said)


def called(arena: Arena) -> list[Call]:
    """Two effects that a relay is calling."""
    arena.job(2, successor=None)
    arena.settled([wanting(claim, OFTEN) for claim in arena.claims(2)])
    return arena.store.run(arena.calling(OFTEN.name))


def settles_effects(arena: Arena) -> TxnFactory[object]:
    said = [effect.Said(call, "mark") for call in called(arena)]
    return lambda: effect.settle(BUCKET, said)


def retries_effects(arena: Arena) -> TxnFactory[object]:
    calls = called(arena)
    arena.store.run(lambda: effect.settle(BUCKET, [effect.Said(call, "refuse", final=True) for call in calls]))
    return lambda: effect.retry(BUCKET, [call.where for call in calls], 3)


BATCHES: dict[str, tuple[Callable[[Arena], TxnFactory[object]], str, str, str]] = {
    "settle": (settles, "part", "idx", "finish.settle_parts"),
    "renew": (renews, "part", "idx", "lease.renew_parts"),
    "reap": (reaps, "part", "idx", "finish.reap_parts"),
    "walk": (walks, "part", "idx", "pause.lock_portion"),
    "events": (settles_events, "outbox", "event_key", "outbox.settle_events"),
    "effects": (settles_effects, "effect", "idx", "effect.settle_effects"),
    "effects called again": (retries_effects, "effect", "idx", "effect.retry_effects"),
    "append": (appends, "job_stripe", "stripe", "submit.add_created"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_takes_its_rows_in_the_order_of_their_keys(arena: Arena, pg_url: str, name: str) -> None:
    stage, table, column, statement = BATCHES[name]
    batch = stage(arena)
    first = f"(SELECT min({column}) FROM fanin.{table})"
    execute(arena.store, f"UPDATE fanin.{table} SET {column} = {column} WHERE {column} = {first}")  # it lies behind
    execute(arena.store, f"ANALYZE fanin.{table}")
    lying = select(arena.store, f"SELECT {column} AS n FROM fanin.{table} ORDER BY ctid")
    assert [row["n"] for row in lying] == sorted((row["n"] for row in lying), reverse=True)
    roundabout = open_store(pg_url)
    assert isinstance(roundabout, PostgresStore)
    roundabout.target.options["options"] += THE_LONG_WAY[table]
    watcher = Watcher(arena.store)
    walker, batching = Session(arena.store, "W", watcher), Session(roundabout, "B", watcher)
    try:
        walker.play(once(in_order(table, column)))
        batching.play(once(batch))
        batching.hold(statement)
        walker.hold("test.second")
        assert not batching.step([walker.pid]), f"{statement} did not meet the first row"
        assert walker.step([batching.pid]), f"{statement} has taken the second row before the first"
        walker.hold(COMMIT)
        walker.finish()
        batching.finish()
        assert (walker.retried, batching.retried) == ([], [])
    finally:
        for session in (walker, batching):
            session.close()
        watcher.close()
        roundabout.close()


def test_a_redrive_takes_the_parts_before_the_counters(arena: Arena) -> None:
    """A batch that came too late for one part has locked it all the same, and wants all counters for another."""
    job_id = arena.job(2, successor=None, attempts=1, policy=Policy(fail_fast=True))
    (late,) = arena.claims(1, LAPSED)
    (held,) = arena.claims(1)
    watcher = Watcher(arena.store)
    names = ("reaper", "batch", "redrive")
    reaping, batch, redriving = sessions = [Session(arena.store, name, watcher) for name in names]
    try:
        reaping.play(once(lambda: lease.reap(BUCKET)))
        reaping.hold(COMMIT)
        batch.play(once(lambda: finish.settle(BUCKET, [succeed(late), Report(held, "fail")], "w")))
        assert not batch.step([reaping.pid]), "the batch came too early"
        reaping.finish()
        batch.settle()
        redriving.play(once(lambda: redrive.redrive(BUCKET, job_id, 1, 1)))
        while not redriving.done and redriving.step([batch.pid]):
            pass
        batch.finish()
        redriving.finish()
        assert (batch.retried, redriving.retried) == ([], [])
    finally:
        for session in sessions:
            session.close()
        watcher.close()
