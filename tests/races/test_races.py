"""Every order of the statements of two transactions, and the orders with few switches of three, end well."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fanin.testing.explorer import Explorer, Run, Tally
from tests.races.arena import Arena
from tests.races.catalogue import CROWDS, RACES
from tests.races.conftest import ALL_SCHEDULES, Note
from tests.races.scenarios import Race

SEED = os.environ.get("FANIN_RACE_SEED")
"""Set it to draw the schedule of this seed alone, where schedules are drawn."""

FEW = 2
"""So many preemptions in the short run of a race that says no other number. All outcomes are met by them."""


def outcome(run: Run) -> str:
    return " ".join(f"{name}={value}" for name, value in run.outcomes.items())


def schedules(explorer: Explorer, race: Race) -> Iterator[Run]:
    if race.seeds is not None and SEED is not None:
        return explorer.drawn([int(SEED)])
    if ALL_SCHEDULES:
        return explorer.every(race.always)
    if race.seeds is not None:
        return explorer.drawn(range(race.seeds))
    return explorer.every(FEW if race.preemptions is None else race.preemptions)


def explore(arena: Arena, race: Race, note: Note) -> Tally:
    """Run a race through its schedules, each judged after every commit and after the work was finished."""
    tally = Tally(outcome)
    actors = race.stage(arena)
    arena.keep()
    with arena.explorer(actors, at_commits=not race.drifted) as explorer:
        for run in schedules(explorer, race):
            arena.conclude(run, race)
            tally.add(run)
    print(tally.report(race.title))
    note(race, tally)
    return tally


def judge(tally: Tally) -> None:
    assert not tally.broken, f"{len(tally.broken)} schedules are broken:\n" + again(tally.broken[0])
    assert tally.deadlocks == 0, f"{tally.deadlocks} deadlocks in {tally.schedules} schedules"


def again(run: Run) -> str:
    """The story of a schedule, and how to see it again."""
    test = os.environ["PYTEST_CURRENT_TEST"].removesuffix(" (call)")
    replay = "" if run.seed is None else f"\nreplay: FANIN_RACE_SEED={run.seed} python -m pytest '{test}'"
    return run.story() + replay


@pytest.mark.parametrize("name", [*RACES, *CROWDS])
def test_every_race_says_what_it_could_break(name: str) -> None:
    sentence = (RACES | CROWDS)[name].risk
    assert sentence.endswith("."), f"give {name} a docstring: one sentence, what would be wrong if it went wrong"


@pytest.mark.timeout(3600 if ALL_SCHEDULES else 300)
@pytest.mark.parametrize("name", RACES)
def test_every_schedule_keeps_the_invariants_and_has_no_deadlock(arena: Arena, note: Note, name: str) -> None:
    race = RACES[name]
    tally = explore(arena, race, note)
    judge(tally)
    met, expected = set(tally.outcomes), set(race.outcomes)
    assert met <= expected, f"these outcomes were not foreseen: {sorted(met - expected)}"
    if ALL_SCHEDULES or race.seeds is None:
        assert met >= expected, f"these outcomes were never met: {sorted(expected - met)}; met: {tally.outcomes}"
