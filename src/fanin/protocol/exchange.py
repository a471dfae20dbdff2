"""A worker's one transaction: settle what is done, then claim what comes next. One commit instead of two.

The settlement comes first (parts, stripes), then the claim: it skips what is locked, so it never waits while it holds
the rows of the settlement. A batch of successes is expected to be heard, as it nearly always is: its writes, its counts
and the claim are all sent before the first answer is looked at, in one journey to the database. An answer that is not
the expected one rolls everything back, and the batch is settled step by step.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanin.domain.model import Claim, Report, Settled, Verdict
from fanin.protocol import effect, finish, lease, success
from fanin.protocol.steps import Again, Txn, TxnFactory

Exchanged = tuple[list[Settled], list[Claim]]


def exchange(
    bucket: int,
    reports: Sequence[Report],
    queues: Sequence[str],
    leases: dict[str, float],
    room: int,
    claim_id: str,
    worker: str,
    stepwise: set[str] | None = None,
) -> Txn[Exchanged]:
    """`finish.settle` for the reports, then `lease.claim` from the queues in their order until ``room`` is filled.

    ``stepwise`` is the caller's memory: jobs of which nothing is expected, because they were seen to be judged or
    closed. They are added here, and cost only time if that has changed since.
    """

    def settling() -> Txn[list[Settled]]:
        return (yield from finish.settle(bucket, reports, worker)) if reports else []

    def claiming(taken: int = 0) -> Txn[list[Claim]]:
        claims: list[Claim] = []
        for queue in queues:
            claims += yield from lease.claim(bucket, queue, leases, room - taken - len(claims), claim_id, worker)
        return claims

    known = stepwise if stepwise is not None else set()
    if not reports or any(
        report.verb != "succeed" or report.spawns or report.claim.job_id in known for report in reports
    ):
        return (yield from _both(settling, claiming))

    expected = yield from success.expect(bucket, reports)
    claims = yield from claiming()
    if not expected.came:
        known |= expected.uncounted
        raise Again(lambda: _both(settling, claiming))
    ended = yield from success.end(bucket, expected, worker)
    yield from effect.register(bucket, reports)
    if ended:  # their successors have just come
        claims += yield from claiming(len(claims))
    answers = [
        Settled(Verdict.LAST if report.claim.job_id in ended else Verdict.OK, "succeeded", report.claim.attempt)
        for report in reports
    ]
    return answers, claims


def _both(settling: TxnFactory[list[Settled]], claiming: TxnFactory[list[Claim]]) -> Txn[Exchanged]:
    try:
        answers = yield from settling()
    except Again as again:  # only the settling is replaced; the claim follows it all the same
        replacement = again.factory
        raise Again(lambda: _both(replacement, claiming)) from None
    return answers, (yield from claiming())
