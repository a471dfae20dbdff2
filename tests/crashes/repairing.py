"""The rest of the table: repairs of jobs that were damaged by hand."""

from __future__ import annotations

from fanin.protocol import repair
from fanin.protocol.steps import TxnFactory
from fanin.testing.state import execute
from tests.crashes.nesting import TABLE, waiting
from tests.crashes.table import held, row
from tests.races.stage import BUCKET, Stage, succeed

__all__ = ["TABLE"]

REPAIR = "00000000-0000-4000-8000-0000000000aa"
MORE = "UPDATE fanin.job_stripe SET created = created + 1, remaining = remaining + 1"
ALL_DONE = (
    "UPDATE fanin.part SET status = 'succeeded', ready = false, result = '\"' || claim_id || '\"' "
    "WHERE status = 'running'"
)


def recounting(job_id: str) -> TxnFactory[repair.Recounted]:
    return lambda: repair.recount(BUCKET, job_id, REPAIR)


@row("repair.recount", "a job of which both counters and the open stripes are wrong")
def recount_drift(stage: Stage) -> TxnFactory[repair.Recounted]:
    job_id = stage.job(4, stripes=2)
    stage.settled([succeed(claim) for claim in stage.claims(1)])
    execute(stage.store, MORE, "UPDATE fanin.job SET open_stripes = 1")
    return recounting(job_id)


@row("repair.recount", "a job that should have ended")
def recount_unended(stage: Stage) -> TxnFactory[repair.Recounted]:
    job_id, claims = held(stage, 3, stripes=2)
    stage.settled([succeed(claim) for claim in claims[:2]])
    execute(stage.store, ALL_DONE)
    return recounting(job_id)


@row("repair.recount", "a job that should have ended, for which a part waits")
def recount_nested(stage: Stage) -> TxnFactory[repair.Recounted]:
    _, (last,) = waiting(stage)
    execute(stage.store, f"{ALL_DONE} AND job_id = '{last.job_id}'")
    return recounting(last.job_id)


@row("repair.recount", "an ended job whose counts are wrong")
def recount_ended(stage: Stage) -> TxnFactory[repair.Recounted]:
    job_id, claims = held(stage, 2)
    stage.settled([succeed(claim) for claim in claims])
    execute(stage.store, "UPDATE fanin.job SET succeeded_parts = 1 WHERE succeeded_parts = 2")
    return recounting(job_id)


@row("repair.recount", "a job that lacks a part", damaged=True)
def recount_damaged(stage: Stage) -> TxnFactory[repair.Recounted]:
    job_id = stage.job(3)
    execute(stage.store, "DELETE FROM fanin.part WHERE idx = 0")
    return recounting(job_id)


@row("repair.mend", "parts that wait for a moment that does not come, and for a job that is gone")
def mend(stage: Stage) -> TxnFactory[repair.Mended]:
    job_id = stage.job(3)
    (one,) = stage.claims(1)
    nested = stage.waiting(one)
    execute(
        stage.store,
        f"UPDATE fanin.part SET due_at = due_at + 1e9, ready = false WHERE job_id = '{job_id}' AND idx > 0",
        f"UPDATE fanin.job SET waiter_id = NULL, waiter_idx = NULL WHERE id = '{nested}'",
    )
    return lambda: repair.mend(BUCKET, job_id, REPAIR)
