"""Races of parts that end with a job of their own: the end of that job goes up, whatever happens above and below."""

from __future__ import annotations

from typing import Any

from fanin.domain.errors import LeaseLost, NotAllowedNow
from fanin.domain.model import Claim, Report
from fanin.domain.policy import Policy
from fanin.protocol import close, nest, redrive
from fanin.protocol.steps import Again, Txn, TxnFactory
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.races.arena import Arena, canceller, reaper, redriver, renewer, said, skipper, sweeper
from tests.races.scenarios import race
from tests.races.stage import BUCKET, LAPSED


def waits(arena: Arena, above: int = 1, **options: Any) -> tuple[str, Claim, str, Claim]:
    """A job, its first part, the job of one part for which that waits, and the claim of this one."""
    job_id = arena.job(above, successor=None, **options)
    (one,) = arena.claims(1)
    nested = arena.waiting(one, priority=5)
    (last,) = arena.claims(1)
    return job_id, one, nested, last


def nester(arena: Arena, name: str, held: Claim) -> Actor:
    """A holder whose part ends with a job of its own."""
    return begins_to_wait(name, arena.nesting(held, priority=5))


def begins_to_wait(name: str, nesting: TxnFactory[tuple[nest.Nested, str]]) -> Actor:
    """What `nest.nest` or `nest.rejoin` says to a holder."""

    def refusing() -> Txn[tuple[nest.Nested, str]]:
        """A loss is no `Exception`, so that it passes handlers; a session is told of it by one."""
        try:
            return (yield from nesting())
        except LeaseLost as lost:
            raise NotAllowedNow(str(lost)) from None
        except Again:
            raise Again(refusing) from None

    def script() -> Script:
        try:
            nested, _ = yield refusing
        except NotAllowedNow:
            return "LOST"
        return nested.name

    return Actor(name, script)


@race(
    "the last part of a nested job, and the cancel of the job above",
    "A=LAST C=CANCELLED",
    "A=LAST C=LATE",
    preemptions=1,
)
def rise_and_cancel_above(arena: Arena) -> list[Actor]:
    """The job above could end twice, or count a part after it was closed."""
    job_id, _, _, last = waits(arena)
    return [arena.succeeds("A", last), canceller("C", job_id)]


@race("the last part of a nested job, and the cancel of it", "A=CLOSED C=CANCELLED", "A=LAST C=LATE", preemptions=1)
def rise_and_cancel_nested(arena: Arena) -> list[Actor]:
    """Both could settle the part that waits."""
    _, _, nested, last = waits(arena)
    return [arena.succeeds("A", last), canceller("C", nested)]


@race(
    "the last part of a nested job, and the sweep of the part that waits",
    "A=LAST S=SWEPT 0",
    "A=LAST S=SWEPT 1",
    preemptions=1,
)
def rise_and_sweep(arena: Arena) -> list[Actor]:
    """A part that was abandoned could be settled as well, or each could wait for what the other holds."""
    job_id, _, _, last = waits(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [arena.succeeds("A", last), sweeper("S", job_id)]


@race("the last part of a nested job, and the redrive of the closed job above", "A=LAST R=RUN 2", preemptions=1)
def rise_and_redrive(arena: Arena) -> list[Actor]:
    """The end could pass by a closed job that is opened again: its part would wait for ever."""
    job_id, _, _, last = waits(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return [arena.succeeds("A", last), redriver("R", job_id)]


@race(
    "the last part of a nested job, and an operator who skips the part",
    "A=LAST K=ENDED",
    "A=LAST K=REFUSED",
    preemptions=1,
)
def rise_and_skip(arena: Arena) -> list[Actor]:
    """The part could be counted twice, or each could wait for what the other holds."""
    job_id, _, _, last = waits(arena)
    return [arena.succeeds("A", last), skipper("K", job_id, 0, arena.deed())]


@race("the last part of a nested job, and a late heartbeat", "A=LAST H=HELD", "A=LAST H=LOST", preemptions=1)
def rise_and_heartbeat(arena: Arena) -> list[Actor]:
    """The heartbeat of the worker that held both parts locks one of them, and wants the other."""
    _, one, _, last = waits(arena)
    return [arena.succeeds("A", last), renewer("H", one, last)]


def two_wait(arena: Arena, parts: int = 2, **options: Any) -> tuple[Claim, Claim]:
    """The last parts below two parts of one job that wait."""
    arena.job(parts, successor=None, **options)
    for held in arena.claims(2):
        arena.waiting(held, priority=5)
    one, two = arena.claims(2)
    return one, two


@race("two nested jobs end below one job, one counter", "A=LAST B=LAST", preemptions=1, always=2)
def rise_and_rise(arena: Arena) -> list[Actor]:
    """Each could count without seeing the other: the job above would not end."""
    one, two = two_wait(arena)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("two nested jobs end below one job, a counter each", "A=LAST B=LAST", preemptions=1, always=2)
def rise_and_rise_striped(arena: Arena) -> list[Actor]:
    """Each empties a counter of its own and could believe that the other's still has parts."""
    one, two = two_wait(arena, stripes=2)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("a nested job fails beside one that ends, under fail fast", "A=LAST B=LAST", preemptions=1, always=2)
def rise_and_fail_fast(arena: Arena) -> list[Actor]:
    """The one that closes the job above locks all counters, while the other holds its own."""
    one, two = two_wait(arena, 3, stripes=2, policy=Policy(fail_fast=True))
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("two nested jobs end below a job with a quorum", "A=LAST B=LAST", preemptions=1, always=2)
def rise_and_quorum(arena: Arena) -> list[Actor]:
    """Each locks all counters of the job above: they could wait for each other."""
    one, two = two_wait(arena, 3, stripes=2, policy=Policy(quorum=2))
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


# Beginning to wait.


def held_again(arena: Arena) -> tuple[str, Claim, str, Claim]:
    """A job, its part in a second run, the job of one part that goes on since the first, and the claim of that one."""
    job_id, _, nested, last = waits(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    (again,) = arena.claims(1)
    return job_id, again, nested, last


@race("a part begins to wait, and its nested job ends", "A=LAST N=COMPLETED", "A=LAST N=WAITS", preemptions=1)
def nest_and_rise(arena: Arena) -> list[Actor]:
    """The end could find nobody waiting, and the part then waits for a job that has ended."""
    _, again, _, last = held_again(arena)
    return [arena.succeeds("A", last), nester(arena, "N", again)]


@race("a part begins to wait, and its nested job is cancelled", "C=CANCELLED N=WAITS", preemptions=1)
def nest_and_cancel_nested(arena: Arena) -> list[Actor]:
    """The part could wait for a job that was cancelled a moment before."""
    _, again, nested, _ = held_again(arena)
    return [canceller("C", nested), nester(arena, "N", again)]


@race("a part begins to wait, and its job is cancelled", "C=CANCELLED N=WAITS", preemptions=1)
def nest_and_cancel_above(arena: Arena) -> list[Actor]:
    """The nested job could be made below a closed job, and go on for nobody."""
    job_id = arena.job(1)
    (one,) = arena.claims(1)
    return [canceller("C", job_id), nester(arena, "N", one)]


@race(
    "a part begins to wait, and the reaper finds its lease run out",
    "N=LOST R=REAPED 1",
    "N=WAITS R=REAPED 0",
    preemptions=1,
)
def nest_and_reap(arena: Arena) -> list[Actor]:
    """A part that waits could be failed for a lease that it has no more."""
    arena.job(1, attempts=1)
    (one,) = arena.claims(1, LAPSED)
    return [nester(arena, "N", one), reaper("R")]


@race("a part begins to wait twice, by one attempt", "M=WAITS N=WAITS", preemptions=1)
def nest_and_nest(arena: Arena) -> list[Actor]:
    """The job could be made twice, or the second be told that it has lost the part."""
    arena.job(1)
    (one,) = arena.claims(1)
    return [nester(arena, "M", one), nester(arena, "N", one)]


@race("a part begins to wait twice for a job that has failed before, by one attempt", "M=WAITS N=WAITS", preemptions=1)
def nest_again_and_nest_again(arena: Arena) -> list[Actor]:
    """The second could be told that it has lost the part, because the first has run the job again."""
    job_id, _, _, last = waits(arena)
    arena.settled([Report(last, "fail", error='{"type": "E"}')])
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    (again,) = arena.claims(1)
    return [nester(arena, "M", again), nester(arena, "N", again)]


@race("a part begins to wait, and its attempt gives it back", "A=LOST N=WAITS", "A=OK N=LOST", preemptions=1)
def nest_and_release(arena: Arena) -> list[Actor]:
    """A worker that stops could give back a part that waits, and its nested job would end for nobody."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1)
    return [arena.releases("A", one), nester(arena, "N", one)]


def refuser(arena: Arena, name: str, held: Claim) -> Actor:
    """A holder whose part would end with a job that may not be, and which then fails it."""
    refusing = arena.refusing(held)

    def telling() -> Txn[str]:
        try:
            yield from refusing()
        except LeaseLost as lost:
            raise NotAllowedNow(str(lost)) from None
        return "REFUSED"

    def script() -> Script:
        try:
            return (yield telling)
        except NotAllowedNow:
            return "LOST"

    return Actor(name, script)


@race("a job is refused to a part twice, by one attempt", "M=REFUSED N=REFUSED", preemptions=1)
def refuse_and_refuse(arena: Arena) -> list[Actor]:
    """The refused job could be made twice, or have two events."""
    arena.job(1)
    (one,) = arena.claims(1)
    return [refuser(arena, "M", one), refuser(arena, "N", one)]


@race("a job is refused to a part, and its attempt gives it back", "A=OK N=LOST", "A=OK N=REFUSED", preemptions=1)
def refuse_and_release(arena: Arena) -> list[Actor]:
    """A refusal of an attempt that holds nothing any more could be written down."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1)
    return [arena.releases("A", one), refuser(arena, "N", one)]


def nobody_failed(arena: Arena, run: Run) -> list[str]:
    rows = select(arena.store, "SELECT job_id, idx FROM fanin.part WHERE status = 'failed'")
    return [f"failed, although its nested job was only left behind: {row}" for row in rows]


@race(
    "a nested job is left behind, while its part is run again", "B=ABANDONED N=WAITS", "B=LEFT N=WAITS",
    preemptions=1, also=nobody_failed,
)  # fmt: skip
def abandon_and_nest(arena: Arena) -> list[Actor]:
    """The job could be cancelled for a part that has just begun to wait for it again."""
    job_id, _, nested, _ = waits(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    claiming = arena.claiming()

    def run_again() -> Script:
        yield lambda: redrive.redrive(BUCKET, job_id, 1, 2)
        (again,) = yield claiming
        outcome, _ = yield arena.nesting(again, priority=5)
        return outcome.name

    return [
        said("B", lambda: nest.abandon(BUCKET, nested, job_id, 0), "ABANDONED", "LEFT"),
        Actor("N", run_again),
    ]
