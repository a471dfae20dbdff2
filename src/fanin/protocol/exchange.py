"""A worker's one transaction: settle what is done, then claim what comes next. One commit instead of two.

The settlement comes first (parts, stripes, jobs, inserts). The claim comes last: it skips what is locked, so it never
waits while it holds the rows of the settlement.
"""

from __future__ import annotations

from collections.abc import Sequence

from fanin.domain.model import Claim, Report, Settled
from fanin.protocol import finish, lease
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
) -> Txn[Exchanged]:
    """`finish.settle` for the reports, then `lease.claim` from the queues in their order until ``room`` is filled."""

    def settling() -> Txn[list[Settled]]:
        return (yield from finish.settle(bucket, reports, worker)) if reports else []

    def claiming() -> Txn[list[Claim]]:
        claims: list[Claim] = []
        for queue in queues:
            claims += yield from lease.claim(bucket, queue, leases, room - len(claims), claim_id, worker)
        return claims

    return (yield from _both(settling, claiming))


def _both(settling: TxnFactory[list[Settled]], claiming: TxnFactory[list[Claim]]) -> Txn[Exchanged]:
    try:
        answers = yield from settling()
    except Again as again:  # only the settling is replaced; the claim follows it all the same
        replacement = again.factory
        raise Again(lambda: _both(replacement, claiming)) from None
    return answers, (yield from claiming())
