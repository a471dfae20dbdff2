"""Races of batches in which nested jobs end: all go up in one transaction, or, against the order of locks, apart."""

from __future__ import annotations

from fanin.domain.model import Claim
from fanin.protocol import finish
from fanin.protocol.steps import Apart
from fanin.testing.explorer import Actor
from fanin.testing.stepper import Script
from tests.races.arena import Arena, canceller
from tests.races.scenarios import race
from tests.races.stage import BUCKET, succeed


def apart(arena: Arena, name: str, *claims: Claim) -> Actor:
    """A worker that reports a batch, and job by job where that is refused."""
    reports = [succeed(claim) for claim in claims]

    def script() -> Script:
        try:
            settled = yield lambda: finish.settle(BUCKET, reports, name)
        except Apart:
            settled = []
            for report in reports:
                settled += yield lambda report=report: finish.settle(BUCKET, [report], name)  # type: ignore[misc]
        arena.answers += zip(reports, settled, strict=True)
        return "+".join(answer.verdict.name for answer in settled)

    return Actor(name, script)


@race("a batch over two levels, and the cancel of the upper job", "A=LAST+CLOSED C=CANCELLED", "A=LAST+LAST C=LATE",
preemptions=1)  # fmt: skip
def levels_and_cancel(arena: Arena) -> list[Actor]:
    """The batch goes up from one of its jobs into another, whose counter it has taken already."""
    job_id = arena.job(2, successor=None)
    one, other = arena.claims(2)
    arena.waiting(one, priority=5)
    (last,) = arena.claims(1)
    return [apart(arena, "A", last, other), canceller("C", job_id)]


@race("two batches, in each of which two nested jobs of one job end", "A=LAST+LAST B=LAST+LAST", preemptions=1)
def rise_in_crowds(arena: Arena) -> list[Actor]:
    """Neither could see what the other has counted, or they could lock the parts and counters above crosswise."""
    arena.job(4, successor=None)
    for claim in arena.claims(4):
        arena.waiting(claim, priority=5)
    one, two, three, four = arena.claims(4)
    return [apart(arena, "A", four, one), apart(arena, "B", two, three)]


def pair(arena: Arena, stripes: int = 1) -> tuple[list[Claim], list[Claim]]:
    """The claims of two jobs of two parts, in the order of the jobs. ``stripes``: of the first."""
    first, second = sorted(("one", "two"), key=lambda name: arena.new(name).id)
    arena.job(2, first, successor=None, stripes=stripes)
    arena.job(2, second, successor=None)
    claims = sorted(arena.claims(4), key=lambda claim: claim.key)
    return claims[:2], claims[2:]


@race(
    "a batch goes up to a job that stands before another of it, and a batch of these two",
    "A=LAST+LAST B=OK+OK",
    "A=LAST+OK B=LAST+LAST",
    "A=LAST+LAST B=LAST+OK",
    preemptions=1,
)
def rise_against_the_order(arena: Arena) -> list[Actor]:
    """The one could hold the counter that the other wants, and want the one that it holds."""
    (goes, stays), (one, two) = pair(arena)
    arena.waiting(goes, priority=5)
    (last,) = arena.claims(1)
    return [apart(arena, "A", last, one), apart(arena, "B", stays, two)]


@race(
    "a batch goes up that has emptied a counter of a job which goes on, and a batch empties the other",
    "A=LAST+LAST B=OK+OK",
    "A=LAST+OK B=LAST+LAST",
    "A=LAST+LAST B=OK+LAST",
    preemptions=1,
)
def rise_with_a_job_that_goes_on(arena: Arena) -> list[Actor]:
    """The one could hold that job and want the counter above, which the other holds while it wants the job."""
    (one, two), (goes, stays) = pair(arena, stripes=2)
    arena.waiting(goes, priority=5)
    (last,) = arena.claims(1)
    return [apart(arena, "A", last, one), apart(arena, "B", two, stays)]
