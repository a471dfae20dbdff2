"""Whoever goes on with a row that others may end has locked it first, and waits for no part while he holds a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fanin.protocol import advance, effect, finish, growth, pause, repair
from fanin.protocol.steps import Query, Txn, TxnFactory
from fanin.testing.state import execute
from fanin.testing.stepper import COMMIT, Session, Watcher, once
from tests.crashes.table import stopped_behind
from tests.races.arena import Arena
from tests.races.races_effects import ONCE, wanting
from tests.races.races_growth import growing, wanted
from tests.races.races_nested import held_again, waits
from tests.races.races_split import again
from tests.races.stage import BUCKET, succeed

Deciding = TxnFactory[object]


@pytest.fixture
def pair(arena: Arena) -> Iterator[tuple[Session, Session]]:
    watcher = Watcher(arena.store)
    made = Session(arena.store, "A", watcher), Session(arena.store, "B", watcher)
    yield made
    for session in made:
        session.close()
    watcher.close()


def taking(table: str, **key: Any) -> TxnFactory[None]:
    """Somebody else who wants the row."""
    where = " AND ".join(f"{name} = :{name}" for name in key)
    query = Query("test", "take", (), {"pg": f"SELECT 1 FROM fanin.{table} WHERE {where} FOR NO KEY UPDATE"})

    def txn() -> Txn[None]:
        rows = yield query(**key)
        assert len(rows) == 1, f"{table} {key}: {len(rows)} rows"

    return txn


def ends_a_step(arena: Arena) -> tuple[Deciding, TxnFactory[None]]:
    flow_id = arena.flow({"a": "", "b": "a"})
    report = succeed(arena.step())
    return lambda: finish.settle(BUCKET, [report], "w"), taking("flow", id=flow_id)


def calls(arena: Arena, table: str) -> tuple[Deciding, TxnFactory[None]]:
    job_id = arena.job(1, successor=None)
    (mine,) = arena.claims(1)
    caller_id = arena._claim_id()
    key = {"idx": 0} if table == "part" else {"stripe": 0}
    return lambda: effect.begin(mine, ONCE, caller_id, "w", 60.0), taking(table, job_id=job_id, **key)


def compensates(arena: Arena) -> tuple[Deciding, TxnFactory[None]]:
    """One that a relay is calling is not cancelled, and stays as it is seen."""
    job_id = arena.job(1, successor=None)
    arena.settled([wanting(claim, ONCE) for claim in arena.claims(1)])
    arena.called(ONCE.name)

    def txn() -> Txn[object]:
        yield advance.SQL.hold_effects(bucket=BUCKET, job_id=job_id)
        return (yield from effect.cancel(BUCKET, job_id))

    return txn, taking("effect", job_id=job_id, idx=0)


def spawns(arena: Arena, table: str, number: int) -> tuple[Deciding, TxnFactory[None]]:
    job_id, (mine, _) = growing(arena)
    key = {"idx": number} if table == "part" else {"stripe": number}
    return lambda: growth.spawn(mine, wanted("a")), taking(table, job_id=job_id, **key)


def begins_to_wait(arena: Arena, table: str) -> tuple[Deciding, TxnFactory[None]]:
    """For the job that goes on since an earlier run of the part."""
    job_id, mine, nested, _ = held_again(arena)
    key: dict[str, Any] = {"id": nested} if table == "job" else {"job_id": job_id, "idx": 0}
    return arena.nesting(mine, priority=5), taking(table, **key)


def rises(arena: Arena, table: str) -> tuple[Deciding, TxnFactory[None]]:
    """The end of a nested job."""
    job_id, _, _, last = waits(arena)
    key = {"idx": 0} if table == "part" else {"stripe": 0}
    return lambda: finish.settle(BUCKET, [succeed(last)], "w"), taking(table, job_id=job_id, **key)


def repairs(arena: Arena, table: str) -> tuple[Deciding, TxnFactory[None]]:
    job_id = arena.job(2, successor=None, stripes=2)
    key: dict[str, Any] = {"id": job_id} if table == "job" else {"job_id": job_id, "stripe": 1}
    return lambda: repair.recount(BUCKET, job_id, arena._claim_id()), taking(table, **key)


def tells(arena: Arena, table: str) -> tuple[Deciding, TxnFactory[None]]:
    """The end of the step before one that is run again and told something else."""
    behind, before = stopped_behind(arena)
    return lambda: finish.settle(BUCKET, [succeed(before)], "w"), taking(table, job_id=behind.job_id)


def mends(arena: Arena) -> tuple[Deciding, TxnFactory[None]]:
    job_id = arena.job(1, successor=None)
    execute(arena.store, "UPDATE fanin.part SET due_at = due_at + 1e9, ready = false")
    return lambda: repair.mend(BUCKET, job_id, arena._claim_id()), taking("part", job_id=job_id, idx=0)


def pauses_a_whole(arena: Arena) -> tuple[Deciding, TxnFactory[None]]:
    """The job of a batch has ended, and may be about to be run again."""
    job_id, _, below = again(arena)
    deed = arena.deed()
    return lambda: pause.pause(BUCKET, job_id, deed), taking("job", id=below)


HOLDS: dict[str, tuple[Callable[[Arena], tuple[Deciding, TxnFactory[None]]], str]] = {
    "the end of a step its flow": (ends_a_step, "advance.end_step"),
    "an attempt that calls its part": (lambda arena: calls(arena, "part"), "effect.name_effect"),
    "an attempt that calls its counter": (lambda arena: calls(arena, "job_stripe"), "effect.name_effect"),
    "a compensation the effects that it sees": (compensates, COMMIT),
    "a spawn at once its part": (lambda arena: spawns(arena, "part", 0), "growth.growing"),
    "a spawn at once its own counter": (lambda arena: spawns(arena, "job_stripe", 0), "growth.growing"),
    "a spawn at once the other counter": (lambda arena: spawns(arena, "job_stripe", 1), "growth.growing"),
    "a part that begins to wait its nested job": (lambda arena: begins_to_wait(arena, "job"), "nest.take_held"),
    "a part that begins to wait itself": (lambda arena: begins_to_wait(arena, "part"), "nest.begin_to_wait"),
    "the end of a nested job the part that waits": (lambda arena: rises(arena, "part"), "waiting.lock_open_stripe"),
    "the end of a nested job the counter above": (lambda arena: rises(arena, "job_stripe"), "waiting.settle_waiting"),
    "the pause of a whole the jobs of its batches": (pauses_a_whole, "pause.pause_batches"),
    "a repair the counters": (lambda arena: repairs(arena, "job_stripe"), "repair.lock_job"),
    "a repair the job": (lambda arena: repairs(arena, "job"), "repair.look"),
    "the end of a step the part of one that runs again": (
        lambda arena: tells(arena, "part"),
        "redrive.lock_only_stripe",
    ),
    "the end of a step the counter of one that runs again": (
        lambda arena: tells(arena, "job_stripe"),
        "redrive.standing",
    ),
    "a repair the parts that it mends": (mends, "repair.look_at_wrong"),
}
"""Who holds which row, and from before which statement on."""


@pytest.mark.parametrize("name", HOLDS)
def test_nobody_else_takes_the_row_until_the_end(arena: Arena, pair: tuple[Session, Session], name: str) -> None:
    stage, before = HOLDS[name]
    deciding, wanting = stage(arena)
    decider, other = pair
    decider.play(once(deciding))
    decider.hold(before)
    other.play(once(wanting))
    assert not other.step([decider.pid]), f"the row is free before {before}"
    decider.finish()
    other.finish()
    assert (decider.retried, other.retried) == ([], [])


@pytest.mark.parametrize(
    ("stage", "statement"),
    [
        pytest.param(begins_to_wait, "nest.take_held", id="a part that begins to wait"),
        pytest.param(rises, "waiting.take_waiting", id="the end of a nested job"),
    ],
)
def test_who_holds_a_job_does_not_wait_for_a_part(
    arena: Arena, pair: tuple[Session, Session], stage: Callable[..., tuple[Deciding, TxnFactory[None]]], statement: str
) -> None:
    """Somebody who holds the part may wait for that job: all is said again when he has let go."""
    does_not_wait(pair, *stage(arena, "part"), statement)


@pytest.mark.parametrize(("table", "statement"), [("part", "lock_only_part"), ("job_stripe", "lock_only_stripe")])
def test_who_ends_a_step_does_not_wait_for_the_job_of_one_that_runs_again(
    arena: Arena, pair: tuple[Session, Session], table: str, statement: str
) -> None:
    """Somebody who holds that may wait for what ends here, or for the flow."""
    does_not_wait(pair, *tells(arena, table), f"redrive.{statement}")


def test_who_undoes_a_step_does_not_wait_for_an_effect(arena: Arena, pair: tuple[Session, Session]) -> None:
    """Somebody who writes it may wait for one of another step that is undone."""
    does_not_wait(pair, *compensates(arena), "advance.hold_effects")


def does_not_wait(pair: tuple[Session, Session], deciding: Deciding, wanting: TxnFactory[None], statement: str) -> None:
    decider, holder = pair
    holder.play(once(wanting))
    holder.hold(COMMIT)
    decider.play(once(deciding))
    decider.hold(statement)
    assert decider.step([holder.pid]), f"{statement} waits"
    assert decider.retried == ["55P03"]
    holder.finish()
    decider.finish()
    assert not isinstance(decider.outcome, Exception)
