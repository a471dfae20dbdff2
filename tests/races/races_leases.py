"""Races for one part: claims, heartbeats, checkpoints, retries and the reaper."""

from __future__ import annotations

from fanin.protocol import close
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, canceller, reaper, renewer, saver, sweeper, waker
from tests.races.scenarios import held, race, three
from tests.races.stage import BUCKET, LAPSED

# Claims.


@race("an old holder and a new one", "Z=LAST W=NOTHING", "Z=LOST W=LAST", preemptions=2, always=4)
def reclaim(arena: Arena) -> list[Actor]:
    """Both could be accepted, or the result of one could stand under the claim of the other."""
    arena.job(1, successor=None)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("Z", claim), arena.reclaimer("W")]


@race("claim and claim of one part", "A=1 B=0", "A=0 B=1")
def claim_and_claim(arena: Arena) -> list[Actor]:
    """One part could go to two workers."""
    arena.job(1)
    return [arena.claimer("A", 1), arena.claimer("B", 1)]


@race("claim and claim of three parts, two each", "A=2 B=1", "A=1 B=2")
def claim_and_claim_of_three(arena: Arena) -> list[Actor]:
    """The worker that finds its parts taken could leave one lying, or take one twice."""
    arena.job(3)
    return [arena.claimer("A", 2), arena.claimer("B", 2)]


@race("two who claim what has run out of its lease", "V=LAST W=NOTHING", "V=NOTHING W=LAST", preemptions=2, always=3)
def reclaim_and_reclaim(arena: Arena) -> list[Actor]:
    """Two wake the same part: it could be claimed by both."""
    arena.job(1, successor=None)
    arena.claims(1, LAPSED)
    return [arena.reclaimer("V"), arena.reclaimer("W")]


@race("wake and wake", "V=WOKE W=SLEPT", "V=SLEPT W=WOKE")
def wake_and_wake(arena: Arena) -> list[Actor]:
    """One lost lease could be written down twice, or wait behind another one's lock."""
    arena.job(1)
    arena.claims(1, LAPSED)
    return [waker("V"), waker("W")]


@race("wake and completion", "W=SLEPT A=LAST", "W=WOKE A=LAST", preemptions=2)
def wake_and_completion(arena: Arena) -> list[Actor]:
    """A part that has just succeeded could be made ready again."""
    arena.job(1)
    (one,) = arena.claims(1, LAPSED)
    return [waker("W"), arena.succeeds("A", one)]


@race("wake and heartbeat", "W=SLEPT H=HELD", "W=WOKE H=HELD")
def wake_and_heartbeat(arena: Arena) -> list[Actor]:
    """A part whose lease was just renewed could be handed to somebody else."""
    arena.job(1)
    (one,) = arena.claims(1, LAPSED)
    return [waker("W"), renewer("H", one)]


@race("wake and checkpoint", "W=SLEPT K=SAVED", "W=WOKE K=SAVED")
def wake_and_checkpoint(arena: Arena) -> list[Actor]:
    """The row moves under a checkpoint: the holder could be told that it has lost the part."""
    arena.job(1)
    (one,) = arena.claims(1, LAPSED)
    return [waker("W"), saver("K", one)]


@race("wake and sweep", "W=WOKE S=SWEPT 1", "W=SLEPT S=SWEPT 1", "W=WOKE S=SWEPT 0")
def wake_and_sweep(arena: Arena) -> list[Actor]:
    """An abandoned part could be made ready."""
    job_id = arena.job(1)
    arena.claims(1, LAPSED)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [waker("W"), sweeper("S", job_id)]


# Heartbeats and checkpoints.


@race("heartbeat and completion", "A=LAST H=HELD", "A=LAST H=LOST")
def heartbeat_and_completion(arena: Arena) -> list[Actor]:
    """The heartbeat could bring a part that has ended back to its worker."""
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), renewer("H", one)]


@race("checkpoint and completion", "A=LAST K=SAVED", "A=LAST K=LOST")
def checkpoint_and_completion(arena: Arena) -> list[Actor]:
    """A checkpoint could be written after the part has ended."""
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), saver("K", one)]


@race("heartbeat and a new claim", "H=HELD W=NOTHING", "H=LOST W=LAST", preemptions=2, always=4)
def heartbeat_and_reclaim(arena: Arena) -> list[Actor]:
    """The old holder could be told that it still holds the part."""
    arena.job(1)
    (claim,) = arena.claims(1, LAPSED)
    return [renewer("H", claim), arena.reclaimer("W")]


@race("checkpoint and a new claim", "K=SAVED W=NOTHING", "K=LOST W=LAST", preemptions=2, always=4)
def checkpoint_and_reclaim(arena: Arena) -> list[Actor]:
    """The old holder could leave its checkpoint to the new one's attempt."""
    arena.job(1)
    (claim,) = arena.claims(1, LAPSED)
    return [saver("K", claim), arena.reclaimer("W")]


@race("a heartbeat of two parts and a batch of both, in opposite order", "A=LAST+LAST H=HELD", "A=LAST+LAST H=LOST")
def heartbeat_and_batch(arena: Arena) -> list[Actor]:
    """The heartbeat runs beside its own worker's report: they could lock the parts crosswise."""
    _, (one, two) = held(arena, 2)
    return [arena.succeeds("A", two, one), renewer("H", one, two)]


@race("a heartbeat and a checkpoint of one worker", "H=HELD K=SAVED")
def heartbeat_and_checkpoint(arena: Arena) -> list[Actor]:
    """Each moves the row under the other: a part that is held could be called lost."""
    _, (one, two) = held(arena, 2)
    return [renewer("H", two, one), saver("K", one)]


# Parts that are given back.


@race("a release and a new claim", "A=LOST W=LAST", "A=OK W=LAST", "A=OK W=NOTHING", preemptions=2, always=4)
def release_and_reclaim(arena: Arena) -> list[Actor]:
    """The part could be given back under its new holder's hands."""
    arena.job(1, successor=None)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.releases("A", claim), arena.reclaimer("W")]


@race("a retry and a new claim", "A=LOST W=LAST", "A=OK W=LAST", "A=OK W=NOTHING", preemptions=2, always=4)
def retry_and_reclaim(arena: Arena) -> list[Actor]:
    """The failure of an old attempt could take an attempt from the new one."""
    arena.job(1, successor=None)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.retries("A", claim), arena.reclaimer("W")]


@race("a release and the reaper", "A=OK R=REAPED 0", "A=LOST R=REAPED 1")
def release_and_reap(arena: Arena) -> list[Actor]:
    """A release gives the attempt back: the reaper could fail a part that has one left."""
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.releases("A", claim), reaper("R")]


@race("a last try that fails and the reaper", "A=LAST R=REAPED 0", "A=REPLAY R=REAPED 1", preemptions=2)
def last_try_and_reap(arena: Arena) -> list[Actor]:
    """One failure could be counted by both."""
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.retries("A", claim), reaper("R")]


@race("a retry and cancel", "A=OK C=CANCELLED", preemptions=2)
def retry_and_cancel(arena: Arena) -> list[Actor]:
    """A part that goes back to the queue could stay live in the cancelled job."""
    job_id, (one,) = held(arena, 1, attempts=2)
    return [arena.retries("A", one), canceller("C", job_id)]


# The reaper.


@race("reap and completion", "A=LAST R=REAPED 0", "A=LOST R=REAPED 1", preemptions=2)
def reap_and_completion(arena: Arena) -> list[Actor]:
    """A late result could be accepted after its part was counted as failed."""
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("A", claim), reaper("R")]


@race("reap and reap", "R=REAPED 1 Q=REAPED 0", "R=REAPED 0 Q=REAPED 1", preemptions=2)
def reap_and_reap(arena: Arena) -> list[Actor]:
    """Every worker reaps: one lost part could be counted by two."""
    arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    return [reaper("R"), reaper("Q")]


@race("reap and heartbeat", "R=REAPED 0 H=HELD", "R=REAPED 1 H=LOST")
def reap_and_heartbeat(arena: Arena) -> list[Actor]:
    """The reaper could fail a part whose lease has just been renewed."""
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [reaper("R"), renewer("H", claim)]


@race("reap and checkpoint", "R=REAPED 0 K=SAVED", "R=REAPED 1 K=LOST")
def reap_and_checkpoint(arena: Arena) -> list[Actor]:
    """A checkpoint renews the lease: the reaper could act on the one before."""
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [reaper("R"), saver("K", claim)]


@race("reap and cancel", "R=REAPED 1 C=LATE", "R=REAPED 0 C=CANCELLED", preemptions=2)
def reap_and_cancel(arena: Arena) -> list[Actor]:
    """The last failure and the cancel could both end the job."""
    job_id = arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    return [reaper("R"), canceller("C", job_id)]


@race("reap and sweep", "R=REAPED 0 S=SWEPT 1", "R=REAPED 0 S=SWEPT 0", preemptions=2)
def reap_and_sweep(arena: Arena) -> list[Actor]:
    """A part could be failed and abandoned."""
    job_id = arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [reaper("R"), sweeper("S", job_id)]


# Three parties.


@three(
    "an old holder, its heartbeat and a new holder",
    "Z=LAST H=HELD W=NOTHING",
    "Z=LAST H=LOST W=NOTHING",
    "Z=LOST H=LOST W=LAST",
    always=1,
)
def zombie_heartbeat_and_reclaim(arena: Arena) -> list[Actor]:
    """The heartbeat of a stopped process could win the part back after the new holder has begun."""
    arena.job(1, successor=None)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("Z", claim), renewer("H", claim), arena.reclaimer("W")]


@three(
    "an old holder and two new ones",
    "Z=LAST V=NOTHING W=NOTHING",
    "Z=LOST V=LAST W=NOTHING",
    "Z=LOST V=NOTHING W=LAST",
    always=1,
)
def zombie_and_two_reclaims(arena: Arena) -> list[Actor]:
    """The second claim could be valid beside the first."""
    arena.job(1, successor=None)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("Z", claim), arena.reclaimer("V"), arena.reclaimer("W")]


@three(
    "the last completion, its heartbeat and the reaper",
    "A=LAST H=HELD R=REAPED 0",
    "A=LAST H=LOST R=REAPED 0",
    "A=LOST H=LOST R=REAPED 1",
    always=1,
)
def completion_heartbeat_and_reap(arena: Arena) -> list[Actor]:
    """The reaper could fail the part between the heartbeat and the report of one worker."""
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("A", claim), renewer("H", claim), reaper("R")]


@three(
    "the last completion, the reaper and cancel",
    "A=CLOSED R=REAPED 0 C=CANCELLED",
    "A=LAST R=REAPED 0 C=LATE",
    "A=LOST R=REAPED 1 C=LATE",
    always=1,
)
def completion_reap_and_cancel(arena: Arena) -> list[Actor]:
    """Three could end the run, with three outcomes."""
    job_id = arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("A", claim), reaper("R"), canceller("C", job_id)]


@three(
    "claim, cancel and sweep",
    "W=0 C=CANCELLED S=SWEPT 0",
    "W=0 C=CANCELLED S=SWEPT 1",
    "W=1 C=CANCELLED S=SWEPT 0",
    "W=1 C=CANCELLED S=SWEPT 1",
    always=1,
)
def claim_cancel_and_sweep(arena: Arena) -> list[Actor]:
    """The sweep could pass over a part that is claimed at this moment, and nobody would come back for it."""
    job_id = arena.job(1)
    return [arena.claimer("W", 1), canceller("C", job_id), sweeper("S", job_id)]
