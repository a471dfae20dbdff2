"""What a race is, and the list of all. The races themselves are in the modules beside this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fanin.domain.model import Claim
from fanin.protocol import close
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.races.arena import Arena
from tests.races.stage import BUCKET


@dataclass(frozen=True)
class Race:
    """``stage`` makes the rows and returns the parties. ``outcomes`` must all be met, and no other."""

    title: str
    stage: Callable[[Arena], list[Actor]]
    outcomes: frozenset[str]
    preemptions: int | None = None
    """In the short run; None: every schedule, always."""
    always: int | None = None
    """In the long run: three parties, and two of several transactions each, have too many schedules."""
    after: Callable[[Arena], None] | None = None
    """What the parties would do next, before ordinary workers finish the rest."""
    also: Callable[[Arena, Run], list[str]] | None = None
    """What else must hold at the end of a schedule; gives the problems."""


RACES: dict[str, Race] = {}


def race(
    title: str,
    *outcomes: str,
    preemptions: int | None = None,
    always: int | None = None,
    after: Callable[[Arena], None] | None = None,
    also: Callable[[Arena, Run], list[str]] | None = None,
) -> Callable[[Callable[[Arena], list[Actor]]], Callable[[Arena], list[Actor]]]:
    def register(stage: Callable[[Arena], list[Actor]]) -> Callable[[Arena], list[Actor]]:
        RACES[stage.__name__] = Race(title, stage, frozenset(outcomes), preemptions, always, after, also)
        return stage

    return register


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
