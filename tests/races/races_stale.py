"""Races about a step that is too old: its end against whoever claims it, cancels it, or ends it too."""

from __future__ import annotations

from fanin.domain.identity import new_claim_id
from fanin.protocol import close
from fanin.protocol.lease import SQL
from fanin.protocol.steps import Query, Txn
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.protocol import flows
from tests.races.arena import Arena, canceller, said
from tests.races.scenarios import race
from tests.races.stage import BUCKET, LEASES, QUEUE

AGE = "        AND NOT (p.attempt = 0 AND p.job_id IN (SELECT j.id FROM fanin.job AS j\n"


def stale_step(arena: Arena) -> str:
    """The job of a step that nobody has claimed, and that is too old now."""
    flow_id = arena.flow({"a": "", "b": "a"}, stale=["a"])
    arena.age()
    return flows.job_of(arena.store, flow_id, "a")


def ender(name: str, job_id: str) -> Actor:
    return said(name, lambda: close.too_old(BUCKET, job_id), "SKIPPED", "NOT")


def older(name: str) -> Actor:
    """The claim of a worker of a version that does not know of ages."""
    text = SQL.claim_parts.texts["pg"]
    start = text.index(AGE)
    end = text.index("ORDER BY priority", start)
    query = Query("older", "claim_parts", (), {"pg": text[:start] + "    " + text[end:]})
    claim_id = new_claim_id()

    def txn() -> Txn[bool]:
        rows = yield query(
            bucket=BUCKET, queue=QUEUE, tasks=list(LEASES), leases=list(LEASES.values()), limit=1, claim_id=claim_id,
            worker="old",
        )  # fmt: skip
        return bool(rows)

    return said(name, txn, "CLAIMED", "NOTHING")


def started_or_skipped(arena: Arena, run: Run) -> list[str]:
    """What a worker has begun goes on, what was skipped was never begun."""
    rows = select(
        arena.store,
        "SELECT p.attempt, j.status FROM fanin.part AS p JOIN fanin.job AS j ON j.id = p.job_id "
        "WHERE j.flow_step = 0 AND (p.attempt > 0) <> (j.status = 'running')",
    )
    return [f"a step that was begun is {row}" for row in rows]


@race("too old, and claimed by an older worker", "C=CLAIMED E=NOT", "C=NOTHING E=SKIPPED", also=started_or_skipped)
def too_old_and_claimed(arena: Arena) -> list[Actor]:
    """A step is skipped that a worker has begun."""
    job_id = stale_step(arena)
    return [older("C"), ender("E", job_id)]


@race("too old, said by two", "D=SKIPPED E=NOT", "D=NOT E=SKIPPED", preemptions=2, always=2)
def too_old_twice(arena: Arena) -> list[Actor]:
    """Every worker minds the ages: two of them end the step, with two events."""
    job_id = stale_step(arena)
    return [ender("D", job_id), ender("E", job_id)]


@race("too old, and cancelled", "C=CANCELLED E=NOT", "C=LATE E=SKIPPED", preemptions=2, always=2)
def too_old_and_cancelled(arena: Arena) -> list[Actor]:
    """Both end the step."""
    job_id = stale_step(arena)
    return [canceller("C", job_id), ender("E", job_id)]
