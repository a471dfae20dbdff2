"""Races for a part: claims, heartbeats, the reaper, and workers that report and claim in one transaction."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.protocol import lease
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, canceller, reaper, redriver, renewer, said, sweeper
from tests.races.scenarios import closed, held, race
from tests.races.stage import LAPSED

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


@race("heartbeat and a new claim", "H=HELD W=NOTHING", "H=LOST W=LAST", preemptions=2)
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
    "an exchange and a redrive of the parts that it could claim",
    "A=LAST/0 R=RUN 2",
    "A=LAST/1 R=RUN 2",
    preemptions=2,
    always=3,
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
