"""Races over what a closed job leaves behind: late reports, the sweep, and the next run."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.protocol import close
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, canceller, giver_up, reaper, redriver, sweeper
from tests.races.scenarios import closed, everything_runs_again, held, race, three
from tests.races.stage import BUCKET, LAPSED, succeed

# What a closed job leaves behind.


@race("a late completion and the sweep", "A=CLOSED S=SWEPT 1", "A=CLOSED S=SWEPT 0", preemptions=2)
def completion_and_sweep(arena: Arena) -> list[Actor]:
    """A part could be abandoned and accepted, or its row and its counter could wait for each other."""
    job_id, claim = closed(arena)
    return [arena.succeeds("A", claim), sweeper("S", job_id)]


@race("a release and the sweep", "A=OK S=SWEPT 0", "A=OK S=SWEPT 1", "A=CLOSED S=SWEPT 1")
def release_and_sweep(arena: Arena) -> list[Actor]:
    """A part that is given back could escape the sweep and wait for a worker for ever."""
    job_id, claim = closed(arena)
    return [arena.releases("A", claim), sweeper("S", job_id)]


@race(
    "last completion, give up and sweep",
    "A=LAST G=LATE S=SWEPT 0",
    "A=CLOSED G=GAVE_UP S=SWEPT 1",
    "A=CLOSED G=GAVE_UP S=SWEPT 0",
    preemptions=1,
    always=2,
)
def completion_give_up_and_sweep(arena: Arena) -> list[Actor]:
    """The sweep follows at once: it could take a part whose completion was accepted before the close."""
    job_id, (one,) = held(arena, 1, give_up_after=-1.0)
    return [arena.succeeds("A", one), giver_up("G", job_id), sweeper("S", job_id)]


@race("sweep and sweep", "S=SWEPT 1 T=SWEPT 0", "S=SWEPT 0 T=SWEPT 1")
def sweep_and_sweep(arena: Arena) -> list[Actor]:
    """One abandoned part could be counted by both."""
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), sweeper("T", job_id)]


@race("sweep and claim", "S=SWEPT 1 W=0")
def sweep_and_claim(arena: Arena) -> list[Actor]:
    """A worker could claim a part of a closed job while it is abandoned."""
    job_id = arena.job(1)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [sweeper("S", job_id), arena.claimer("W", 1)]


@race("cancel and claim", "C=CANCELLED W=1", "C=CANCELLED W=0")
def cancel_and_claim(arena: Arena) -> list[Actor]:
    """A part claimed beside the cancel could stay live in an ended job."""
    job_id = arena.job(1)
    return [canceller("C", job_id), arena.claimer("W", 1)]


# The next run.


@race("sweep and redrive", "S=SWEPT 1 R=RUN 2", "S=SWEPT 0 R=RUN 2", also=everything_runs_again)
def sweep_and_redrive(arena: Arena) -> list[Actor]:
    """The sweep could abandon parts of the new run."""
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), redriver("R", job_id)]


@race("a redrive of one part and the sweep of it", "S=SWEPT 1 R=RUN 2", "S=SWEPT 1 R=REFUSED")
def sweep_and_redrive_of_one(arena: Arena) -> list[Actor]:
    """The part is abandoned after the redrive has looked: a run could be opened that leaves it behind."""
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), redriver("R", job_id, chosen=[0])]


@race("last completion and redrive", "A=LAST R=REFUSED", "A=LAST R=RUN 2", also=everything_runs_again)
def completion_and_redrive(arena: Arena) -> list[Actor]:
    """A new run could be opened while the old one is ending."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail")])
    return [arena.succeeds("A", two), redriver("R", job_id)]


@race("last failure and redrive", "A=LAST R=REFUSED", "A=LAST R=RUN 2", also=everything_runs_again, preemptions=2)
def failure_and_redrive(arena: Arena) -> list[Actor]:
    """The part that fails last could be missed by the redrive of everything that failed."""
    job_id, (one, two) = held(arena, 2)
    arena.settled([Report(one, "fail")])
    return [arena.fails("A", two), redriver("R", job_id)]


@race("redrive and redrive", "R=RUN 2 Q=RUN 2", also=everything_runs_again)
def redrive_and_redrive(arena: Arena) -> list[Actor]:
    """Two operators could open two runs, or give the parts their new attempts twice."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail"), succeed(two)])
    return [redriver("R", job_id), redriver("Q", job_id)]


@race("redrives of a part each", "R=RUN 2 Q=RUN 2", preemptions=3)
def redrives_of_one_each(arena: Arena) -> list[Actor]:
    """Each locks another part and the same counters: both could open the run after the first."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail"), Report(two, "fail")])
    return [redriver("R", job_id, chosen=[0]), redriver("Q", job_id, chosen=[1])]


@race("redrive and cancel", "R=RUN 2 C=CANCELLED", "R=RUN 2 C=LATE")
def redrive_and_cancel(arena: Arena) -> list[Actor]:
    """The cancel could close the new run with the counts of the old one."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail"), succeed(two)])
    return [redriver("R", job_id), canceller("C", job_id)]


@race("redrive and the deadline of the run before", "R=RUN 2 G=LATE")
def redrive_and_give_up(arena: Arena) -> list[Actor]:
    """A timer that has seen the old deadline could end the new run."""
    job_id, (one,) = held(arena, 1, give_up_after=-1.0)
    arena.settled([Report(one, "fail")])
    return [redriver("R", job_id), giver_up("G", job_id)]


@race("redrive and claim", "R=RUN 2 W=1", "R=RUN 2 W=0", preemptions=2)
def redrive_and_claim(arena: Arena) -> list[Actor]:
    """A revived part could be claimed before its run stands."""
    job_id, (one,) = held(arena, 1)
    arena.settled([Report(one, "fail")])
    return [redriver("R", job_id), arena.claimer("W", 1)]


@race(
    "redrive and the reaper of the last part",
    "R=REFUSED Q=REAPED 1",
    "R=RUN 2 Q=REAPED 1",
    also=everything_runs_again,
    preemptions=2,
)
def redrive_and_reap(arena: Arena) -> list[Actor]:
    """The reaper ends the run: the part that it fails could be missed by the redrive."""
    job_id = arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    return [redriver("R", job_id), reaper("Q")]


@race("redrive and the report of an attempt of the run before", "Z=CLOSED R=RUN 2", "Z=LAST R=RUN 2",
      preemptions=2, always=4)  # fmt: skip
def zombie_and_redrive(arena: Arena) -> list[Actor]:
    """A report that was refused once could be counted in the next run too."""
    job_id, claim = closed(arena)
    return [arena.succeeds("Z", claim), redriver("R", job_id)]


@race(
    "redrive, a new claim, and the report of an attempt of the run before",
    "Z=CLOSED R=RUN 2 W=NOTHING",
    "Z=LOST R=RUN 2 W=LAST",
    "Z=LOST R=RUN 2 W=NOTHING",
    "Z=CLOSED R=RUN 2 W=LAST",
    preemptions=1,
    always=2,
)
def zombie_redrive_and_reclaim(arena: Arena) -> list[Actor]:
    """The old attempt's token could be valid again."""
    job_id, claim = closed(arena)
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return [arena.succeeds("Z", claim), redriver("R", job_id), arena.reclaimer("W")]


@three(
    "sweep, redrive and cancel",
    "S=SWEPT 0 R=RUN 2 C=CANCELLED",
    "S=SWEPT 0 R=RUN 2 C=LATE",
    "S=SWEPT 1 R=RUN 2 C=CANCELLED",
    "S=SWEPT 1 R=RUN 2 C=LATE",
    always=1,
)
def sweep_redrive_and_cancel(arena: Arena) -> list[Actor]:
    """A sweep of the first run could be counted by the close of the second."""
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), redriver("R", job_id), canceller("C", job_id)]


@three(
    "sweep, sweep and redrive, a counter each",
    "S=SWEPT 0 T=SWEPT 0 R=RUN 2",
    "S=SWEPT 0 T=SWEPT 1 R=RUN 2",
    "S=SWEPT 1 T=SWEPT 0 R=RUN 2",
    "S=SWEPT 1 T=SWEPT 1 R=RUN 2",
    also=everything_runs_again,
)
def sweeps_and_redrive(arena: Arena) -> list[Actor]:
    """The redrive could open one counter of the two before its part is swept, and leave the part behind."""
    job_id, _ = held(arena, 2, stripes=2)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [sweeper("S", job_id, 0), sweeper("T", job_id, 1), redriver("R", job_id)]


@three(
    "sweep, redrive and redrive",
    "S=SWEPT 0 R=RUN 2 Q=RUN 2",
    "S=SWEPT 1 R=RUN 2 Q=RUN 2",
    also=everything_runs_again,
    always=1,
)
def sweep_redrive_and_redrive(arena: Arena) -> list[Actor]:
    """The redrive that is begun again, for the part swept beside it, could open a third run."""
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), redriver("R", job_id), redriver("Q", job_id)]


@three(
    "a late completion, sweep and redrive",
    "A=CLOSED S=SWEPT 0 R=RUN 2",
    "A=CLOSED S=SWEPT 1 R=RUN 2",
    "A=LAST S=SWEPT 0 R=RUN 2",
    "A=LOST S=SWEPT 1 R=RUN 2",
    always=1,
)
def completion_sweep_and_redrive(arena: Arena) -> list[Actor]:
    """The part is abandoned, revived or accepted: it could be two of them."""
    job_id, claim = closed(arena)
    return [arena.succeeds("A", claim), sweeper("S", job_id), redriver("R", job_id)]


@three(
    "a release, sweep and redrive",
    "A=CLOSED S=SWEPT 1 R=RUN 2",
    "A=OK S=SWEPT 0 R=RUN 2",
    "A=OK S=SWEPT 1 R=RUN 2",
    "A=REPLAY S=SWEPT 1 R=RUN 2",
    always=1,
)
def release_sweep_and_redrive(arena: Arena) -> list[Actor]:
    """A part that is given back in an ended job could be lost between the sweep and the new run."""
    job_id, claim = closed(arena)
    return [arena.releases("A", claim), sweeper("S", job_id), redriver("R", job_id)]


@three(
    "last completion, cancel and redrive",
    "A=CLOSED C=CANCELLED R=REFUSED",
    "A=CLOSED C=CANCELLED R=RUN 2",
    "A=LAST C=CANCELLED R=RUN 2",
    "A=LAST C=LATE R=REFUSED",
    "A=LAST C=LATE R=RUN 0",
    always=1,
)
def completion_cancel_and_redrive(arena: Arena) -> list[Actor]:
    """A completion that found the job closed begins again, and could find its next run open."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), canceller("C", job_id), redriver("R", job_id)]
