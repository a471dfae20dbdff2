"""Races of parts that add parts to their own job, against each other and against everything that ends or opens it."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain.errors import LimitExceeded
from fanin.domain.identity import item_key
from fanin.domain.model import Claim
from fanin.domain.policy import Policy
from fanin.protocol import close, growth, submit
from fanin.testing.explorer import Actor
from fanin.testing.stepper import Script
from tests.races.arena import Arena, appending, canceller, redriver, sealer
from tests.races.scenarios import race, seal_what_is_open, three
from tests.races.stage import BUCKET, succeed


def wanted(payloads: str) -> tuple[tuple[str, str], ...]:
    """One part for each letter."""
    return tuple((item_key(payload), payload) for payload in payloads)


def adds(arena: Arena, name: str, claim: Claim, payloads: str) -> Actor:
    """A worker whose success adds parts."""
    return arena.reporter(name, [msgspec.structs.replace(succeed(claim), spawns=wanted(payloads))])


def adds_now(name: str, claim: Claim, payloads: str) -> Actor:
    """A handler that adds parts at once."""

    def script() -> Script:
        try:
            added = yield lambda: growth.spawn(claim, wanted(payloads))
        except LimitExceeded:
            return "FULL"
        return "LOST" if added is None else f"{added}"

    return Actor(name, script)


def growing(arena: Arena, parts: int = 2, width: int = 9, stripes: int = 2, **options: Any) -> tuple[str, list[Claim]]:
    job = arena.new(width=width, stripes=stripes, **options)
    payloads = [f"{n}" for n in range(parts)]
    arena.store.run(lambda: submit.create(job, parts, lambda: [payloads]))
    return job.id, arena.claims(parts)


def growing_open(arena: Arena) -> tuple[str, list[Claim]]:
    job = arena.new(width=9, stripes=2, give_up_after=3600.0)
    arena.store.run(lambda: submit.open_job(job))
    arena.store.run(lambda: submit.append_new(BUCKET, job.id, 0, wanted("0")))
    return job.id, arena.claims(1)


@race("spawns of the same parts in opposite order, on two counters", "A=OK B=OK", preemptions=2)
def the_same_twice(arena: Arena) -> list[Actor]:
    """A part could be made twice, or the two could wait for each other's keys."""
    _, (one, two) = growing(arena)
    return [adds(arena, "A", one, "ab"), adds(arena, "B", two, "ba")]


@race("spawns at once of the same parts in opposite order", "A=2 B=0", "A=0 B=2", preemptions=2)
def the_same_twice_at_once(arena: Arena) -> list[Actor]:
    """A part could be made twice, or the two could wait for each other's keys."""
    _, (one, two) = growing(arena)
    return [adds_now("A", one, "ab"), adds_now("B", two, "ba")]


@race("the last two parts, of which one spawns", "A=OK B=OK")
def spawn_and_last(arena: Arena) -> list[Actor]:
    """The other could think that it is the last, and end the job without what is being added."""
    _, (one, two) = growing(arena)
    return [adds(arena, "A", one, "a"), arena.succeeds("B", two)]


@race("a spawn at once and the last completion", "S=1 B=OK", preemptions=2)
def spawn_now_and_last(arena: Arena) -> list[Actor]:
    """A counter that has become empty could be filled again after it was taken off its job."""
    _, (one, two) = growing(arena)
    return [adds_now("S", one, "a"), arena.succeeds("B", two)]


@race("a spawn at once and the report of its own part", "S=1 A=OK", "S=LOST A=LAST", preemptions=2)
def spawn_now_and_own_end(arena: Arena) -> list[Actor]:
    """A part that has ended could add to a job that has ended."""
    _, (one,) = growing(arena, parts=1)
    return [adds_now("S", one, "a"), arena.succeeds("A", one)]


@race("a spawn and a cancel", "A=OK C=CANCELLED", "A=CLOSED C=CANCELLED")
def spawn_and_cancel(arena: Arena) -> list[Actor]:
    """Parts could be added to a closed job, where nobody abandons them."""
    job_id, (one, _) = growing(arena)
    return [adds(arena, "A", one, "ab"), canceller("C", job_id)]


@race("a spawn at once and a cancel", "S=2 C=CANCELLED", "S=LOST C=CANCELLED")
def spawn_now_and_cancel(arena: Arena) -> list[Actor]:
    """Parts could be added to a closed job, where nobody abandons them."""
    job_id, (one, _) = growing(arena)
    return [adds_now("S", one, "ab"), canceller("C", job_id)]


@race("a spawn and a failure that closes the job", "A=OK B=LAST", "A=CLOSED B=LAST", preemptions=2)
def spawn_and_failure(arena: Arena) -> list[Actor]:
    """The failure could be judged by a number of parts that is changing."""
    _, (one, two) = growing(arena, policy=Policy(fail_fast=True))
    return [adds(arena, "A", one, "ab"), arena.fails("B", two)]


@race("a spawn and the success that makes the quorum", "A=OK B=LAST", "A=LAST B=OK", preemptions=2)
def spawn_and_quorum(arena: Arena) -> list[Actor]:
    """Both could make the quorum, or neither."""
    _, (one, two) = growing(arena, policy=Policy(quorum=2))
    return [adds(arena, "A", one, "ab"), arena.succeeds("B", two)]


@race("a spawn and a failure that is too much of what there is, not of what may come", "A=OK B=OK", preemptions=2)
def spawn_and_failure_of_a_share(arena: Arena) -> list[Actor]:
    """The failure could be judged as if the other part added nothing."""
    _, (one, two) = growing(arena, policy=Policy(fail_fast=True, tolerate_percent=25.0))
    return [adds(arena, "A", one, "ab"), arena.fails("B", two)]


@race("a spawn at once and a failure without which the quorum is not there yet", "S=3 B=OK", preemptions=2)
def spawn_now_and_no_quorum(arena: Arena) -> list[Actor]:
    """The quorum could be given up, of which the parts that are being added are a part."""
    _, (one, two) = growing(arena, policy=Policy(quorum=4))
    return [adds_now("S", one, "abc"), arena.fails("B", two)]


@race(
    "two failures, and a spawn without room for the quorum",
    "A=OK B=OK C=LAST",
    "A=CLOSED B=OK C=LAST",
    "A=OK B=LAST C=OK",
    "A=CLOSED B=LAST C=OK",
    preemptions=2,
)
def no_room_for_the_quorum(arena: Arena) -> list[Actor]:
    """Neither failure alone says that a job of full width has no quorum: both could think so, or none."""
    _, (one, two, three) = growing(arena, parts=3, width=5, policy=Policy(quorum=4))
    return [adds(arena, "A", one, "ab"), arena.fails("B", two), arena.fails("C", three)]


@race("two spawns, and room for one", "A=OK B=OK", preemptions=2)
def room_for_one(arena: Arena) -> list[Actor]:
    """The job could come to have more parts than it may, since neither sees the other's."""
    _, (one, two) = growing(arena, width=4)
    return [adds(arena, "A", one, "ab"), adds(arena, "B", two, "cd")]


@race("two spawns at once, and room for one", "A=2 B=FULL", "A=FULL B=2", preemptions=2)
def room_for_one_at_once(arena: Arena) -> list[Actor]:
    """The job could come to have more parts than it may, since neither sees the other's."""
    _, (one, two) = growing(arena, width=4)
    return [adds_now("A", one, "ab"), adds_now("B", two, "cd")]


@race("a spawn and the seal of its open job", "A=OK L=SEALED", after=seal_what_is_open, preemptions=2)
def spawn_and_seal(arena: Arena) -> list[Actor]:
    """The seal could begin the countdown without what is being added, or compare it with what was planned."""
    job_id, (one,) = growing_open(arena)
    return [adds(arena, "A", one, "ab"), sealer("L", job_id, 1)]


@race(
    "a spawn and an append of the same part", "A=OK N=ADDED 1", "A=OK N=ADDED 2", after=seal_what_is_open, preemptions=2
)
def spawn_and_append(arena: Arena) -> list[Actor]:
    """Producer and part could wait for each other's keys, or make one part twice."""
    job_id, (one,) = growing_open(arena)
    return [adds(arena, "A", one, "ab"), appending("N", job_id, 1, wanted("bc"))]


@race("an append to a growing job and its seal", "N=ADDED 1 L=REFUSED", "N=REFUSED L=SEALED", after=seal_what_is_open)
def append_new_and_seal(arena: Arena) -> list[Actor]:
    """A part could be added to a sealed job, which then ends without it."""
    job_id, _ = growing_open(arena)
    return [appending("N", job_id, 1, wanted("a")), sealer("L", job_id, 1)]


@race("two appends of the same chunk", "N=ADDED 2 M=ADDED 2", after=seal_what_is_open, preemptions=2)
def append_new_twice(arena: Arena) -> list[Actor]:
    """A chunk that is said again while it is being written could be made twice."""
    job_id, _ = growing_open(arena)
    return [appending(name, job_id, 1, wanted("ab")) for name in "NM"]


@race("a spawn and a redrive of its closed job", "A=CLOSED R=RUN 2", "A=OK R=RUN 2", preemptions=2)
def spawn_and_redrive(arena: Arena) -> list[Actor]:
    """What is added could be counted in a run that has ended, or not at all."""
    job_id, (one, two) = growing(arena)
    arena.settled([msgspec.structs.replace(succeed(two), verb="fail", result=None, error="{}")])
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [adds(arena, "A", one, "ab"), redriver("R", job_id)]


@three(
    "two spawns and a cancel",
    "A=CLOSED S=2 C=CANCELLED",
    "A=CLOSED S=LOST C=CANCELLED",
    "A=OK S=0 C=CANCELLED",
    "A=OK S=2 C=CANCELLED",
    "A=OK S=LOST C=CANCELLED",
    always=1,
)
def two_spawns_and_cancel(arena: Arena) -> list[Actor]:
    """Of three that count the same stripes, one could count on what another is closing."""
    job_id, (one, two) = growing(arena)
    return [adds(arena, "A", one, "ab"), adds_now("S", two, "ba"), canceller("C", job_id)]
