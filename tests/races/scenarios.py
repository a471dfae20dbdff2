"""The races: where each starts, who takes part, and every outcome that it must be able to have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Claim, Report
from fanin.domain.policy import Policy
from fanin.protocol import close, lease, submit
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.races.arena import (
    Arena,
    canceller,
    giver_up,
    reaper,
    redriver,
    renewer,
    said,
    sweeper,
)
from tests.races.stage import BUCKET, LAPSED, succeed


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


# Completions.


@race("two last parts, one counter", "A=LAST B=OK", "A=OK B=LAST")
def last_two(arena: Arena) -> list[Actor]:
    _, (one, two) = held(arena, 2)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("two last parts, a counter each", "A=LAST B=OK", "A=OK B=LAST")
def last_two_striped(arena: Arena) -> list[Actor]:
    _, (one, two) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("the last part twice, by one attempt", "A=LAST B=REPLAY", "A=REPLAY B=LAST")
def said_twice(arena: Arena) -> list[Actor]:
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), arena.succeeds("B", one)]


@race("success and failure of one attempt", "A=LAST B=CONFLICT", "A=LOST B=LAST")
def success_and_failure(arena: Arena) -> list[Actor]:
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), arena.fails("B", one)]


@race(
    "three last parts, one counter", "A=LAST B=OK C=OK", "A=OK B=LAST C=OK", "A=OK B=OK C=LAST", preemptions=1, always=2
)
def last_three(arena: Arena) -> list[Actor]:
    _, (one, two, three) = held(arena, 3)
    return [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("C", three)]


@race(
    "three last parts, a counter each",
    "A=LAST B=OK C=OK",
    "A=OK B=LAST C=OK",
    "A=OK B=OK C=LAST",
    preemptions=1,
    always=2,
)
def last_three_striped(arena: Arena) -> list[Actor]:
    _, (one, two, three) = held(arena, 3, stripes=3)
    return [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("C", three)]


@race("one batch twice, in opposite order", "A=LAST+LAST B=REPLAY+REPLAY", "A=REPLAY+REPLAY B=LAST+LAST")
def batches_of_same_parts(arena: Arena) -> list[Actor]:
    _, (one, two) = held(arena, 2)
    return [arena.succeeds("A", one, two), arena.succeeds("B", two, one)]


@race(
    "batches over two jobs, in opposite order",
    "A=LAST+LAST B=OK+OK", "A=OK+OK B=LAST+LAST",
)  # fmt: skip
def batches_of_two_jobs(arena: Arena) -> list[Actor]:
    arena.job(2, "one")
    one, two = arena.claims(2)
    arena.job(2, "two")
    three, four = arena.claims(2)
    return [arena.succeeds("A", one, three), arena.succeeds("B", four, two)]


# Closing.


@race("last completion and give up, going on", "A=LAST G=LATE", "A=CLOSED G=GAVE_UP")
def completion_and_give_up(arena: Arena) -> list[Actor]:
    job_id, (one,) = held(arena, 1, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    return [arena.succeeds("A", one), giver_up("G", job_id)]


@race("last completion and cancel", "A=LAST C=LATE", "A=CLOSED C=CANCELLED")
def completion_and_cancel(arena: Arena) -> list[Actor]:
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), canceller("C", job_id)]


@race(
    "a completion and cancel, a counter each",
    "A=OK C=CANCELLED", "A=CLOSED C=CANCELLED",
)  # fmt: skip
def completion_and_cancel_striped(arena: Arena) -> list[Actor]:
    job_id, (one, _) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), canceller("C", job_id)]


@race("cancel and give up", "C=CANCELLED G=LATE", "C=LATE G=GAVE_UP")
def cancel_and_give_up(arena: Arena) -> list[Actor]:
    job_id, _ = held(arena, 2, stripes=2, give_up_after=-1.0)
    return [canceller("C", job_id), giver_up("G", job_id)]


@race("a first failure and a completion, fail fast", "A=LAST B=OK", "A=LAST B=CLOSED")
def fail_fast(arena: Arena) -> list[Actor]:
    _, (one, two, _) = held(arena, 3, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("a first failure and a completion, fail fast, a counter each", "A=LAST B=OK", "A=LAST B=CLOSED", preemptions=2)
def fail_fast_striped(arena: Arena) -> list[Actor]:
    _, (one, two, _) = held(arena, 3, stripes=3, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("two failures, one tolerated, a counter each", "A=OK B=LAST", "A=LAST B=OK", preemptions=2)
def failures_to_the_tolerance(arena: Arena) -> list[Actor]:
    _, (one, two, *_) = held(arena, 4, stripes=2, policy=Policy(fail_fast=True, tolerate=1))
    return [arena.fails("A", one), arena.fails("B", two)]


@race("the failure over the tolerance and the last completion", "A=LAST B=OK", "A=LAST B=CLOSED")
def failure_and_completion_striped(arena: Arena) -> list[Actor]:
    _, (one, two, three, _) = held(arena, 4, stripes=2, policy=Policy(fail_fast=True, tolerate=1))
    arena.settled([Report(one, "fail")])
    return [arena.fails("A", two), arena.succeeds("B", three)]


@race("two successes, either makes the quorum", "A=LAST B=CLOSED", "A=CLOSED B=LAST", preemptions=2)
def quorum(arena: Arena) -> list[Actor]:
    _, (one, two, three, _) = held(arena, 4, stripes=2, policy=Policy(quorum=2))
    arena.settled([succeed(three)])
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


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


# Leases.


@race("an old holder and a new one", "Z=LAST W=NOTHING", "Z=LOST W=LAST", preemptions=2, always=4)
def reclaim(arena: Arena) -> list[Actor]:
    arena.job(1, successor=None)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("Z", claim), arena.reclaimer("W")]


@race("claim and claim of one part", "A=1 B=0", "A=0 B=1")
def claim_and_claim(arena: Arena) -> list[Actor]:
    arena.job(1)
    return [arena.claimer("A", 1), arena.claimer("B", 1)]


@race("claim and claim of three parts, two each", "A=2 B=1", "A=1 B=2")
def claim_and_claim_of_three(arena: Arena) -> list[Actor]:
    arena.job(3)
    return [arena.claimer("A", 2), arena.claimer("B", 2)]


@race("heartbeat and completion", "A=LAST H=HELD", "A=LAST H=LOST")
def heartbeat_and_completion(arena: Arena) -> list[Actor]:
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), renewer("H", one)]


@race("checkpoint and completion", "A=LAST K=SAVED", "A=LAST K=LOST")
def checkpoint_and_completion(arena: Arena) -> list[Actor]:
    _, (one,) = held(arena, 1)
    saving = said("K", lambda: lease.checkpoint(one, 600.0, "7"), "SAVED", "LOST")
    return [arena.succeeds("A", one), saving]


@race("heartbeat and a new claim", "H=HELD W=NOTHING", "H=LOST W=LAST", "H=HELD W=LAST", preemptions=2)
def heartbeat_and_reclaim(arena: Arena) -> list[Actor]:
    arena.job(1)
    (claim,) = arena.claims(1, LAPSED)
    return [renewer("H", claim), arena.reclaimer("W")]


@race("reap and completion", "A=LAST R=REAPED 0", "A=LOST R=REAPED 1", preemptions=2)
def reap_and_completion(arena: Arena) -> list[Actor]:
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [arena.succeeds("A", claim), reaper("R")]


@race("reap and reap", "R=REAPED 1 Q=REAPED 0", "R=REAPED 0 Q=REAPED 1", preemptions=2)
def reap_and_reap(arena: Arena) -> list[Actor]:
    arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    return [reaper("R"), reaper("Q")]


@race("reap and heartbeat", "R=REAPED 0 H=HELD", "R=REAPED 1 H=LOST")
def reap_and_heartbeat(arena: Arena) -> list[Actor]:
    arena.job(1, attempts=1)
    (claim,) = arena.claims(1, LAPSED)
    return [reaper("R"), renewer("H", claim)]


@race("reap and cancel", "R=REAPED 1 C=LATE", "R=REAPED 0 C=CANCELLED", preemptions=2)
def reap_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.job(1, attempts=1)
    arena.claims(1, LAPSED)
    return [reaper("R"), canceller("C", job_id)]


# Reports and the next claim in one transaction.


@race("two workers that exchange their last parts for the successor", "A=LAST/1 B=OK/0", "A=OK/0 B=LAST/1")
def exchange_and_exchange(arena: Arena) -> list[Actor]:
    _, (one, two) = held(arena, 2)
    return [arena.exchanger("A", one), arena.exchanger("B", two)]


@race(
    "two workers that exchange parts of two jobs for more of both",
    "A=OK+OK/2 B=OK+OK/0", "A=OK+OK/0 B=OK+OK/2", preemptions=3,
)  # fmt: skip
def exchange_of_two_jobs(arena: Arena) -> list[Actor]:
    arena.job(3, "one")
    one, two = arena.claims(2)
    arena.job(3, "two")
    # The first job's last part comes first in turn, so it is claimed here and given back.
    (back,) = arena.claims(1)
    three, four = arena.claims(2)
    arena.settled([Report(back, "release")])
    return [arena.exchanger("A", one, three), arena.exchanger("B", four, two)]


@race(
    "an exchange and a redrive of the parts that it could claim", "A=LAST/0 R=RUN 2", "A=LAST/1 R=RUN 2", preemptions=2
)
def exchange_and_redrive(arena: Arena) -> list[Actor]:
    other, (failing,) = held(arena, 1, name="other", successor=None)
    arena.settled([Report(failing, "fail")])
    _, (one,) = held(arena, 1, successor=None)
    return [arena.exchanger("A", one), redriver("R", other)]


@race("an exchange and the cancel of the job that it would claim from", "A=OK/1 C=CANCELLED", "A=CLOSED/0 C=CANCELLED")
def exchange_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.job(2)
    (one,) = arena.claims(1)
    return [arena.exchanger("A", one), canceller("C", job_id)]


@race("a redrive of one part and the sweep of it", "S=SWEPT 1 R=RUN 2", "S=SWEPT 1 R=REFUSED")
def sweep_and_redrive_of_one(arena: Arena) -> list[Actor]:
    job_id, _ = closed(arena)
    return [sweeper("S", job_id), redriver("R", job_id, chosen=[0])]


# Creating.


def creator(name: str, arena: Arena, parts: int, **options: Any) -> Actor:
    job = arena.new("twice", **options)
    return said(name, lambda: submit.create(job, parts, lambda: [["1"] * parts]), "NEW", "SAME")


@race("create and create with one key", "A=NEW B=SAME", "A=SAME B=NEW", preemptions=2)
def create_and_create(arena: Arena) -> list[Actor]:
    return [creator("A", arena, 2), creator("B", arena, 2)]


@race("create and create with one key and another content", "A=NEW B=CONFLICT", "A=CONFLICT B=NEW", preemptions=2)
def create_and_create_other(arena: Arena) -> list[Actor]:
    return [creator("A", arena, 2), creator("B", arena, 3, request_hash="other")]


def sealing(name: str, job_id: str, planned: int) -> Actor:
    return said(name, lambda: submit.seal(BUCKET, job_id, planned, None, False), "SEALED", "BEFORE")


def appending(name: str, job_id: str, first: int) -> Actor:
    return said(name, lambda: submit.append(BUCKET, job_id, first, ["1"]), "ADDED", "THERE")


def seal_what_is_open(arena: Arena) -> None:
    """The creator's next step, if the race refused its seal."""
    job_id = arena.new().id
    for count in (1, 2, 3):
        try:
            arena.store.run(partial(submit.seal, BUCKET, job_id, count, None, False))
            return
        except NotAllowedNow:
            continue


@race("append and seal", "N=ADDED L=REFUSED", "N=REFUSED L=SEALED", after=seal_what_is_open)
def append_and_seal(arena: Arena) -> list[Actor]:
    job_id = arena.open(1, stripes=2)
    return [appending("N", job_id, 1), sealing("L", job_id, 1)]


@race("append and append of one part", "N=ADDED M=THERE", "N=THERE M=ADDED", after=seal_what_is_open, preemptions=2)
def append_and_append(arena: Arena) -> list[Actor]:
    job_id = arena.open(1)
    return [appending("N", job_id, 1), appending("M", job_id, 1)]


@race("seal and seal", "L=SEALED M=BEFORE", "L=BEFORE M=SEALED")
def seal_and_seal(arena: Arena) -> list[Actor]:
    job_id = arena.open(2, stripes=2)
    return [sealing("L", job_id, 2), sealing("M", job_id, 2)]


@race("seal and the last completion", "A=LAST L=SEALED", "A=OK L=SEALED")
def seal_and_completion(arena: Arena) -> list[Actor]:
    job_id = arena.open(1)
    (claim,) = arena.claims(1)
    return [arena.succeeds("A", claim), sealing("L", job_id, 1)]


@race(
    "seal and two last completions, a counter each",
    "A=OK B=OK L=SEALED", "A=LAST B=OK L=SEALED", "A=OK B=LAST L=SEALED",
    preemptions=1, always=2,
)  # fmt: skip
def seal_and_completions(arena: Arena) -> list[Actor]:
    job_id = arena.open(2, stripes=2)
    one, two = arena.claims(2)
    return [arena.succeeds("A", one), arena.succeeds("B", two), sealing("L", job_id, 2)]


@race("append and cancel", "N=ADDED C=CANCELLED", "N=REFUSED C=CANCELLED")
def append_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.open(1)
    return [appending("N", job_id, 1), canceller("C", job_id)]


@race("seal and cancel", "L=SEALED C=CANCELLED", "L=BEFORE C=CANCELLED")
def seal_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.open(1, stripes=2)
    return [sealing("L", job_id, 1), canceller("C", job_id)]


@race("the seal of an empty job and cancel", "L=SEALED C=LATE", "L=BEFORE C=CANCELLED")
def seal_of_nothing_and_cancel(arena: Arena) -> list[Actor]:
    job_id = arena.open(0)
    return [sealing("L", job_id, 0), canceller("C", job_id)]
