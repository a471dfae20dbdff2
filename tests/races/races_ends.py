"""Races for the end of a run: completions against each other and against those who close the job."""

from __future__ import annotations

from fanin.domain import identity
from fanin.domain.policy import Policy
from fanin.testing.explorer import Actor
from fanin.testing.state import execute
from tests.races.arena import Arena, canceller, giver_up, teller
from tests.races.scenarios import held, race, three
from tests.races.stage import LAPSED, succeed

# Completions.


@race("two last parts, one counter", "A=LAST B=OK", "A=OK B=LAST")
def last_two(arena: Arena) -> list[Actor]:
    """Each could count without seeing the other: nobody ends the job, or both do."""
    _, (one, two) = held(arena, 2)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("two last parts, a counter each", "A=LAST B=OK", "A=OK B=LAST")
def last_two_striped(arena: Arena) -> list[Actor]:
    """Each empties a counter of its own and could believe that the other's still has parts."""
    _, (one, two) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("the last part twice, by one attempt", "A=LAST B=REPLAY", "A=REPLAY B=LAST")
def said_twice(arena: Arena) -> list[Actor]:
    """A report sent again beside the first, whose answer was lost, could be counted twice."""
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), arena.succeeds("B", one)]


@race("success and failure of one attempt", "A=LAST B=CONFLICT", "A=LOST B=LAST")
def success_and_failure(arena: Arena) -> list[Actor]:
    """One part could stand in both counters, or its result could be replaced."""
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), arena.fails("B", one)]


@race(
    "three last parts, one counter", "A=LAST B=OK C=OK", "A=OK B=LAST C=OK", "A=OK B=OK C=LAST", preemptions=1, always=2
)
def last_three(arena: Arena) -> list[Actor]:
    """Two wait for one counter: the second of them could go on from the number that the first has replaced."""
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
    """Three empty counters meet at the job row: the number of open ones could be lowered twice from one value."""
    _, (one, two, three) = held(arena, 3, stripes=3)
    return [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("C", three)]


@race("one batch twice, in opposite order", "A=LAST+LAST B=REPLAY+REPLAY", "A=REPLAY+REPLAY B=LAST+LAST")
def batches_of_same_parts(arena: Arena) -> list[Actor]:
    """Each could lock a part that the other wants next: a deadlock."""
    _, (one, two) = held(arena, 2)
    return [arena.succeeds("A", one, two), arena.succeeds("B", two, one)]


@race("batches over two jobs, in opposite order", "A=LAST+LAST B=OK+OK", "A=OK+OK B=LAST+LAST")
def batches_of_two_jobs(arena: Arena) -> list[Actor]:
    """Each could lock the counter of a job that the other wants next: a deadlock."""
    arena.job(2, "one")
    one, two = arena.claims(2)
    arena.job(2, "two")
    three, four = arena.claims(2)
    return [arena.succeeds("A", one, three), arena.succeeds("B", four, two)]


@race(
    "batches that share a part",
    "A=OK+OK B=REPLAY+LAST",
    "A=REPLAY+LAST B=OK+OK",
    preemptions=2,
)
def batches_that_overlap(arena: Arena) -> list[Actor]:
    """The shared part could be counted by both, and the job could end before its last part."""
    _, (one, two, three) = held(arena, 3, stripes=2)
    return [arena.succeeds("A", two, one), arena.succeeds("B", two, three)]


@race("the end of a job and the claim of its successor", "A=LAST W=1", "A=LAST W=0", preemptions=2)
def end_and_claim_of_successor(arena: Arena) -> list[Actor]:
    """The successor could run before the end that created it is committed."""
    _, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), arena.claimer("W", 1)]


@race("the end of a job and the cancel of its successor", "A=LAST C=UNKNOWN", "A=LAST C=CANCELLED", preemptions=2)
def end_and_cancel_of_successor(arena: Arena) -> list[Actor]:
    """The successor could be closed while half of it is written."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), canceller("C", identity.successor_id(job_id, "then", 1))]


# Closing.


@race("last completion and give up, going on", "A=LAST G=LATE", "A=CLOSED G=GAVE_UP", preemptions=2)
def completion_and_give_up(arena: Arena) -> list[Actor]:
    """Both could end the run, and it would have two successors."""
    job_id, (one,) = held(arena, 1, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    return [arena.succeeds("A", one), giver_up("G", job_id)]


@race("last completion and cancel", "A=LAST C=LATE", "A=CLOSED C=CANCELLED")
def completion_and_cancel(arena: Arena) -> list[Actor]:
    """A completed job could turn cancelled, or a cancelled one could create its successor."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), canceller("C", job_id)]


@race("a completion and cancel, a counter each", "A=OK C=CANCELLED", "A=CLOSED C=CANCELLED")
def completion_and_cancel_striped(arena: Arena) -> list[Actor]:
    """The counts of the end could miss a part that was accepted."""
    job_id, (one, _) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), canceller("C", job_id)]


@race("cancel and give up", "C=CANCELLED G=LATE", "C=LATE G=GAVE_UP")
def cancel_and_give_up(arena: Arena) -> list[Actor]:
    """Two who close lock several counters each: both could end the run, or wait for each other for ever."""
    job_id, _ = held(arena, 2, stripes=2, give_up_after=-1.0)
    return [canceller("C", job_id), giver_up("G", job_id)]


@race("cancel and cancel", "C=CANCELLED D=LATE", "C=LATE D=CANCELLED")
def cancel_and_cancel(arena: Arena) -> list[Actor]:
    """Both could be told that they ended the job, with two events."""
    job_id, _ = held(arena, 2, stripes=2)
    return [canceller("C", job_id), canceller("D", job_id)]


@race("give up and give up, going on", "G=GAVE_UP H=LATE", "G=LATE H=GAVE_UP")
def give_up_and_give_up(arena: Arena) -> list[Actor]:
    """Every worker minds the deadlines: two of them could create the successor twice."""
    job_id, _ = held(arena, 2, stripes=2, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    return [giver_up("G", job_id), giver_up("H", job_id)]


@race("cancel and a batch over two jobs", "A=LAST+LAST C=LATE", "A=LAST+CLOSED C=CANCELLED", preemptions=3)
def cancel_and_batch_of_two_jobs(arena: Arena) -> list[Actor]:
    """A batch that finds one of its jobs closed is begun again: the other job's part could be lost or doubled by it."""
    arena.job(1, "one")
    (one,) = arena.claims(1)
    two_id = arena.job(1, "two")
    (two,) = arena.claims(1, LAPSED)
    return [arena.succeeds("A", one, two), canceller("C", two_id)]


@three("last completion, cancel and give up", "A=LAST C=LATE G=LATE", "A=CLOSED C=CANCELLED G=LATE",
      "A=CLOSED C=LATE G=GAVE_UP", always=1)  # fmt: skip
def completion_cancel_and_give_up(arena: Arena) -> list[Actor]:
    """Three ways to end one run: exactly one of them may."""
    job_id, (one,) = held(arena, 1, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    return [arena.succeeds("A", one), canceller("C", job_id), giver_up("G", job_id)]


@three(
    "two last parts, a counter each, and cancel",
    "A=CLOSED B=CLOSED C=CANCELLED",
    "A=CLOSED B=OK C=CANCELLED",
    "A=LAST B=OK C=LATE",
    "A=OK B=CLOSED C=CANCELLED",
    "A=OK B=LAST C=LATE",
)
def completions_and_cancel(arena: Arena) -> list[Actor]:
    """Whoever empties the second counter could meet a job that was closed after the first."""
    job_id, (one, two) = held(arena, 2, stripes=2)
    return [arena.succeeds("A", one), arena.succeeds("B", two), canceller("C", job_id)]


@three(
    "two last parts, one counter, and give up",
    "A=CLOSED B=CLOSED G=GAVE_UP",
    "A=CLOSED B=OK G=GAVE_UP",
    "A=LAST B=OK G=LATE",
    "A=OK B=CLOSED G=GAVE_UP",
    "A=OK B=LAST G=LATE",
    always=1,
)
def completions_and_give_up(arena: Arena) -> list[Actor]:
    """The give-up waits behind one completion and before the other: its counts could be older than its lock."""
    job_id, (one, two) = held(arena, 2, give_up_after=-1.0, policy=Policy(give_up="proceed"))
    return [arena.succeeds("A", one), arena.succeeds("B", two), giver_up("G", job_id)]


@three(
    "the last part twice, by one attempt, and cancel",
    "A=CLOSED B=CLOSED C=CANCELLED",
    "A=LAST B=REPLAY C=LATE",
    "A=REPLAY B=LAST C=LATE",
    always=1,
)
def said_twice_and_cancel(arena: Arena) -> list[Actor]:
    """The repeat could be told that the job was closed, although its report stands."""
    job_id, (one,) = held(arena, 1)
    return [arena.succeeds("A", one), arena.succeeds("B", one), canceller("C", job_id)]


@three(
    "a batch over two jobs and the cancel of each",
    "A=CLOSED+CLOSED C=CANCELLED D=CANCELLED",
    "A=CLOSED+LAST C=CANCELLED D=LATE",
    "A=LAST+CLOSED C=LATE D=CANCELLED",
    "A=LAST+LAST C=LATE D=LATE",
    always=1,
)
def batch_and_cancel_of_both(arena: Arena) -> list[Actor]:
    """The batch is begun again for each closed job: it could forget which one it had found before."""
    one_id = arena.job(1, "one")
    (one,) = arena.claims(1)
    two_id = arena.job(1, "two")
    (two,) = arena.claims(1)
    return [arena.succeeds("A", one, two), canceller("C", one_id), canceller("D", two_id)]


# What is told beside the end.


@race("the last part and its failure, and the progress that is due", "A=LAST+LAST B=TOLD", "A=LAST+LAST B=NOTHING")
def told_at_the_end(arena: Arena) -> list[Actor]:
    """Both take the next place in the order of the job's events: two could take one, or one be told after the end."""
    job_id, (one, two, three) = held(
        arena, 3, progress_every=1e-9, failure_events=True, policy=Policy(tolerate=9, fail_fast=False)
    )
    arena.settled([succeed(one)])
    return [arena.fails("A", two, three), teller("B", job_id)]


@race("two workers, one moment to tell", "A=TOLD B=NOTHING", "A=NOTHING B=TOLD")
def one_moment(arena: Arena) -> list[Actor]:
    """Each sees that the moment is over: the same could be told twice."""
    job_id, (one, _) = held(arena, 2, progress_every=60.0)
    arena.settled([succeed(one)])
    execute(arena.store, "UPDATE fanin.job SET progress_at = 1")
    return [teller("A", job_id), teller("B", job_id)]


@race("told failures of two jobs, in opposite order", "A=OK+OK B=LAST+LAST", "A=LAST+LAST B=OK+OK", preemptions=1)
def told_failures_of_two_jobs(arena: Arena) -> list[Actor]:
    """Each could take the order of events of one job and want that of the other: a deadlock."""
    arena.job(2, "one", failure_events=True, policy=Policy(tolerate=9, fail_fast=False))
    one, two = arena.claims(2)
    arena.job(2, "two", failure_events=True, policy=Policy(tolerate=9, fail_fast=False))
    three, four = arena.claims(2)
    return [arena.fails("A", one, three), arena.fails("B", four, two)]
