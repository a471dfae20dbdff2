"""How not to do it: the forms that look right and lose a completion or double it. Over the same tables as the protocol.

Kept to show that the judge and the schedules would find them in our own code.
"""

from __future__ import annotations

from typing import Any

from fanin.domain.model import Claim
from fanin.protocol import counting, ending, finish
from fanin.protocol.steps import Query, Statement, Txn
from fanin.testing.stepper import Script
from tests.races.stage import BUCKET, succeed


def ask(name: str, text: str, **values: Any) -> Statement:
    return Query("broken", name, (), {"pg": text})(**values)


def finish_part(claim: Claim) -> Statement:
    return ask(
        "finish_part",
        "UPDATE fanin.part SET status = 'succeeded', result = :result WHERE bucket = 0 AND job_id = :job_id "
        "AND idx = :idx AND status = 'running' RETURNING idx",
        job_id=claim.job_id, idx=claim.idx, result=succeed(claim).result,
    )  # fmt: skip


def end_job(job_id: str) -> Txn[None]:
    """What whoever believes to be the last one does, without asking the row again."""
    yield ask(
        "end_job",
        "UPDATE fanin.job SET status = 'completed', outcome = 'all_ok', open_stripes = 0, finished_at = fanin.clock(), "
        "events = events + 1, succeeded_parts = (SELECT sum(s.succeeded) FROM fanin.job_stripe AS s "
        "WHERE s.bucket = 0 AND s.job_id = :job_id), failed_parts = 0, abandoned_parts = 0 "
        "WHERE bucket = 0 AND id = :job_id",
        job_id=job_id,
    )  # fmt: skip
    yield ask(
        "announce",
        "INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at) "
        "SELECT 0, 'job/' || j.id || '/finished/' || j.events, j.id, j.events, 'job.finished', "
        "'{\"succeeded\": 0, \"failed\": 0, \"abandoned\": 0, \"outcome\": \"all_ok\"}', "
        "fanin.clock() FROM fanin.job AS j WHERE j.bucket = 0 AND j.id = :job_id",
        job_id=job_id,
    )  # fmt: skip


def read_modify_write(claim: Claim) -> Txn[str]:
    """The counter is read, lowered in the program, and written back: two readers of one value write one count."""
    yield finish_part(claim)
    text = "SELECT remaining, succeeded FROM fanin.job_stripe WHERE bucket = 0 AND job_id = :job_id AND stripe = 0"
    ((remaining, succeeded),) = yield ask("read_counter", text, job_id=claim.job_id)
    yield ask(
        "write_counter",
        "UPDATE fanin.job_stripe SET remaining = :remaining, succeeded = :succeeded "
        "WHERE bucket = 0 AND job_id = :job_id AND stripe = 0",
        job_id=claim.job_id, remaining=remaining - 1, succeeded=succeeded + 1,
    )  # fmt: skip
    if remaining - 1 > 0:
        return "OK"
    yield from end_job(claim.job_id)
    return "LAST"


def check_then_act(claim: Claim) -> Script:
    """Each step for itself: count the part, look whether it was the last, then end the job. Two can see "the last"."""

    def contribute() -> Txn[None]:
        yield finish_part(claim)
        yield ask(
            "count_down",
            "UPDATE fanin.job_stripe SET remaining = remaining - 1, succeeded = succeeded + 1 "
            "WHERE bucket = 0 AND job_id = :job_id AND stripe = 0",
            job_id=claim.job_id,
        )  # fmt: skip

    def check() -> Txn[bool]:
        text = (
            "SELECT s.remaining = 0 AND j.status = 'running' FROM fanin.job_stripe AS s JOIN fanin.job AS j "
            "ON j.bucket = s.bucket AND j.id = s.job_id WHERE s.bucket = 0 AND s.job_id = :job_id"
        )
        ((last,),) = yield ask("check", text, job_id=claim.job_id)
        return bool(last)

    yield contribute
    if not (yield check):
        return "OK"
    yield lambda: end_job(claim.job_id)
    return "LAST"


def check_in_the_transaction(claim: Claim) -> Txn[str]:
    """The live parts are counted in the same transaction: none of two sees the other's end, so none is the last."""
    yield finish_part(claim)
    text = "SELECT count(*) FROM fanin.part WHERE bucket = 0 AND job_id = :job_id AND status IN ('pending', 'running')"
    ((live,),) = yield ask("count_live", text, job_id=claim.job_id)
    yield ask(
        "count_down",
        "UPDATE fanin.job_stripe SET remaining = remaining - 1, succeeded = succeeded + 1 "
        "WHERE bucket = 0 AND job_id = :job_id AND stripe = 0",
        job_id=claim.job_id,
    )  # fmt: skip
    if live > 0:
        return "OK"
    yield from end_job(claim.job_id)
    return "LAST"


def count_outside(claim: Claim) -> Script:
    """The product's own statements, but the counters in a transaction of their own."""
    row = (claim.job_id, claim.idx, claim.attempt, claim.claim_id, "succeed", succeed(claim).result, 0.0)

    def contribute() -> Txn[int]:
        changed = yield finish.SQL.settle_parts(bucket=BUCKET, rows=[row])
        return len(changed)

    def count() -> Txn[counting.Counted]:
        counted = yield from counting.count(BUCKET, [(claim.job_id, 0, "succeeded")])
        yield from ending.end(BUCKET, counted.endings)
        return counted

    if not (yield contribute):
        return "LOST"
    counted = yield count
    if counted.closed:
        return "CLOSED"
    return "LAST" if counted.endings else "OK"


def repair_in_one_statement(job_id: str) -> Txn[str]:
    """The lock and the count in one statement: the counter is the newest, and the parts are those of the moment before
    the lock was waited for."""
    changed = yield ask(
        "repair",
        "WITH mine AS MATERIALIZED (SELECT s.stripe, s.remaining FROM fanin.job_stripe AS s "
        "WHERE s.bucket = 0 AND s.job_id = :job_id ORDER BY s.stripe FOR NO KEY UPDATE), "
        "counted AS (SELECT p.stripe, count(*) FILTER (WHERE p.status IN ('pending', 'running')) AS live, "
        "count(*) FILTER (WHERE p.status = 'succeeded') AS succeeded "
        "FROM fanin.part AS p WHERE p.bucket = 0 AND p.job_id = :job_id GROUP BY p.stripe) "
        "UPDATE fanin.job_stripe AS s SET remaining = c.live, succeeded = c.succeeded "
        "FROM mine AS m JOIN counted AS c ON c.stripe = m.stripe "
        "WHERE s.bucket = 0 AND s.job_id = :job_id AND s.stripe = m.stripe AND m.remaining <> c.live "
        "RETURNING s.stripe",
        job_id=job_id,
    )
    return "REPAIRED" if changed else "NOTHING"
