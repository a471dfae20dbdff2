"""Races of workers that report and claim in one transaction."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.protocol import close
from fanin.testing.explorer import Actor
from tests.races.arena import Arena, appender, canceller, creator, giver_up, reaper, redriver, sealer, sweeper
from tests.races.scenarios import held, race, seal_what_is_open, three
from tests.races.stage import BUCKET, LAPSED, succeed


@race("two workers that exchange their last parts for the successor", "A=LAST/1 B=OK/0", "A=OK/0 B=LAST/1")
def exchange_and_exchange(arena: Arena) -> list[Actor]:
    """The successor is created and claimed in one transaction: the other could claim it too."""
    _, (one, two) = held(arena, 2)
    return [arena.exchanger("A", one), arena.exchanger("B", two)]


@race("two workers that exchange parts of two jobs for more of both", "A=OK+OK/2 B=OK+OK/0", "A=OK+OK/0 B=OK+OK/2",
      preemptions=3)  # fmt: skip
def exchange_of_two_jobs(arena: Arena) -> list[Actor]:
    """Each holds the counters of both jobs and claims from both: they could lock crosswise."""
    arena.job(3, "one")
    one, two = arena.claims(2)
    arena.job(3, "two")
    # The first job's last part comes first in turn, so it is claimed here and given back.
    (back,) = arena.claims(1)
    three, four = arena.claims(2)
    arena.settled([Report(back, "release")])
    return [arena.exchanger("A", one, three), arena.exchanger("B", four, two)]


@race(
    "two workers that exchange the last parts of two jobs, in opposite order",
    "A=LAST+LAST/2 B=OK+OK/0",
    "A=OK+OK/0 B=LAST+LAST/2",
    preemptions=2,
    always=3,
)
def exchange_of_last_parts(arena: Arena) -> list[Actor]:
    """One ends both jobs while it holds the counters of both: the other could wait for it in a circle."""
    arena.job(2, "one", stripes=2)
    one, two = arena.claims(2)
    arena.job(2, "two", stripes=2)
    three, four = arena.claims(2)
    return [arena.exchanger("A", one, four), arena.exchanger("B", three, two)]


@race(
    "an exchange that is said twice",
    "A=LAST+LAST/1 B=REPLAY+REPLAY/0",
    "A=REPLAY+REPLAY/0 B=LAST+LAST/1",
    preemptions=2,
)
def exchange_twice(arena: Arena) -> list[Actor]:
    """The answer was lost, and it is said again: its reports could count twice, its claim could be made twice."""
    _, (one, two) = held(arena, 2, successor=None)
    arena.job(1, "more", successor=None)
    return [arena.exchanger("A", one, two), arena.exchanger("B", one, two)]


@race("an exchange and a redrive of the parts that it could claim", "A=LAST/0 R=RUN 2", "A=LAST/1 R=RUN 2",
      preemptions=2, always=3)  # fmt: skip
def exchange_and_redrive(arena: Arena) -> list[Actor]:
    """The claim comes last and could wait for the redrive while it holds the counters of a job."""
    other, (failing,) = held(arena, 1, name="other", successor=None)
    arena.settled([Report(failing, "fail")])
    _, (one,) = held(arena, 1, successor=None)
    return [arena.exchanger("A", one), redriver("R", other)]


@race(
    "an exchange and a redrive of the job that it ends",
    "A=LAST/0 R=REFUSED",
    "A=LAST/0 R=RUN 2",
    preemptions=2,
    always=3,
)
def exchange_and_redrive_of_same(arena: Arena) -> list[Actor]:
    """The worker that ends the run could claim from the next one in the same transaction."""
    job_id, (one, two) = held(arena, 2, stripes=2, successor=None)
    arena.settled([Report(one, "fail")])
    return [arena.exchanger("A", two), redriver("R", job_id)]


@race("an exchange and the cancel of the job that it would claim from", "A=OK/1 C=CANCELLED", "A=CLOSED/0 C=CANCELLED")
def exchange_and_cancel(arena: Arena) -> list[Actor]:
    """A worker could take a part of the job that is closed beside it, and keep it for ever."""
    job_id = arena.job(2)
    (one,) = arena.claims(1)
    return [arena.exchanger("A", one), canceller("C", job_id)]


@race("an exchange and give up, going by what arrived", "A=CLOSED/1 G=GAVE_UP", "A=LAST/2 G=LATE")
def exchange_and_give_up(arena: Arena) -> list[Actor]:
    """The exchange is begun again when its job is closed: it could claim twice."""
    job_id = arena.job(1, give_up_after=-1.0)
    (one,) = arena.claims(1)
    arena.job(1, "more")
    return [arena.exchanger("A", one), giver_up("G", job_id)]


@race("an exchange and the reaper of its part", "A=LAST/1 R=REAPED 0", "A=LOST/0 R=REAPED 1", preemptions=3)
def exchange_and_reap(arena: Arena) -> list[Actor]:
    """The part could be failed and accepted, and the worker could go on with a claim for nothing."""
    arena.job(1, attempts=1)
    (one,) = arena.claims(1, LAPSED)
    return [arena.exchanger("A", one), reaper("R")]


@race(
    "an exchange over two jobs and the reaper of parts of both",
    "A=LOST+LOST/0 R=REAPED 4",
    "A=OK+OK/0 R=REAPED 2",
    preemptions=2,
    always=3,
)
def exchange_and_reap_of_two_jobs(arena: Arena) -> list[Actor]:
    """The reaper's batch and the worker's could lock the parts or the counters of two jobs crosswise."""
    arena.job(2, "one", attempts=1)
    one, _ = arena.claims(2, LAPSED)
    arena.job(2, "two", attempts=1)
    three, _ = arena.claims(2, LAPSED)
    return [arena.exchanger("A", three, one), reaper("R")]


@race("an exchange of an old holder and a new claim", "Z=LAST/0 W=NOTHING", "Z=LOST/0 W=LAST", preemptions=2, always=3)
def exchange_and_reclaim(arena: Arena) -> list[Actor]:
    """The old holder could claim its own part again and report it under the old claim."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1, LAPSED)
    return [arena.exchanger("Z", one), arena.reclaimer("W")]


@race("an exchange and the sweep of a closed job", "A=CLOSED/0 S=SWEPT 1", "A=CLOSED/0 S=SWEPT 2", preemptions=2)
def exchange_and_sweep(arena: Arena) -> list[Actor]:
    """The late report and the sweep want the part and its counter in opposite order."""
    job_id, (one, _) = held(arena, 2)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [arena.exchanger("A", one), sweeper("S", job_id)]


@race("an exchange and a creator", "A=LAST/0 N=NEW", "A=LAST/2 N=NEW", preemptions=2, always=4)
def exchange_and_create(arena: Arena) -> list[Actor]:
    """The worker could claim parts of a job that is only half created."""
    _, (one,) = held(arena, 1, name="one", successor=None)
    return [arena.exchanger("A", one), creator("N", arena.new("two", successor=None), 2)]


@race("an exchange and the seal of its job", "A=OK/1 L=SEALED")
def exchange_and_seal(arena: Arena) -> list[Actor]:
    """The worker takes the job's last free part while the seal counts what is live."""
    job_id = arena.open(2, stripes=2, successor=None)
    (one,) = arena.claims(1)
    return [arena.exchanger("A", one), sealer("L", job_id, 2)]


@race("an exchange and an append to its job", "A=OK/0 N=ADDED", "A=OK/1 N=ADDED", after=seal_what_is_open)
def exchange_and_append(arena: Arena) -> list[Actor]:
    """The worker could claim a part that is not counted yet."""
    job_id = arena.open(1, successor=None)
    (one,) = arena.claims(1)
    return [arena.exchanger("A", one), appender("N", job_id, 1)]


@race("two workers that exchange, either makes the quorum", "A=LAST/1 B=CLOSED/0", "A=CLOSED/0 B=LAST/1",
      preemptions=1, always=2)  # fmt: skip
def exchange_and_quorum(arena: Arena) -> list[Actor]:
    """A success that is judged is expected like any other: it could be counted before the others were locked."""
    _, (one, two, three, _) = held(arena, 4, stripes=2, policy=Policy(quorum=2))
    arena.settled([succeed(three)])
    return [arena.exchanger("A", one), arena.exchanger("B", two)]


@race("a worker that knows of a quorum beside one that does not", "A=LAST/1 B=CLOSED/0", "A=CLOSED/0 B=LAST/1",
      preemptions=1, always=2)  # fmt: skip
def exchange_of_a_known_quorum(arena: Arena) -> list[Actor]:
    """The one settles step by step from the beginning, the other after it has expected too much."""
    job_id, (one, two, three, _) = held(arena, 4, stripes=2, policy=Policy(quorum=2))
    arena.settled([succeed(three)])
    return [arena.exchanger("A", one, stepwise={job_id}), arena.exchanger("B", two)]


@race("an exchange over two jobs and the failures that close both", "A=OK+OK/0 B=LAST+LAST",
      "A=CLOSED+CLOSED/0 B=LAST+LAST", preemptions=2, always=3)  # fmt: skip
def exchange_and_fail_fast(arena: Arena) -> list[Actor]:
    """Both want the counters of both jobs, one of them all at once: they could lock crosswise."""
    _, (one, two, _) = held(arena, 3, name="one", stripes=3, policy=Policy(fail_fast=True))
    _, (three, four, _) = held(arena, 3, name="two", stripes=3, policy=Policy(fail_fast=True))
    return [arena.exchanger("A", three, one), arena.fails("B", two, four)]


@three(
    "three workers that exchange the last parts of a job",
    "A=LAST/1 B=OK/0 C=OK/0",
    "A=OK/0 B=LAST/1 C=OK/0",
    "A=OK/0 B=OK/0 C=LAST/1",
)
def three_exchanges(arena: Arena) -> list[Actor]:
    """The one that ends the job must be the one that takes its successor, or nobody yet."""
    _, (one, two, three) = held(arena, 3)
    return [arena.exchanger(name, claim) for name, claim in zip("ABC", (one, two, three), strict=True)]


@three(
    "three workers that exchange batches which overlap in two jobs",
    "A=LAST+LAST/0 B=OK+OK/0 C=OK+OK/0",
    "A=OK+OK/0 B=LAST+LAST/0 C=OK+OK/0",
    "A=OK+OK/0 B=OK+OK/0 C=LAST+LAST/0",
)
def three_overlapping_exchanges(arena: Arena) -> list[Actor]:
    """Each batch shares a job with each of the others: three could wait in a circle."""
    arena.job(3, "one", successor=None)
    one, two, three = arena.claims(3)
    arena.job(3, "two", successor=None)
    four, five, six = arena.claims(3)
    return [arena.exchanger("A", one, five), arena.exchanger("B", six, two), arena.exchanger("C", four, three)]


@three(
    "two exchanges and the cancel of their job",
    "A=CLOSED/0 B=CLOSED/0 C=CANCELLED",
    "A=CLOSED/0 B=OK/1 C=CANCELLED",
    "A=OK/0 B=OK/1 C=CANCELLED",
    "A=OK/1 B=CLOSED/0 C=CANCELLED",
    "A=OK/1 B=OK/0 C=CANCELLED",
    always=1,
)
def exchanges_and_cancel(arena: Arena) -> list[Actor]:
    """One of two batches is refused and begun again while the other's claim holds parts of the job."""
    job_id = arena.job(3)
    one, two = arena.claims(2)
    return [arena.exchanger("A", one), arena.exchanger("B", two), canceller("C", job_id)]


@three(
    "an exchange, a reaper and cancel",
    "A=CLOSED/0 R=REAPED 0 C=CANCELLED",
    "A=CLOSED/0 R=REAPED 1 C=CANCELLED",
    "A=LAST/0 R=REAPED 1 C=LATE",
    "A=OK/0 R=REAPED 0 C=CANCELLED",
    "A=OK/0 R=REAPED 1 C=LATE",
    always=1,
)
def exchange_reap_and_cancel(arena: Arena) -> list[Actor]:
    """The reaper holds a part, the exchange another, the cancel their counters."""
    job_id = arena.job(2, attempts=1)
    arena.claims(1, LAPSED)
    (two,) = arena.claims(1)
    return [arena.exchanger("A", two), reaper("R"), canceller("C", job_id)]


@three(
    "an exchange, a redrive and a cancel of the job that it could claim from",
    "A=LAST/0 R=RUN 2 C=CANCELLED",
    "A=LAST/0 R=RUN 2 C=LATE",
    "A=LAST/1 R=RUN 2 C=CANCELLED",
    "A=LAST/1 R=RUN 2 C=LATE",
    always=1,
)
def exchange_redrive_and_cancel(arena: Arena) -> list[Actor]:
    """The worker could claim a part of the new run after its cancel."""
    other, (failing,) = held(arena, 1, name="other", successor=None)
    arena.settled([Report(failing, "fail")])
    _, (one,) = held(arena, 1, successor=None)
    return [arena.exchanger("A", one), redriver("R", other), canceller("C", other)]
