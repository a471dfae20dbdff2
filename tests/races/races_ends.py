"""Races for the end of a run: completions against each other and against those who close the job."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, canceller, giver_up
from tests.races.scenarios import held, race
from tests.races.stage import succeed

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
