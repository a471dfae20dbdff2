"""Races of those who create a job, add to it and seal it, against each other and against its workers and its end."""

from __future__ import annotations

from fanin.domain.policy import Policy
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, appender, canceller, creator, giver_up, opener, redriver, sealer
from tests.races.scenarios import race, seal_what_is_open, three

# Creating.


@race("create and create with one key", "A=NEW B=SAME", "A=SAME B=NEW", preemptions=2)
def create_and_create(arena: Arena) -> list[Actor]:
    """One request could become two jobs, or one job with twice its parts."""
    return [creator("A", arena.new(), 2), creator("B", arena.new(), 2)]


@race("create and create with one key and another content", "A=NEW B=CONFLICT", "A=CONFLICT B=NEW", preemptions=2)
def create_and_create_other(arena: Arena) -> list[Actor]:
    """Another content could be taken for the same request, and its parts would never run."""
    return [creator("A", arena.new(), 2), creator("B", arena.new(request_hash="other"), 3)]


@race("create and create of a job without parts", "A=NEW B=SAME", "A=SAME B=NEW", preemptions=2)
def create_nothing_twice(arena: Arena) -> list[Actor]:
    """An empty job ends where it is created: it could end twice, with two successors."""
    return [creator("A", arena.new(), 0), creator("B", arena.new(), 0)]


@three(
    "create, create and create with one key",
    "A=NEW B=SAME C=SAME",
    "A=SAME B=NEW C=SAME",
    "A=SAME B=SAME C=NEW",
    always=1,
)
def create_three_times(arena: Arena) -> list[Actor]:
    """Two wait for one insertion: both could think that it failed."""
    return [creator(name, arena.new(), 2) for name in "ABC"]


@race("open and open with one key", "A=NEW B=SAME", "A=SAME B=NEW", after=seal_what_is_open, preemptions=2)
def open_and_open(arena: Arena) -> list[Actor]:
    """Two streams of one key could get counters of their own, and the parts would be counted on either."""
    return [opener(name, arena.new(stripes=2, give_up_after=3600.0)) for name in "AB"]


@race("open and create with one key", "A=NEW B=REFUSED", "A=SAME B=NEW", after=seal_what_is_open, preemptions=2)
def open_and_create(arena: Arena) -> list[Actor]:
    """A stream and a whole job of one key could both be begun."""
    return [opener("A", arena.new(give_up_after=3600.0)), creator("B", arena.new(), 2)]


@race("create and claim", "A=NEW W=2", "A=NEW W=0")
def create_and_claim(arena: Arena) -> list[Actor]:
    """A worker could claim parts of a job that is only half created."""
    return [creator("A", arena.new(), 2), arena.claimer("W", 2)]


@race("create and cancel", "A=NEW C=UNKNOWN", "A=NEW C=CANCELLED", preemptions=2)
def create_and_cancel(arena: Arena) -> list[Actor]:
    """The cancel could close the counters that exist and miss those that are still to come."""
    job = arena.new(stripes=2)
    return [creator("A", job, 2), canceller("C", job.id)]


# Adding and sealing.


@race("append and seal", "N=ADDED L=REFUSED", "N=REFUSED L=SEALED", after=seal_what_is_open, preemptions=2)
def append_and_seal(arena: Arena) -> list[Actor]:
    """A part could be added to a sealed job, which then ends without it."""
    job_id = arena.open(1, stripes=2)
    return [appender("N", job_id, 1), sealer("L", job_id, 1)]


@race("append and append of one part", "N=ADDED M=THERE", "N=THERE M=ADDED", after=seal_what_is_open, preemptions=2)
def append_and_append(arena: Arena) -> list[Actor]:
    """A chunk that is sent again could be counted twice, and the job would wait for parts that do not exist."""
    job_id = arena.open(1)
    return [appender("N", job_id, 1), appender("M", job_id, 1)]


@race("appends that overlap, on two counters", "N=ADDED M=ADDED", preemptions=2, after=seal_what_is_open)
def appends_that_overlap(arena: Arena) -> list[Actor]:
    """Each inserts some of the parts and counts them on the same counters: they could wait for each other."""
    job_id = arena.open(0, stripes=2)
    return [appender("N", job_id, 0, 2), appender("M", job_id, 1, 2)]


@race("append and a completion on one counter", "N=ADDED A=OK", after=seal_what_is_open)
def append_and_completion(arena: Arena) -> list[Actor]:
    """One raises the counter that the other lowers: a step could be lost."""
    job_id = arena.open(1)
    (one,) = arena.claims(1)
    return [appender("N", job_id, 1), arena.succeeds("A", one)]


@race("append and claim", "N=ADDED W=1", "N=ADDED W=0", after=seal_what_is_open)
def append_and_claim(arena: Arena) -> list[Actor]:
    """A part could run before it is counted, and would be counted down below zero."""
    job_id = arena.open(0)
    return [appender("N", job_id, 0), arena.claimer("W", 1)]


@race("seal and seal", "L=SEALED M=BEFORE", "L=BEFORE M=SEALED")
def seal_and_seal(arena: Arena) -> list[Actor]:
    """The countdown could be begun twice, and the second one would count parts that have ended."""
    job_id = arena.open(2, stripes=2)
    return [sealer("L", job_id, 2), sealer("M", job_id, 2)]


@race("seal and the last completion", "A=LAST L=SEALED", "A=OK L=SEALED")
def seal_and_completion(arena: Arena) -> list[Actor]:
    """Each could leave the end to the other, or both could end the job."""
    job_id = arena.open(1)
    (claim,) = arena.claims(1)
    return [arena.succeeds("A", claim), sealer("L", job_id, 1)]


@race(
    "seal and two last completions, a counter each",
    "A=OK B=OK L=SEALED",
    "A=LAST B=OK L=SEALED",
    "A=OK B=LAST L=SEALED",
    preemptions=1,
    always=2,
)
def seal_and_completions(arena: Arena) -> list[Actor]:
    """One completion comes before the seal and one after it: the countdown could begin with a wrong number."""
    job_id = arena.open(2, stripes=2)
    one, two = arena.claims(2)
    return [arena.succeeds("A", one), arena.succeeds("B", two), sealer("L", job_id, 2)]


@race("append and cancel", "N=ADDED C=CANCELLED", "N=REFUSED C=CANCELLED", preemptions=2)
def append_and_cancel(arena: Arena) -> list[Actor]:
    """A part could be added to a closed job, and nobody would ever sweep it."""
    job_id = arena.open(1)
    return [appender("N", job_id, 1), canceller("C", job_id)]


@race("append and give up", "N=ADDED G=GAVE_UP", "N=REFUSED G=GAVE_UP", preemptions=2)
def append_and_give_up(arena: Arena) -> list[Actor]:
    """The counts of the end could miss a part that was added beside it."""
    job_id = arena.open(1, stripes=2, give_up_after=-1.0)
    return [appender("N", job_id, 1), giver_up("G", job_id)]


@race("seal and cancel", "L=SEALED C=CANCELLED", "L=BEFORE C=CANCELLED")
def seal_and_cancel(arena: Arena) -> list[Actor]:
    """A cancelled job could be started by its seal."""
    job_id = arena.open(1, stripes=2)
    return [sealer("L", job_id, 1), canceller("C", job_id)]


@race("the seal of an empty job and cancel", "L=SEALED C=LATE", "L=BEFORE C=CANCELLED")
def seal_of_nothing_and_cancel(arena: Arena) -> list[Actor]:
    """An empty job ends with its seal: it could be ended by both."""
    job_id = arena.open(0)
    return [sealer("L", job_id, 0), canceller("C", job_id)]


@race("the seal of a job whose creator came too late, and give up", "L=SEALED G=LATE", "L=BEFORE G=GAVE_UP")
def seal_and_give_up(arena: Arena) -> list[Actor]:
    """The seal lifts the creator's deadline: the timer that has seen it could still end the job."""
    job_id = arena.open(1, stripes=2, give_up_after=-1.0)
    return [sealer("L", job_id, 1), giver_up("G", job_id)]


@race("a seal that keeps the deadline, and give up", "L=SEALED G=GAVE_UP", "L=BEFORE G=GAVE_UP")
def seal_and_kept_deadline(arena: Arena) -> list[Actor]:
    """The job ends open or running: its counts and its seal could disagree."""
    job_id = arena.open(1, stripes=2, give_up_after=-1.0)
    return [sealer("L", job_id, 1, keep=True), giver_up("G", job_id)]


@race("seal and a failure that closes the job, fail fast", "A=LAST L=BEFORE", "A=LAST L=SEALED", preemptions=3)
def seal_and_failure(arena: Arena) -> list[Actor]:
    """A failure may close an open job: the seal could start it again."""
    job_id = arena.open(2, stripes=2, policy=Policy(fail_fast=True))
    one, _ = arena.claims(2)
    return [arena.fails("A", one), sealer("L", job_id, 2)]


@race("append and a failure that closes the job, fail fast", "A=LAST N=ADDED", "A=LAST N=REFUSED", preemptions=2)
def append_and_failure(arena: Arena) -> list[Actor]:
    """A part could be added to the job that the failure closes."""
    job_id = arena.open(2, stripes=2, policy=Policy(fail_fast=True))
    one, _ = arena.claims(2)
    return [arena.fails("A", one), appender("N", job_id, 2)]


@race("seal and the success that makes the quorum", "A=LAST L=BEFORE", "A=LAST L=SEALED", preemptions=2)
def seal_and_quorum(arena: Arena) -> list[Actor]:
    """The quorum may end an open job: the seal could begin a countdown for a job that has ended."""
    job_id = arena.open(2, stripes=2, policy=Policy(quorum=1))
    one, _ = arena.claims(2)
    return [arena.succeeds("A", one), sealer("L", job_id, 2)]


# Three parties: those who create, those who work, those who close.


@three(
    "append, seal and cancel",
    "N=ADDED L=BEFORE C=CANCELLED",
    "N=ADDED L=REFUSED C=CANCELLED",
    "N=REFUSED L=BEFORE C=CANCELLED",
    "N=REFUSED L=SEALED C=CANCELLED",
    after=seal_what_is_open,
    always=1,
)
def append_seal_and_cancel(arena: Arena) -> list[Actor]:
    """The append could be counted by a counter that is between its seal and its close."""
    job_id = arena.open(1, stripes=2)
    return [appender("N", job_id, 1), sealer("L", job_id, 1), canceller("C", job_id)]


@three(
    "append, seal and the last completion",
    "N=ADDED L=REFUSED A=OK",
    "N=REFUSED L=SEALED A=LAST",
    "N=REFUSED L=SEALED A=OK",
    after=seal_what_is_open,
)
def append_seal_and_completion(arena: Arena) -> list[Actor]:
    """The job could end by the completion, although the appended part was accepted."""
    job_id = arena.open(1)
    (one,) = arena.claims(1)
    return [appender("N", job_id, 1), sealer("L", job_id, 1), arena.succeeds("A", one)]


@three(
    "append, seal and give up",
    "N=ADDED L=BEFORE G=GAVE_UP",
    "N=ADDED L=REFUSED G=GAVE_UP",
    "N=REFUSED L=BEFORE G=GAVE_UP",
    "N=REFUSED L=SEALED G=LATE",
    after=seal_what_is_open,
    always=1,
)
def append_seal_and_give_up(arena: Arena) -> list[Actor]:
    """The timer could end a job that has just been sealed in time, or count what was refused."""
    job_id = arena.open(1, stripes=2, give_up_after=-1.0)
    return [appender("N", job_id, 1), sealer("L", job_id, 1), giver_up("G", job_id)]


@three(
    "seal, cancel and the last completion",
    "L=BEFORE C=CANCELLED A=CLOSED",
    "L=BEFORE C=CANCELLED A=OK",
    "L=SEALED C=CANCELLED A=CLOSED",
    "L=SEALED C=LATE A=LAST",
    "L=SEALED C=LATE A=OK",
    always=1,
)
def seal_cancel_and_completion(arena: Arena) -> list[Actor]:
    """Three could end the job: the seal that finds nothing live, the completion after it, the cancel."""
    job_id = arena.open(1)
    (one,) = arena.claims(1)
    return [sealer("L", job_id, 1), canceller("C", job_id), arena.succeeds("A", one)]


@three(
    "seal, seal and the last completion",
    "L=BEFORE M=SEALED A=LAST",
    "L=BEFORE M=SEALED A=OK",
    "L=SEALED M=BEFORE A=LAST",
    "L=SEALED M=BEFORE A=OK",
)
def seal_seal_and_completion(arena: Arena) -> list[Actor]:
    """The second seal could count from the state before the completion."""
    job_id = arena.open(1)
    (one,) = arena.claims(1)
    return [sealer("L", job_id, 1), sealer("M", job_id, 1), arena.succeeds("A", one)]


@three(
    "append, cancel and redrive",
    "N=ADDED C=CANCELLED R=REFUSED",
    "N=ADDED C=CANCELLED R=RUN 2",
    "N=REFUSED C=CANCELLED R=REFUSED",
    "N=REFUSED C=CANCELLED R=RUN 2",
    after=seal_what_is_open,
)
def append_cancel_and_redrive(arena: Arena) -> list[Actor]:
    """The redrive opens the counters again: an append that began before the cancel could slip into the new run."""
    job_id = arena.open(1)
    return [appender("N", job_id, 1), canceller("C", job_id), redriver("R", job_id)]


@three(
    "seal, cancel and redrive",
    "L=BEFORE C=CANCELLED R=REFUSED",
    "L=BEFORE C=CANCELLED R=RUN 2",
    "L=SEALED C=CANCELLED R=REFUSED",
    "L=SEALED C=CANCELLED R=RUN 2",
    after=seal_what_is_open,
    always=1,
)
def seal_cancel_and_redrive(arena: Arena) -> list[Actor]:
    """A seal that began before the cancel could seal the next run, and begin its countdown again."""
    job_id = arena.open(1)
    return [sealer("L", job_id, 1), canceller("C", job_id), redriver("R", job_id)]
