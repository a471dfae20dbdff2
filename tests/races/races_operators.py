"""Races of operators: a pause, a skipped part and a finish by hand, against workers and against each other."""

from __future__ import annotations

from functools import partial

from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.protocol import close, pause
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.races.arena import (
    Arena,
    appender,
    canceller,
    finisher,
    giver_up,
    pauser,
    reaper,
    redriver,
    resumer,
    sealer,
    skipper,
    sweeper,
    waker,
    walker,
)
from tests.races.scenarios import held, race, seal_what_is_open, three
from tests.races.stage import BUCKET, LAPSED

# A pause.


def none_is_held(arena: Arena, run: Run) -> list[str]:
    """The walk of a job that was resumed last leaves no part behind."""
    for (job_id,) in [(str(row["id"]),) for row in select(arena.store, "SELECT id FROM fanin.job")]:
        while arena.store.run(partial(pause.walk, BUCKET, job_id)):
            pass
    return [
        f"held back for ever: {row}"
        for row in select(
            arena.store,
            "SELECT p.idx, p.status FROM fanin.part AS p JOIN fanin.job AS j ON j.id = p.job_id "
            "WHERE j.paused_at IS NULL AND p.status = 'pending' AND p.due_at >= 1e12",
        )
    ]


def runs_on(arena: Arena, run: Run, part: str) -> list[str]:
    """The next run of a job is not touched by what was done to the run before it."""
    text = (
        "SELECT j.status, p.status AS part FROM fanin.job AS j JOIN fanin.part AS p ON p.job_id = j.id WHERE j.run = 2"
    )
    rows = select(arena.store, text)
    right = {"status": "running", "part": part}
    return [f"touched in its next run: {row}" for row in rows if row != right]


@three("a cancel said twice, and the job is run again", "C=CANCELLED D=CANCELLED R=RUN 2",
       "C=CANCELLED D=CANCELLED R=REFUSED", also=lambda arena, run: runs_on(arena, run, "pending"))  # fmt: skip
def cancel_said_twice_and_redrive(arena: Arena) -> list[Actor]:
    """The call sent again could end the next run."""
    job_id, deed = arena.job(1, successor=None), arena.deed()
    return [canceller("C", job_id, deed), canceller("D", job_id, deed), redriver("R", job_id)]


def none_is_paused(arena: Arena, run: Run) -> list[str]:
    """Whoever let the job go on has found it paused, and it was paused once."""
    rows = select(arena.store, "SELECT id FROM fanin.job WHERE paused_at IS NOT NULL")
    lines = select(arena.store, "SELECT what FROM fanin.job_log WHERE what = 'resumed'")
    return ["paused once more after it was let go"] if rows and lines else []


@three("a pause said twice, and a resume", "P=PAUSED Q=PAUSED R=RESUMED", "P=PAUSED Q=PAUSED R=BEFORE",
       also=none_is_paused)  # fmt: skip
def pause_said_twice_and_resume(arena: Arena) -> list[Actor]:
    """The call sent again could pause the job that somebody has let go on."""
    job_id, deed = arena.job(1), arena.deed()
    return [pauser("P", job_id, deed), pauser("Q", job_id, deed), resumer("R", job_id, arena.deed())]


@race("pause and claim", "P=PAUSED W=1", "P=PAUSED W=0", preemptions=2)
def pause_and_claim(arena: Arena) -> list[Actor]:
    """A part claimed beside the pause could be held back while it runs."""
    job_id = arena.job(1)
    return [pauser("P", job_id, arena.deed()), arena.claimer("W", 1)]


@race("the walk of a pause and a claim", "K=END W=0", preemptions=2)
def walk_and_claim(arena: Arena) -> list[Actor]:
    """A claim that begins after the pause could take what is not held back yet."""
    job_id = arena.job(2)
    arena.paused(job_id, walked=False)
    return [walker("K", job_id), arena.claimer("W", 2)]


@race("the walk of a resume and a claim", "K=END W=0", "K=END W=2", also=none_is_held, preemptions=2)
def free_and_claim(arena: Arena) -> list[Actor]:
    """A part could be claimed and then be let go as if it still waited."""
    job_id = arena.job(2)
    arena.paused(job_id)
    arena.resumed(job_id)
    return [walker("K", job_id), arena.claimer("W", 2)]


@race("pause and last completion", "A=LAST P=PAUSED", "A=LAST P=REFUSED", preemptions=2)
def pause_and_completion(arena: Arena) -> list[Actor]:
    """An ended job could stay paused, and its next run would never begin."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), pauser("P", job_id, arena.deed())]


@race("pause and cancel", "C=CANCELLED P=PAUSED", "C=CANCELLED P=REFUSED", preemptions=2)
def pause_and_cancel(arena: Arena) -> list[Actor]:
    """An ended job could stay paused."""
    job_id = arena.job(2, stripes=2)
    return [canceller("C", job_id), pauser("P", job_id, arena.deed())]


@race("pause and pause", "P=PAUSED Q=BEFORE", "P=BEFORE Q=PAUSED", preemptions=2)
def pause_and_pause(arena: Arena) -> list[Actor]:
    """Both could say that they did it."""
    job_id = arena.job(1)
    return [pauser("P", job_id, arena.deed()), pauser("Q", job_id, arena.deed())]


@race("the walk of a pause and the resume", "K=END R=RESUMED", also=none_is_held, preemptions=2)
def walk_and_resume(arena: Arena) -> list[Actor]:
    """A part could be held back after the resume, for ever."""
    job_id = arena.job(2)
    arena.paused(job_id, walked=False)
    return [walker("K", job_id), resumer("R", job_id, arena.deed())]


@race("the walk of a resume and another pause", "K=END P=PAUSED", preemptions=2)
def free_and_pause(arena: Arena) -> list[Actor]:
    """A part could be let go after the pause and lie in the way of other claims."""
    job_id = arena.job(2)
    arena.paused(job_id)
    arena.resumed(job_id)
    return [walker("K", job_id), pauser("P", job_id, arena.deed())]


@three("pause, resume and the walk", "K=END P=PAUSED R=RESUMED", "K=END P=PAUSED R=BEFORE", also=none_is_held)
def pause_resume_and_walk(arena: Arena) -> list[Actor]:
    """The walk could go the way of the first of them after the second."""
    job_id = arena.job(2)
    return [walker("K", job_id), pauser("P", job_id, arena.deed()), resumer("R", job_id, arena.deed())]


@race("two walkers that hold back", "K=END L=END", preemptions=2)
def two_walkers(arena: Arena) -> list[Actor]:
    """A part could be held back twice, and its moment would be far away after the resume."""
    job_id = arena.job(2)
    arena.paused(job_id, walked=False)
    return [walker("K", job_id), walker("L", job_id)]


@race("two walkers that let go", "K=END L=END", also=none_is_held, preemptions=2)
def two_walkers_back(arena: Arena) -> list[Actor]:
    """A part could be let go twice, to a moment in the far past."""
    job_id = arena.job(2)
    arena.paused(job_id)
    arena.resumed(job_id)
    return [walker("K", job_id), walker("L", job_id)]


@race("the walk of a pause and a given-back part", "A=OK K=END", preemptions=2)
def walk_and_release(arena: Arena) -> list[Actor]:
    """The part and the walk could wait for each other."""
    job_id = arena.job(2)
    (one,) = arena.claims(1)
    arena.paused(job_id, walked=False)
    return [arena.releases("A", one), walker("K", job_id)]


@race("the walk of a pause and a lost lease", "K=END W=WOKE", preemptions=2)
def walk_and_wake(arena: Arena) -> list[Actor]:
    """A part that runs could be held back, or wait twice."""
    job_id = arena.job(2)
    arena.claims(1, LAPSED)
    arena.paused(job_id, walked=False)
    return [walker("K", job_id), waker("W")]


@race("the walk of an ended pause and the next run", "D=RUN 2 K=END", also=none_is_held, preemptions=2)
def walk_and_redrive(arena: Arena) -> list[Actor]:
    """A part of the new run could be held back for ever."""
    job_id = arena.job(2)
    arena.paused(job_id)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [redriver("D", job_id), walker("K", job_id)]


@race("the walk of a pause and the sweep", "K=END S=SWEPT 2", "K=END S=SWEPT 0", preemptions=2)
def walk_and_sweep(arena: Arena) -> list[Actor]:
    """An abandoned part could be let go, or both could wait for each other."""
    job_id = arena.job(2)
    arena.paused(job_id)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [walker("K", job_id), sweeper("S", job_id)]


@race(
    "parts that are added to a job and its pause",
    "A=ADDED P=PAUSED",
    after=seal_what_is_open,
    also=none_is_held,
    preemptions=2,
)
def append_and_pause(arena: Arena) -> list[Actor]:
    """A part that comes beside the pause could be held back after the resume."""
    job_id = arena.open(1)
    return [appender("A", job_id, 1), pauser("P", job_id, arena.deed())]


@three(
    "parts that are added to a paused job, its walk and its resume",
    "A=ADDED K=END R=RESUMED",
    after=seal_what_is_open,
    also=none_is_held,
)
def append_walk_and_resume(arena: Arena) -> list[Actor]:
    """The walk of the resume could pass before the part is there."""
    job_id = arena.open(1)
    arena.paused(job_id, walked=False)
    return [appender("A", job_id, 1), walker("K", job_id), resumer("R", job_id, arena.deed())]


# A skipped part.


@race("skip and completion of the last part", "A=LAST S=REFUSED", "A=LOST S=ENDED", preemptions=2)
def skip_and_completion(arena: Arena) -> list[Actor]:
    """One part could count twice, and the result of the one could stand under the claim of the other."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), skipper("S", job_id, 0, arena.deed())]


@race("skip of one part and completion of the other", "A=LAST S=SKIPPED", "A=OK S=ENDED", preemptions=2)
def skip_and_other_completion(arena: Arena) -> list[Actor]:
    """Both could leave the end to the other."""
    job_id, (one, _) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), skipper("S", job_id, 1, arena.deed())]


@race("skip and skip", "S=ENDED T=REFUSED", "S=REFUSED T=ENDED", preemptions=2)
def skip_and_skip(arena: Arena) -> list[Actor]:
    """One part could be counted for both."""
    job_id = arena.job(1)
    return [skipper("S", job_id, 0, arena.deed()), skipper("T", job_id, 0, arena.deed(), failed=True)]


@race("skip said twice", "S=ENDED T=ENDED", preemptions=2)
def skip_said_twice(arena: Arena) -> list[Actor]:
    """The call sent again beside the first could be refused, be counted, or be answered otherwise."""
    job_id, deed = arena.job(1), arena.deed()
    return [skipper("S", job_id, 0, deed), skipper("T", job_id, 0, deed)]


@three("a skip said twice, and the job is run again", "S=ENDED T=ENDED R=RUN 2", "S=ENDED T=ENDED R=REFUSED",
       also=lambda arena, run: runs_on(arena, run, "pending"))  # fmt: skip
def skip_said_twice_and_redrive(arena: Arena) -> list[Actor]:
    """The call sent again could fall on the part of the next run."""
    job_id, deed = arena.job(1, successor=None), arena.deed()
    skips = [skipper(name, job_id, 0, deed, failed=True) for name in "ST"]
    return [*skips, redriver("R", job_id)]


@race("skip and claim", "S=SKIPPED W=1", "S=SKIPPED W=2", preemptions=2)
def skip_and_claim(arena: Arena) -> list[Actor]:
    """A skipped part could be run, or the skip could fall on a part that has just been claimed and stay uncounted."""
    job_id = arena.job(2)
    return [skipper("S", job_id, 0, arena.deed()), arena.claimer("W", 2)]


@race("skip and cancel", "C=CANCELLED S=REFUSED", "C=LATE S=ENDED", preemptions=2)
def skip_and_cancel(arena: Arena) -> list[Actor]:
    """Both could end the run."""
    job_id = arena.job(1)
    return [canceller("C", job_id), skipper("S", job_id, 0, arena.deed())]


@race("skip and give up", "G=GAVE_UP S=REFUSED", "G=LATE S=ENDED", preemptions=2)
def skip_and_give_up(arena: Arena) -> list[Actor]:
    """Both could end the run."""
    job_id = arena.job(1, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    return [giver_up("G", job_id), skipper("S", job_id, 0, arena.deed())]


@race("skip and a lease that runs out for the last time", "R=REAPED 1 S=REFUSED", "R=REAPED 0 S=ENDED", preemptions=2)
def skip_and_reap(arena: Arena) -> list[Actor]:
    """One part could be succeeded and failed."""
    job_id = arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    return [reaper("R"), skipper("S", job_id, 0, arena.deed())]


@race(
    "skip as failed, and a failure, where one too many closes the job",
    "A=CLOSED S=ENDED",
    "A=LAST S=REFUSED",
    preemptions=1,
)
def skip_and_failure(arena: Arena) -> list[Actor]:
    """Each could see a count below the limit, and nobody would close the job."""
    job_id, (one, *_) = held(arena, 3, stripes=2, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), skipper("S", job_id, 1, arena.deed(), failed=True)]


@race("skip and a success that together make the quorum", "A=LAST S=SKIPPED", "A=OK S=ENDED", preemptions=1)
def skip_and_quorum(arena: Arena) -> list[Actor]:
    """Each could see one success too few."""
    job_id, (one, *_) = held(arena, 3, stripes=2, policy=Policy(quorum=2))
    return [arena.succeeds("A", one), skipper("S", job_id, 1, arena.deed())]


@race("skip and the next run", "D=RUN 2 S=ENDED", "D=RUN 2 S=REFUSED", preemptions=2)
def skip_and_redrive(arena: Arena) -> list[Actor]:
    """A part of the new run could be counted in the old one."""
    job_id, (one,) = held(arena, 1)
    arena.settled([Report(one, "fail")])
    return [redriver("D", job_id), skipper("S", job_id, 0, arena.deed())]


@race("skip and the walk of a pause", "K=END S=SKIPPED", also=none_is_held, preemptions=2)
def skip_and_walk(arena: Arena) -> list[Actor]:
    """A skipped part could be held back, or both could wait for each other."""
    job_id = arena.job(2)
    arena.paused(job_id, walked=False)
    return [walker("K", job_id), skipper("S", job_id, 0, arena.deed())]


# A finish by hand.


@race("finish by hand and last completion", "A=LAST F=LATE", "A=CLOSED F=FINISHED", preemptions=2)
def finish_and_completion(arena: Arena) -> list[Actor]:
    """Both could end the run, and it would have two successors."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), finisher("F", job_id, arena.deed())]


@race("finish by hand and cancel", "C=CANCELLED F=LATE", "C=LATE F=FINISHED", preemptions=2)
def finish_and_cancel(arena: Arena) -> list[Actor]:
    """Both could end the run, each in its way."""
    job_id = arena.job(2, stripes=2)
    return [canceller("C", job_id), finisher("F", job_id, arena.deed())]


@race("finish by hand, twice", "F=FINISHED G=LATE", "F=LATE G=FINISHED", preemptions=2)
def finish_and_finish(arena: Arena) -> list[Actor]:
    """The run could have two successors."""
    job_id = arena.job(1)
    return [finisher("F", job_id, arena.deed()), finisher("G", job_id, arena.deed())]


@race("finish by hand and seal", "F=FINISHED S=BEFORE", "F=FINISHED S=SEALED", preemptions=2)
def finish_and_seal(arena: Arena) -> list[Actor]:
    """A job could be running after its end."""
    job_id = arena.open(1)
    return [finisher("F", job_id, arena.deed()), sealer("S", job_id, 1)]


@race("finish by hand and parts that are added", "A=ADDED F=FINISHED", "A=REFUSED F=FINISHED", preemptions=2)
def finish_and_append(arena: Arena) -> list[Actor]:
    """A part could be added to a job that has ended."""
    job_id = arena.open(1)
    return [appender("A", job_id, 1), finisher("F", job_id, arena.deed())]
