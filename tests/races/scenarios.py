"""What a race is, and the list of all. The races themselves are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Claim
from fanin.protocol import close, submit
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.races.arena import Arena
from tests.races.stage import BUCKET

Stager = Callable[[Arena], list[Actor]]


@dataclass(frozen=True)
class Race:
    """``stage`` makes the rows and returns the parties. ``outcomes`` must all be met, and no other."""

    title: str
    risk: str
    """A sentence: what would break if the protocol were wrong here. The docstring of ``stage``."""
    stage: Stager
    outcomes: frozenset[str]
    preemptions: int | None = None
    """In the short run; None: two."""
    always: int | None = None
    """In the long run. None: every schedule; three parties, and two of several transactions each, have too many."""
    seeds: int | None = None
    """So many schedules are drawn in the short run instead; then not every outcome must be met."""
    after: Callable[[Arena], None] | None = None
    """What the parties would do next, before ordinary workers finish the rest."""
    also: Callable[[Arena, Run], list[str]] | None = None
    """What else must hold at the end of a schedule; gives the problems."""
    drifted: bool = False
    """It begins with counters that are wrong, so the rules are judged at the end of a schedule alone."""


RACES: dict[str, Race] = {}
CROWDS: dict[str, Race] = {}
"""Races of four to six parties: schedules are drawn in the long run too. The outcomes are answers of single parties,
and others may be given."""


def race(
    title: str,
    *outcomes: str,
    races: dict[str, Race] = RACES,
    preemptions: int | None = None,
    always: int | None = None,
    seeds: int | None = None,
    after: Callable[[Arena], None] | None = None,
    also: Callable[[Arena, Run], list[str]] | None = None,
    drifted: bool = False,
) -> Callable[[Stager], Stager]:
    """Register the function that stages a race. Its docstring is the risk; the others are fields of `Race`."""

    def register(stage: Stager) -> Stager:
        name, risk = stage.__name__, stage.__doc__ or ""
        assert name not in races, f"there are two races {name}"
        races[name] = Race(title, risk, stage, frozenset(outcomes), preemptions, always, seeds, after, also, drifted)
        return stage

    return register


three = partial(race, seeds=20, always=2)
"""Register a race of three parties."""
crowd = partial(race, races=CROWDS, seeds=20)
"""Register a race of four to six parties."""


def held(arena: Arena, parts: int, **options: Any) -> tuple[str, list[Claim]]:
    """A job whose parts are all claimed."""
    return arena.job(parts, **options), arena.claims(parts)


def closed(arena: Arena) -> tuple[str, Claim]:
    """A cancelled job with a part that is still held and not swept."""
    job_id, (claim,) = held(arena, 1)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return job_id, claim


def everything_runs_again(arena: Arena, run: Run) -> list[str]:
    """A redrive of everything that opened a run left no part behind, whatever happened beside it."""
    text = (
        "SELECT p.idx, p.status FROM fanin.part AS p JOIN fanin.job AS j ON j.bucket = p.bucket AND j.id = p.job_id "
        "WHERE j.run = 2 AND j.status = 'running' AND p.status IN ('failed', 'abandoned')"
    )
    return [f"left behind by the redrive: {row}" for row in select(arena.store, text)]


def seal_what_is_open(arena: Arena) -> None:
    """The creator's next step, if the race refused its seal."""
    job_id = arena.new().id
    for count in range(4):
        try:
            arena.store.run(partial(submit.seal, BUCKET, job_id, count, None, False))
            return
        except NotAllowedNow:
            continue
