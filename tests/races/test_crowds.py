"""Four to six transactions at once: too many orders to run them all, so some are drawn, each by a seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from fanin.domain.model import Claim
from fanin.testing.explorer import Actor, Tally
from fanin.testing.stepper import Script, once
from tests.races import broken
from tests.races.arena import Arena, renewer
from tests.races.catalogue import CROWDS, RACES
from tests.races.conftest import ALL_SCHEDULES, Note
from tests.races.scenarios import held
from tests.races.test_races import SEED, again, judge, outcome

LONG = 5
"""So many times more schedules are drawn in the long run."""


@pytest.mark.timeout(3600 if ALL_SCHEDULES else 300)
@pytest.mark.parametrize("name", CROWDS)
def test_drawn_schedules_keep_the_invariants_and_have_no_deadlock(arena: Arena, note: Note, name: str) -> None:
    race = CROWDS[name]
    assert race.seeds is not None
    tally = Tally(outcome)
    actors = race.stage(arena)
    arena.keep()
    met: set[str] = set()
    seeds = range(race.seeds * LONG if ALL_SCHEDULES else race.seeds) if SEED is None else [int(SEED)]
    with arena.explorer(actors) as explorer:
        for run in explorer.drawn(seeds):
            arena.conclude(run, race)
            tally.add(run)
            met |= {f"{party}={answer}" for party, answer in run.outcomes.items()}
    print(tally.report(race.title), *sorted(met), sep="\n")
    note(race, tally)
    judge(tally)
    if SEED is None:
        assert met >= race.outcomes, f"these answers were never given: {sorted(race.outcomes - met)}"


FORMS: dict[str, Callable[[Claim], Script]] = {
    "read_modify_write": lambda claim: once(lambda: broken.read_modify_write(claim)),
    "check_then_act": broken.check_then_act,
    "check_in_the_transaction": lambda claim: once(lambda: broken.check_in_the_transaction(claim)),
}
SEEDS = range(40)
"""The first seeds: one of them shows the mistake, and always the same one."""


@pytest.mark.parametrize("name", FORMS)
def test_a_seed_shows_a_mistake_of_two_in_a_crowd_and_shows_it_again(arena: Arena, note: Note, name: str) -> None:
    form = FORMS[name]
    race = RACES["last_three"]
    _, claims = held(arena, 3, successor=None)
    others = [renewer("H", claims[0]), renewer("I", claims[1])]
    actors = [*(Actor(letter, partial(form, claim)) for letter, claim in zip("ABC", claims, strict=True)), *others]
    arena.keep()
    with arena.explorer(actors, at_commits=False) as explorer:
        for seed in SEEDS:
            (run,) = explorer.drawn([seed])
            arena.conclude(run, race)
            if run.problems:
                break
        else:
            pytest.fail(f"nothing was noticed with the seeds {SEEDS}")
        print(again(run))
        note.caught(f"{name}, by five parties", f"seed {seed}")
        (repeated,) = explorer.drawn([seed])
        arena.conclude(repeated, race)
        assert (repeated.schedule, repeated.problems) == (run.schedule, run.problems)
    protocol = [arena.succeeds(letter, claim) for letter, claim in zip("ABC", claims, strict=True)]
    with arena.explorer([*protocol, *others], at_commits=False) as explorer:
        (sound,) = explorer.drawn([seed])
        arena.conclude(sound, race)
        assert not sound.problems
