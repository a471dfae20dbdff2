"""Races of repairs: of a job that is right, where nothing may happen, and of one that is not."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.protocol import close
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import execute, select
from tests.races.arena import (
    Arena,
    appender,
    canceller,
    giver_up,
    mender,
    redriver,
    renewer,
    repairer,
    resumer,
    sealer,
    skipper,
    sweeper,
)
from tests.races.races_nested import waits
from tests.races.races_operators import none_is_held
from tests.races.scenarios import held, race, seal_what_is_open, three
from tests.races.stage import BUCKET

DRIFT = "UPDATE fanin.job_stripe SET created = created + 1, remaining = remaining + 1"
UNCOUNTED = (
    "UPDATE fanin.part SET status = 'succeeded', ready = false, result = '\"' || claim_id || '\"' "
    "WHERE status = 'running'"
)


def drifted(arena: Arena, *texts: str) -> None:
    execute(arena.store, *(texts or (DRIFT,)))


def unended(arena: Arena, parts: int = 2) -> str:
    """A job of which nobody has counted the last part."""
    job_id, claims = held(arena, parts)
    arena.settled([Report(one, "succeed", result=f'"{one.claim_id}"') for one in claims[:-1]])
    drifted(arena, UNCOUNTED)
    return job_id


def not_repaired(arena: Arena, run: Run) -> list[str]:
    """Of a job that is right nothing is written down."""
    return [f"repaired, and was right: {row}" for row in select(arena.store, "SELECT what, before FROM fanin.repair")]


def told_once(arena: Arena, run: Run) -> list[str]:
    told = len(select(arena.store, "SELECT id FROM fanin.repair"))
    return [] if told == 1 else [f"the damage was told {told} times"]


def heal(arena: Arena) -> None:
    """What a person does, so that workers can go on."""
    execute(arena.store, "UPDATE fanin.job SET planned_parts = 2, sealed_parts = 2, paused_at = NULL, walk_from = 0")


# A job that is right.


@race("repair and last completion", "A=LAST R=NOTHING", also=not_repaired, preemptions=2)
def repair_and_completion(arena: Arena) -> list[Actor]:
    """A counter that is right could be written as it was before the completion, or the run could end twice."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), repairer("R", job_id)]


@race("repair and two completions on two counters", "A=LAST B=OK R=NOTHING", "A=OK B=LAST R=NOTHING",
      also=not_repaired, seeds=30, always=2)  # fmt: skip
def repair_and_completions(arena: Arena) -> list[Actor]:
    """A counter could be written back to what it was, and nobody would end the job."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), arena.succeeds("B", two), repairer("R", job_id)]


@race("repair and cancel", "C=CANCELLED R=NOTHING", also=not_repaired, preemptions=2)
def repair_and_cancel(arena: Arena) -> list[Actor]:
    """A counter that was closed could be opened again."""
    job_id = arena.job(2, stripes=2)
    return [canceller("C", job_id), repairer("R", job_id)]


@race("repair and give up", "G=GAVE_UP R=NOTHING", also=not_repaired, preemptions=2)
def repair_and_give_up(arena: Arena) -> list[Actor]:
    """A counter that was closed could be opened again."""
    job_id = arena.job(2, give_up_after=-1.0)
    return [giver_up("G", job_id), repairer("R", job_id)]


@race("repair and redrive", "D=RUN 2 R=NOTHING", also=not_repaired, preemptions=2)
def repair_and_redrive(arena: Arena) -> list[Actor]:
    """Counters of the new run could be written as those of the old one."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    arena.settled([Report(one, "fail"), Report(two, "succeed", result=f'"{two.claim_id}"')])
    return [redriver("D", job_id), repairer("R", job_id)]


@race("repair and an append", "A=ADDED R=NOTHING", after=seal_what_is_open, also=not_repaired, preemptions=2)
def repair_and_append(arena: Arena) -> list[Actor]:
    """Parts that are being added could be counted twice, or not at all."""
    job_id = arena.open(1)
    return [appender("A", job_id, 1), repairer("R", job_id)]


@race("repair and seal", "R=NOTHING S=SEALED", also=not_repaired, preemptions=2)
def repair_and_seal(arena: Arena) -> list[Actor]:
    """A counter that was sealed could be opened again, and its job would never end."""
    job_id = arena.open(2, stripes=2)
    return [repairer("R", job_id), sealer("S", job_id, 2)]


@race("repair and sweep", "R=NOTHING S=SWEPT 2", also=not_repaired, preemptions=2)
def repair_and_sweep(arena: Arena) -> list[Actor]:
    """Parts that are being swept could be counted as live."""
    job_id = arena.job(2)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [repairer("R", job_id), sweeper("S", job_id)]


@race("repair and a failure that closes the job", "A=LAST R=NOTHING", also=not_repaired, preemptions=2)
def repair_and_fail_fast(arena: Arena) -> list[Actor]:
    """Both lock all counters; one could wait for the other."""
    job_id, (one, *_) = held(arena, 3, stripes=2, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), repairer("R", job_id)]


@race("repair of the job above and the end of a nested job", "A=LAST R=NOTHING", also=not_repaired, preemptions=2)
def repair_and_rise(arena: Arena) -> list[Actor]:
    """The end goes up while the repair holds the job above; they could wait for each other."""
    job_id, _, _, last = waits(arena)
    return [arena.succeeds("A", last), repairer("R", job_id)]


@race("mending and the end of a nested job", "A=LAST M=MENDED 0", also=not_repaired, preemptions=2)
def mend_and_rise(arena: Arena) -> list[Actor]:
    """A part that waits could be let go though its end is under way."""
    job_id, _, _, last = waits(arena)
    return [arena.succeeds("A", last), mender("M", job_id)]


# A job that is not.


@race("repair of a counter and a completion", "A=OK R=REPAIRED", drifted=True, preemptions=2)
def drift_and_completion(arena: Arena) -> list[Actor]:
    """The counter could be written as it was before the completion, and stay wrong."""
    job_id, (one, _) = held(arena, 2)
    drifted(arena)
    return [arena.succeeds("A", one), repairer("R", job_id)]


@race("repair of a counter and the last completion", "A=OK R=ENDED", "A=LAST R=REPAIRED", drifted=True, preemptions=2)
def drift_and_last_completion(arena: Arena) -> list[Actor]:
    """Each could leave the end to the other, or both could end the run."""
    job_id, (one,) = held(arena, 1)
    drifted(arena)
    return [arena.succeeds("A", one), repairer("R", job_id)]


@race("repair of the job's row and the resume of its pause", "R=REPAIRED V=RESUMED", also=none_is_held, drifted=True,
      preemptions=2)  # fmt: skip
def drift_and_resume(arena: Arena) -> list[Actor]:
    """The walk that lets the parts go could be forgotten, and they would be held back for ever."""
    job_id = arena.job(2)
    arena.paused(job_id)
    drifted(arena, "UPDATE fanin.job SET open_stripes = 2")
    return [repairer("R", job_id), resumer("V", job_id, arena.deed())]


@race("two repairs of a counter", "R=NOTHING S=REPAIRED", "R=REPAIRED S=NOTHING", drifted=True, preemptions=2)
def drift_and_two_repairs(arena: Arena) -> list[Actor]:
    """What was repaired could be repaired again, from what it was before; or they could wait for each other."""
    job_id = arena.job(2, stripes=2)
    drifted(arena)
    return [repairer("R", job_id), repairer("S", job_id)]


@race(
    "two repairs of a job that should have ended", "R=ENDED S=NOTHING", "R=NOTHING S=ENDED", drifted=True, preemptions=2
)
def unended_and_two_repairs(arena: Arena) -> list[Actor]:
    """The run could end twice, with two events and two successors."""
    job_id = unended(arena)
    return [repairer("R", job_id), repairer("S", job_id)]


@race("two repairs of a damaged job", "R=DAMAGED S=DAMAGED", drifted=True, after=heal, also=told_once, preemptions=2)
def damage_and_two_repairs(arena: Arena) -> list[Actor]:
    """The damage could be told twice."""
    job_id = arena.job(2, stripes=2)
    drifted(arena, "UPDATE fanin.job SET planned_parts = 3, sealed_parts = 3")
    return [repairer("R", job_id), repairer("S", job_id)]


@race("the repair of a job that should have ended, and its cancel", "C=CANCELLED R=REPAIRED", "C=LATE R=ENDED",
      drifted=True, preemptions=2)  # fmt: skip
def unended_and_cancel(arena: Arena) -> list[Actor]:
    """Both could end the run."""
    job_id = unended(arena)
    return [canceller("C", job_id), repairer("R", job_id)]


@race("the repair of a job that should have ended, and a redrive", "D=REFUSED R=ENDED", "D=RUN 0 R=ENDED",
      drifted=True, preemptions=2)  # fmt: skip
def unended_and_redrive(arena: Arena) -> list[Actor]:
    """The end could be written over the new run."""
    job_id = unended(arena)
    return [redriver("D", job_id), repairer("R", job_id)]


@race("repair of an ended job and a redrive", "D=RUN 2 R=REPAIRED", drifted=True, preemptions=2)
def drift_and_redrive(arena: Arena) -> list[Actor]:
    """Counters of the new run could be written as those of the old one."""
    job_id, (one, two) = held(arena, 2)
    arena.settled([Report(one, "fail"), Report(two, "succeed", result=f'"{two.claim_id}"')])
    drifted(arena, "UPDATE fanin.job_stripe SET created = created + 1, failed = failed + 1")
    return [redriver("D", job_id), repairer("R", job_id)]


@race("repair of a closed counter and its sweep", "R=REPAIRED S=SWEPT 2", drifted=True, preemptions=2)
def drift_and_sweep(arena: Arena) -> list[Actor]:
    """The counter could be left with parts that are not there, and be swept for ever."""
    job_id = arena.job(2)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    drifted(arena)
    return [repairer("R", job_id), sweeper("S", job_id)]


@race("repair of an open job and an append", "A=ADDED R=REPAIRED", drifted=True, after=seal_what_is_open, preemptions=2)
def drift_and_append(arena: Arena) -> list[Actor]:
    """The parts that come could be counted twice, or not at all."""
    job_id = arena.open(1)
    drifted(arena)
    return [appender("A", job_id, 1), repairer("R", job_id)]


@race("repair of an open job and its seal", "R=REPAIRED S=SEALED", "R=REPAIRED S=REFUSED",
      drifted=True, after=seal_what_is_open, preemptions=2)  # fmt: skip
def drift_and_seal(arena: Arena) -> list[Actor]:
    """The job could be sealed with a part that is not there."""
    job_id = arena.open(1)
    drifted(arena)
    return [repairer("R", job_id), sealer("S", job_id, 1)]


@race("the repair of a nested job that should have ended, and another part of the job above",
      "A=LAST R=ENDED", "A=OK R=ENDED", drifted=True, preemptions=2)  # fmt: skip
def unended_nested(arena: Arena) -> list[Actor]:
    """Both could leave the end of the job above to the other, or wait for each other."""
    job_id, one, nested, _ = waits(arena, above=2)
    (other,) = arena.claims(1)
    drifted(arena, f"{UNCOUNTED} AND job_id = '{nested}'")
    assert other.job_id == job_id == one.job_id
    return [arena.succeeds("A", other), repairer("R", nested)]


@three("two repairs of a counter, and the last completion", "A=OK R=ENDED S=NOTHING", "A=OK R=NOTHING S=ENDED",
       "A=LAST R=REPAIRED S=NOTHING", "A=LAST R=NOTHING S=REPAIRED", "A=OK R=REPAIRED S=ENDED",
       "A=OK R=ENDED S=REPAIRED", drifted=True)  # fmt: skip
def drift_two_repairs_and_completion(arena: Arena) -> list[Actor]:
    """The run could end twice, or never."""
    job_id, (one,) = held(arena, 1)
    drifted(arena)
    return [arena.succeeds("A", one), repairer("R", job_id), repairer("S", job_id)]


@race("mending and a heartbeat", "H=HELD M=MENDED 0", "H=HELD M=MENDED 1", drifted=True, preemptions=2)
def mend_and_renew(arena: Arena) -> list[Actor]:
    """A lease that was just renewed could be taken away."""
    job_id, (one,) = held(arena, 1)
    drifted(arena, "UPDATE fanin.part SET due_at = due_at + 1e9")
    return [renewer("H", one), mender("M", job_id)]


@race("mending and a completion", "A=LAST M=MENDED 0", "A=LAST M=MENDED 1", drifted=True, preemptions=2)
def mend_and_completion(arena: Arena) -> list[Actor]:
    """A part that has ended could be run again."""
    job_id, (one,) = held(arena, 1)
    drifted(arena, "UPDATE fanin.part SET due_at = due_at + 1e9")
    return [arena.succeeds("A", one), mender("M", job_id)]


@race("two who mend a part whose nested job is gone", "M=MENDED 0 N=MENDED 1", "M=MENDED 1 N=MENDED 0", drifted=True,
      preemptions=2)  # fmt: skip
def mend_twice(arena: Arena) -> list[Actor]:
    """The part could be let go twice, with an attempt too many."""
    job_id, _, nested, _ = waits(arena)
    drifted(arena, f"UPDATE fanin.job SET waiter_id = NULL, waiter_idx = NULL WHERE id = '{nested}'")
    return [mender("M", job_id), mender("N", job_id)]


@race("mending of a part whose nested job is gone, and its skip", "M=MENDED 0 S=ENDED", "M=MENDED 1 S=ENDED",
      drifted=True, preemptions=2)  # fmt: skip
def mend_and_skip(arena: Arena) -> list[Actor]:
    """A part that was skipped could be run again."""
    job_id, _, nested, _ = waits(arena)
    drifted(arena, f"UPDATE fanin.job SET waiter_id = NULL, waiter_idx = NULL WHERE id = '{nested}'")
    return [mender("M", job_id), skipper("S", job_id, 0, arena.deed())]
