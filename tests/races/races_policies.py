"""Races in which a policy ends the job before its last part: fail fast, a tolerance, a quorum."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, canceller, giver_up, reaper
from tests.races.scenarios import held, race, three
from tests.races.stage import LAPSED, succeed

FAST = Policy(fail_fast=True)


@race("a first failure and a completion, fail fast", "A=LAST B=OK", "A=LAST B=CLOSED", preemptions=2)
def fail_fast(arena: Arena) -> list[Actor]:
    """A part could be accepted after the failure has closed the job."""
    _, (one, two, _) = held(arena, 3, policy=FAST)
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("a first failure and a completion, fail fast, a counter each", "A=LAST B=OK", "A=LAST B=CLOSED", preemptions=2)
def fail_fast_striped(arena: Arena) -> list[Actor]:
    """The failure closes counters that others write at this moment: the counts of the end could miss one."""
    _, (one, two, _) = held(arena, 3, stripes=3, policy=FAST)
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("two failures, one tolerated, a counter each", "A=OK B=LAST", "A=LAST B=OK", preemptions=2)
def failures_to_the_tolerance(arena: Arena) -> list[Actor]:
    """Each failure alone is tolerated: together they are not, and neither could notice."""
    _, (one, two, *_) = held(arena, 4, stripes=2, policy=Policy(fail_fast=True, tolerate=1))
    return [arena.fails("A", one), arena.fails("B", two)]


@race("the failure over the tolerance and the last completion", "A=LAST B=OK", "A=LAST B=CLOSED", preemptions=2)
def failure_and_completion_striped(arena: Arena) -> list[Actor]:
    """The judge could read a sum in which the completion beside it is not yet, and write it as the final one."""
    _, (one, two, three, _) = held(arena, 4, stripes=2, policy=Policy(fail_fast=True, tolerate=1))
    arena.settled([Report(one, "fail")])
    return [arena.fails("A", two), arena.succeeds("B", three)]


@race("two successes, either makes the quorum", "A=LAST B=CLOSED", "A=CLOSED B=LAST", preemptions=1)
def quorum(arena: Arena) -> list[Actor]:
    """Both could make the quorum and end the job, or the count that was judged could still grow."""
    _, (one, two, three, _) = held(arena, 4, stripes=2, policy=Policy(quorum=2))
    arena.settled([succeed(three)])
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("the success that makes the quorum and cancel", "A=CLOSED C=CANCELLED", "A=LAST C=LATE", preemptions=2)
def quorum_and_cancel(arena: Arena) -> list[Actor]:
    """The quorum is seen under locks taken late: the job could be closed between the count and the locks."""
    job_id, (one, two, _) = held(arena, 3, stripes=2, policy=Policy(quorum=2))
    arena.settled([succeed(two)])
    return [arena.succeeds("A", one), canceller("C", job_id)]


@race(
    "the success that makes the quorum and the failure that makes it impossible",
    "A=LAST B=CLOSED",
    "A=LAST B=OK",
    preemptions=1,
)
def quorum_and_failure(arena: Arena) -> list[Actor]:
    """The job could end as a success and as a failure."""
    _, (one, two, three) = held(arena, 3, stripes=3, policy=Policy(quorum=2))
    arena.settled([succeed(three)])
    return [arena.succeeds("A", one), arena.fails("B", two)]


@race("a failure that closes the job and cancel", "A=CLOSED C=CANCELLED", "A=LAST C=LATE", preemptions=2)
def failure_and_cancel(arena: Arena) -> list[Actor]:
    """Two close the job, one of them with a part in its hands: both could end it, or wait for each other."""
    job_id, (one, *_) = held(arena, 3, stripes=2, policy=FAST)
    return [arena.fails("A", one), canceller("C", job_id)]


@race("a failure that closes the job and give up, going on", "A=CLOSED G=GAVE_UP", "A=LAST G=LATE", preemptions=2)
def failure_and_give_up(arena: Arena) -> list[Actor]:
    """A failed job must not have a successor, one that was given up may: it could get both ends."""
    rule = Policy(fail_fast=True, give_up="proceed")
    job_id, (one, *_) = held(arena, 3, stripes=2, policy=rule, give_up_after=-1.0)
    return [arena.fails("A", one), giver_up("G", job_id)]


@race(
    "a part that was lost for good and a completion, fail fast, a counter each",
    "R=REAPED 1 B=CLOSED",
    "R=REAPED 1 B=OK",
    preemptions=2,
)
def fail_fast_and_reap(arena: Arena) -> list[Actor]:
    """The reaper judges like a worker: it could close the job without the part that is counted beside it."""
    arena.job(3, stripes=3, attempts=1, policy=FAST)
    arena.claims(1, LAPSED)
    (two,) = arena.claims(1)
    return [reaper("R"), arena.succeeds("B", two)]


@race(
    "a last try that fails and a completion, fail fast, a counter each", "A=LAST B=CLOSED", "A=LAST B=OK", preemptions=2
)
def fail_fast_and_last_try(arena: Arena) -> list[Actor]:
    """A retry without an attempt left is a failure: the job could stay open, or close without the other's count."""
    arena.job(3, stripes=3, attempts=1, policy=FAST)
    one, two = arena.claims(2)
    return [arena.retries("A", one), arena.succeeds("B", two)]


@race(
    "failures in two jobs, in opposite order, fail fast",
    "A=CLOSED+CLOSED B=LAST+LAST",
    "A=LAST+LAST B=CLOSED+CLOSED",
    preemptions=1,
    always=3,
)
def failing_batches(arena: Arena) -> list[Actor]:
    """Judges lock all counters of a job: two that judge two jobs could lock them crosswise."""
    arena.job(3, "one", stripes=2, policy=FAST)
    one, two, _ = arena.claims(3)
    arena.job(3, "two", stripes=2, policy=FAST)
    three, four, _ = arena.claims(3)
    return [arena.fails("A", one, three), arena.fails("B", four, two)]


@three(
    "three failures, one tolerated, a counter each",
    "A=CLOSED B=LAST C=OK",
    "A=CLOSED B=OK C=LAST",
    "A=LAST B=CLOSED C=OK",
    "A=LAST B=OK C=CLOSED",
    "A=OK B=CLOSED C=LAST",
    "A=OK B=LAST C=CLOSED",
    always=1,
)
def three_failures(arena: Arena) -> list[Actor]:
    """The second failure must close the job and the third must be refused, whoever they are."""
    _, (one, two, three, *_) = held(arena, 6, stripes=3, policy=Policy(fail_fast=True, tolerate=1))
    return [arena.fails("A", one), arena.fails("B", two), arena.fails("C", three)]


@three(
    "a failure, a completion and cancel, fail fast, a counter each",
    "A=CLOSED B=CLOSED C=CANCELLED",
    "A=CLOSED B=OK C=CANCELLED",
    "A=LAST B=CLOSED C=LATE",
    "A=LAST B=OK C=LATE",
    always=1,
)
def failure_completion_and_cancel(arena: Arena) -> list[Actor]:
    """The completion waits for either of two who close: it could be accepted by a counter between them."""
    job_id, (one, two, _) = held(arena, 3, stripes=3, policy=FAST)
    return [arena.fails("A", one), arena.succeeds("B", two), canceller("C", job_id)]


@three(
    "three successes, any two make the quorum",
    "A=CLOSED B=LAST C=OK",
    "A=CLOSED B=OK C=LAST",
    "A=LAST B=CLOSED C=OK",
    "A=LAST B=OK C=CLOSED",
    "A=OK B=CLOSED C=LAST",
    "A=OK B=LAST C=CLOSED",
    always=1,
)
def quorum_of_three(arena: Arena) -> list[Actor]:
    """Two could make the quorum together without either noticing, or the third could be counted after the end."""
    _, (one, two, three) = held(arena, 3, stripes=3, policy=Policy(quorum=2))
    return [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("C", three)]
