"""Waits in a circle that no single statement shows: they need three transactions, and a lock that is not asked for."""

from __future__ import annotations

from fanin.protocol import lease
from fanin.testing.explorer import Actor, Tally
from tests.races.arena import Arena, canceller
from tests.races.scenarios import held
from tests.races.stage import BUCKET, LAPSED


def deadlocks(arena: Arena, actors: list[Actor]) -> int:
    tally = Tally(lambda run: str(run.outcomes))
    arena.keep()
    with arena.explorer(actors) as explorer:
        for run in explorer.every(1):
            tally.add(run)
    assert not tally.broken, tally.broken[0].story()
    assert tally.waits, "nobody ever waited: this is no race"
    return tally.deadlocks


def test_completions_that_a_close_refuses_do_not_wait_for_each_other(arena: Arena) -> None:
    """Each waited at another counter for the close, and PostgreSQL leaves that one locked when the write is refused."""
    job_id, (one, two, _) = held(arena, 3, stripes=2)
    actors = [arena.succeeds("A", one), arena.succeeds("B", two), canceller("C", job_id)]
    assert deadlocks(arena, actors) == 0


def test_refusals_are_written_down_in_one_order(arena: Arena) -> None:
    """Two batches of the same overtaken attempts in opposite order, behind a third one that holds the middle."""
    arena.job(3)
    one, two, three = arena.claims(3, LAPSED)
    arena.store.run(lambda: lease.wake(BUCKET))
    arena.claims(3)
    actors = [arena.succeeds("C", two), arena.succeeds("A", one, two, three), arena.succeeds("B", three, two, one)]
    assert deadlocks(arena, actors) == 0
