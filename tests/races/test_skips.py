"""Who takes what it finds free does not wait for the rest, and takes no hold of what it does not want."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fanin.domain.effects import Intent
from fanin.protocol import close, effect, lease, outbox, purge
from fanin.protocol.steps import Query, Txn, TxnFactory
from fanin.testing.stepper import COMMIT, Session, Watcher, once
from tests.races.arena import Arena
from tests.races.races_effects import OFTEN, ONCE, wanting
from tests.races.stage import BUCKET, LAPSED


@pytest.fixture
def pair(arena: Arena) -> Iterator[tuple[Session, Session]]:
    watcher = Watcher(arena.store)
    made = Session(arena.store, "A", watcher), Session(arena.store, "B", watcher)
    yield made
    for session in made:
        session.close()
    watcher.close()


def holding(table: str, key: str) -> TxnFactory[None]:
    """Somebody who has locked the first row."""
    text = f"SELECT 1 FROM fanin.{table} WHERE {key} = (SELECT min({key}) FROM fanin.{table}) FOR NO KEY UPDATE"
    query = Query("test", "hold", (), {"pg": text})

    def txn() -> Txn[None]:
        yield query()

    return txn


def claims(arena: Arena) -> TxnFactory[int]:
    arena.job(3, successor=None)
    claiming = arena.claiming(limit=2)

    def txn() -> Txn[int]:
        return len((yield from claiming()))

    return txn


def wakes(arena: Arena) -> TxnFactory[int]:
    arena.job(3, successor=None)
    arena.claims(3, LAPSED)

    def txn() -> Txn[int]:
        return len((yield lease.SQL.wake_parts(bucket=BUCKET, limit=10)))

    return txn


def sweeps(arena: Arena) -> TxnFactory[int]:
    job_id = arena.job(3, successor=None)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return lambda: close.sweep(BUCKET, job_id, 0)


def takes_events(arena: Arena) -> TxnFactory[int]:
    arena.events(3)
    taking = arena.taking()

    def txn() -> Txn[int]:
        return len((yield from taking()))

    return txn


def retries(arena: Arena) -> TxnFactory[int]:
    arena.events(3)
    claim_id, events = arena.taken()
    arena.store.run(
        lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(event.key, "park", error="no") for event in events])
    )
    return lambda: outbox.retry(BUCKET)


def wants(arena: Arena, intent: Intent) -> None:
    """Three parts that have succeeded, and want this done."""
    arena.job(3, successor=None)
    arena.settled([wanting(held, intent) for held in arena.claims(3)])


def takes_effects(arena: Arena) -> TxnFactory[int]:
    wants(arena, OFTEN)
    calling = arena.calling(OFTEN.name)

    def txn() -> Txn[int]:
        return len((yield from calling()))

    return txn


def expires(arena: Arena) -> TxnFactory[int]:
    wants(arena, ONCE)
    arena.store.run(arena.calling(ONCE.name, seconds=-1.0))

    def txn() -> Txn[int]:
        return len((yield from effect.expire(BUCKET)))

    return txn


@pytest.mark.parametrize(
    ("stage", "table", "key"),
    [
        pytest.param(claims, "part", "idx", id="claims"),
        pytest.param(wakes, "part", "idx", id="wakes"),
        pytest.param(sweeps, "part", "idx", id="sweeps"),
        pytest.param(takes_events, "outbox", "event_key", id="takes_events"),
        pytest.param(retries, "outbox", "event_key", id="retries"),
        pytest.param(takes_effects, "effect", "idx", id="takes_effects"),
        pytest.param(expires, "effect", "idx", id="expires"),
    ],
)
def test_it_takes_the_free_parts_without_waiting_for_one_that_is_held(
    arena: Arena, pair: tuple[Session, Session], stage: Callable[[Arena], TxnFactory[int]], table: str, key: str
) -> None:
    taking = stage(arena)
    holder, taker = pair
    holder.play(once(holding(table, key)))
    holder.hold(COMMIT)
    taker.play(once(taking))
    while not taker.done:
        assert taker.step([holder.pid]), f"{taker.next} waits for a row that is held"
    assert taker.outcome == 2
    holder.finish()


def test_a_wake_holds_no_part_whose_moment_has_not_come(arena: Arena, pair: tuple[Session, Session]) -> None:
    arena.job(2, successor=None)
    arena.claims(1, LAPSED)
    (claim,) = arena.claims(1)
    waking, renewing = pair
    waking.play(once(lambda: lease.wake(BUCKET)))
    waking.hold(COMMIT)
    renewing.play(once(lambda: lease.renew(BUCKET, [(claim, 60.0)])))
    assert renewing.step([waking.pid]), "a part that was not woken is held all the same"
    renewing.finish()
    waking.finish()
    assert renewing.outcome == []


def test_a_purge_leaves_the_rows_of_a_job_to_the_purge_that_is_at_it(
    arena: Arena, pair: tuple[Session, Session]
) -> None:
    arena.job(0, successor=None)
    members = [(BUCKET, job_id) for _, job_id in arena.store.read(lambda: purge.old_roots(BUCKET, 0.0))]
    assert arena.store.run(lambda: purge.purge([BUCKET], members, 0.0, unsent=True)).kept is None
    holder, other = pair
    holder.play(once(lambda: purge.portion(1, members[0])))
    holder.hold(COMMIT)
    other.play(once(lambda: purge.portion(1, members[0])))
    while not other.done:
        assert other.next != "purge.first_left", "two purges are at one job"
        assert other.step([holder.pid]), f"{other.next} waits for the other purge"
    holder.finish()
