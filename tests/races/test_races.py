"""Every order of the statements of two transactions, and the orders with few switches of three, end well."""

from __future__ import annotations

import pytest

from fanin.testing.explorer import Run, Tally
from tests.races.arena import Arena
from tests.races.catalogue import RACES
from tests.races.conftest import ALL_SCHEDULES
from tests.races.scenarios import Race


def outcome(run: Run) -> str:
    return " ".join(f"{name}={value}" for name, value in run.outcomes.items())


def explore(arena: Arena, race: Race) -> Tally:
    """Run a race through its schedules, each judged after every commit and after the work was finished."""
    tally = Tally(outcome)
    actors = race.stage(arena)
    arena.keep()
    with arena.explorer(actors) as explorer:
        for run in explorer.every(race.always if ALL_SCHEDULES else race.preemptions):
            arena.conclude(run, race)
            tally.add(run)
    return tally


@pytest.mark.timeout(3600 if ALL_SCHEDULES else 300)
@pytest.mark.parametrize("name", RACES)
def test_every_schedule_keeps_the_invariants_and_has_no_deadlock(arena: Arena, name: str) -> None:
    race = RACES[name]
    tally = explore(arena, race)
    print(tally.report(race.title))
    assert not tally.broken, f"{len(tally.broken)} schedules are broken:\n" + tally.broken[0].story()
    assert tally.deadlocks == 0, f"{tally.deadlocks} deadlocks in {tally.schedules} schedules"
    met, expected = set(tally.outcomes), set(race.outcomes)
    assert met >= expected, f"these outcomes were never met: {sorted(expected - met)}; met: {tally.outcomes}"
    assert met <= expected, f"these outcomes were not foreseen: {sorted(met - expected)}"
