"""Races over what a closed job leaves behind: late reports, the sweep, and the next run."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.protocol import close
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, giver_up, redriver, sweeper
from tests.races.scenarios import closed, everything_runs_again, held, race
from tests.races.stage import BUCKET, succeed

# What a closed job leaves behind, and its next run.


@race("a late completion and the sweep", "A=CLOSED S=SWEPT 1", "A=CLOSED S=SWEPT 0")
def completion_and_sweep(arena: Arena) -> list[Actor]:
    job_id, claim = closed(arena)
    return [arena.succeeds("A", claim), sweeper("S", job_id)]


@race("a release and the sweep", "A=OK S=SWEPT 0", "A=OK S=SWEPT 1", "A=CLOSED S=SWEPT 1")
def release_and_sweep(arena: Arena) -> list[Actor]:
    job_id, claim = closed(arena)
    return [arena.reporter("A", [Report(claim, "release")]), sweeper("S", job_id)]


@race(
    "last completion, give up and sweep",
    "A=LAST G=LATE S=SWEPT 0", "A=CLOSED G=GAVE_UP S=SWEPT 1", "A=CLOSED G=GAVE_UP S=SWEPT 0",
    preemptions=1, always=2,
)  # fmt: skip
def completion_give_up_and_sweep(arena: Arena) -> list[Actor]:
    job_id, (one,) = held(arena, 1, give_up_after=-1.0)
    return [arena.succeeds("A", one), giver_up("G", job_id), sweeper("S", job_id)]


@race("sweep and sweep", "S=SWEPT 1 T=SWEPT 0", "S=SWEPT 0 T=SWEPT 1")
def sweep_and_sweep(arena: Arena) -> list[Actor]:
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), sweeper("T", job_id)]


@race("sweep and redrive", "S=SWEPT 1 R=RUN 2", "S=SWEPT 0 R=RUN 2", also=everything_runs_again)
def sweep_and_redrive(arena: Arena) -> list[Actor]:
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), redriver("R", job_id)]


@race("last completion and redrive", "A=LAST R=REFUSED", "A=LAST R=RUN 2", also=everything_runs_again)
def completion_and_redrive(arena: Arena) -> list[Actor]:
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail")])
    return [arena.succeeds("A", two), redriver("R", job_id)]


@race("last failure and redrive", "A=LAST R=REFUSED", "A=LAST R=RUN 2", also=everything_runs_again, preemptions=2)
def failure_and_redrive(arena: Arena) -> list[Actor]:
    job_id, (one, two) = held(arena, 2)
    arena.settled([Report(one, "fail")])
    return [arena.fails("A", two), redriver("R", job_id)]


@race("redrive and redrive", "R=RUN 2 Q=RUN 2", also=everything_runs_again)
def redrive_and_redrive(arena: Arena) -> list[Actor]:
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail"), succeed(two)])
    return [redriver("R", job_id), redriver("Q", job_id)]


@race(
    "redrive and the report of an attempt of the run before",
    "Z=CLOSED R=RUN 2",
    "Z=LAST R=RUN 2",
    preemptions=2,
    always=4,
)
def zombie_and_redrive(arena: Arena) -> list[Actor]:
    job_id, claim = closed(arena)
    return [arena.succeeds("Z", claim), redriver("R", job_id)]


@race(
    "redrive, a new claim, and the report of an attempt of the run before",
    "Z=CLOSED R=RUN 2 W=NOTHING", "Z=LOST R=RUN 2 W=LAST", "Z=LOST R=RUN 2 W=NOTHING", "Z=CLOSED R=RUN 2 W=LAST",
    preemptions=1, always=2,
)  # fmt: skip
def zombie_redrive_and_reclaim(arena: Arena) -> list[Actor]:
    job_id, claim = closed(arena)
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return [arena.succeeds("Z", claim), redriver("R", job_id), arena.reclaimer("W")]
