"""A worker's transaction: its reports about the parts of a bucket, and the claim of the next ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fanin.domain import identity
from fanin.domain.errors import Unavailable
from fanin.domain.model import Claim, Report, Settled, Verdict
from fanin.protocol import finish
from fanin.protocol.exchange import Exchanged, exchange
from fanin.protocol.steps import Again, Apart, Txn, TxnFactory
from fanin.runtime.executors import Running
from fanin.runtime.outcome import in_a_line
from fanin.stores.base import Store

STEPWISE_JOBS = 1_000
"""So many jobs that are judged or closed are kept in mind; then it is found out again."""

log = logging.getLogger("fanin")


class Settling:
    """``queues`` are served in turn, ``leases`` are those of the tasks, ``name`` is the worker's."""

    def __init__(self, store: Store, queues: Sequence[str], leases: dict[str, float], name: str) -> None:
        self._store = store
        self._queues = list(queues)
        self._leases = leases
        self._name = name
        self._turn = 0
        self._stepwise: set[str] = set()

    def transact(
        self, bucket: int, said: list[tuple[Running, Report]], room: int
    ) -> tuple[list[tuple[Report, Settled]], list[Claim]]:
        """The answers to what was said, and at most ``room`` new claims. Raises `Unavailable`."""
        reports = [report for _, report in said]
        claim_id = identity.new_claim_id()
        if len(self._stepwise) > STEPWISE_JOBS:
            self._stepwise.clear()
        self._turn += room > 0
        queues = self._queues[self._turn % len(self._queues) :] + self._queues[: self._turn % len(self._queues)]

        def marked(factory: TxnFactory[Exchanged]) -> Txn[Exchanged]:
            """Leaves the parts alone while their reports are under way; between two tries the heart renews them."""
            self._mark(said, True)
            try:
                return (yield from factory())
            except Again as again:
                replacement = again.factory
                raise Again(lambda: marked(replacement)) from None
            except BaseException:
                self._mark(said, False)
                raise

        def both() -> Txn[Exchanged]:
            return exchange(bucket, reports, queues, self._leases, room, claim_id, self._name, self._stepwise)

        try:
            answers, claims = self._store.run(lambda: marked(both))
            return list(zip(reports, answers, strict=True)), claims
        except Unavailable:
            raise
        except Apart:
            return self._rank_by_rank(bucket, reports), []
        except Exception:
            if not reports:
                raise
            log.exception("worker %s: a batch could not be settled; settling its jobs one by one", self._name)
            return self._one_by_one(bucket, reports), []

    def _rank_by_rank(self, bucket: int, reports: list[Report]) -> list[tuple[Report, Settled]]:
        """Jobs of one rank have no part that waits for another of them, so their ends go up in the order of locks."""
        ranks: dict[str, list[Report]] = {}
        for report in reports:
            ranks.setdefault(identity.rank(report.claim.job_id), []).append(report)
        settled: list[tuple[Report, Settled]] = []
        for _, mine in sorted(ranks.items()):
            try:
                answers = self._store.run(lambda: finish.settle(bucket, mine, self._name))
                settled += zip(mine, answers, strict=True)
            except Apart:
                settled += self._one_by_one(bucket, mine)
            except Unavailable:
                raise
            except Exception:
                log.exception("worker %s: jobs could not be settled together; settling them one by one", self._name)
                settled += self._one_by_one(bucket, mine)
        return settled

    def _one_by_one(self, bucket: int, reports: list[Report]) -> list[tuple[Report, Settled]]:
        """Jobs that parts of others wait for are settled so. A damaged one must not hold up the others: its parts are
        left to their leases, for a repair to find."""
        settled: list[tuple[Report, Settled]] = []
        for job_id in sorted({report.claim.job_id for report in reports}):
            mine = [report for report in reports if report.claim.job_id == job_id]
            try:
                answers = self._store.run(lambda: finish.settle(bucket, mine, self._name))
                settled += zip(mine, answers, strict=True)
            except Unavailable:
                raise
            except Exception as problem:
                log.error(
                    "job %s: %d results could not be stored (%s). Run `fanin check`; the parts are run again when "
                    "their leases end", job_id, len(mine), problem,
                )  # fmt: skip
        return settled

    @staticmethod
    def _mark(said: list[tuple[Running, Report]], sent: bool) -> None:
        for running, _ in said:
            running.sent = sent


def tell(report: Report, answer: Settled) -> bool:
    """Log what became of a report, where it is worth a line. Whether the part was lost."""
    claim = report.claim
    if answer.verdict in (Verdict.LOST, Verdict.CLOSED):
        log.info(
            "job %s part %d: the report of attempt %d was refused (%s), attempt %s holds it",
            claim.job_id, claim.idx, claim.attempt, answer.verdict.value, answer.attempt,
        )  # fmt: skip
    elif answer.verdict in (Verdict.CONFLICT, Verdict.UNKNOWN):
        log.error(
            "job %s part %d: the report of attempt %d was refused: %s",
            claim.job_id, claim.idx, claim.attempt, answer.verdict.value,
        )  # fmt: skip
    elif answer.verdict in (Verdict.OK, Verdict.LAST) and answer.status == "failed":
        why = in_a_line(report.error) if report.error is not None else "the parts that it adds are too many for its job"
        log.warning("job %s part %d failed for good at attempt %d: %s", claim.job_id, claim.idx, claim.attempt, why)
    return answer.verdict in (Verdict.LOST, Verdict.CLOSED)
