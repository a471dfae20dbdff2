"""T5 for a batch of successes, all of which are expected to be heard: everything is said before anything is looked at.

The same writes, guards and order of locks as in `finish.settle`. What differs is when the rows are read: after the last
statement, so that all of them can travel together. Rows that are not the expected ones mean that the transaction has
to be rolled back, and the batch settled by `finish.settle`, which finds out why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fanin.domain.model import Report
from fanin.protocol import counting, ending, finish
from fanin.protocol.steps import Room, Rows, Txn

SQL = Room("success")

Stripe = tuple[str, int]
"""(job id, stripe)"""


class Expected(NamedTuple):
    """What was said, and the rows that will answer."""

    ended: Counter[Stripe]
    changed: Rows
    counted: dict[Stripe, Rows]

    @property
    def came(self) -> bool:
        """Whether every report was heard and counted."""
        changed = Counter((job_id, stripe) for job_id, *_, stripe, _ in self.changed)
        return changed == self.ended and all(self.counted.values())

    @property
    def uncounted(self) -> set[str]:
        """Jobs whose counters do not count what is expected: they are judged or closed."""
        return {job_id for (job_id, _), rows in self.counted.items() if not rows}


def expect(bucket: int, reports: Sequence[Report]) -> Txn[Expected]:
    """Write the parts and count them down. All ``reports`` say ``succeed``."""
    ended = Counter((report.claim.job_id, report.claim.stripe) for report in reports)
    changed = yield from finish.write(bucket, sorted(map(finish.part_row, reports)))
    counted = {}
    for job_id, stripe in sorted(ended):
        counted[job_id, stripe] = yield SQL.count_expected(
            bucket=bucket, job_id=job_id, stripe=stripe, succeeded=ended[job_id, stripe]
        )
    return Expected(ended, changed, counted)


def end(bucket: int, expected: Expected, worker: str) -> Txn[frozenset[str]]:
    """End the jobs whose last stripe has become empty. Which they are."""
    emptied: Counter[str] = Counter()
    for (job_id, _), ((remaining, sealed),) in expected.counted.items():
        emptied[job_id] += int(remaining == 0 and bool(sealed))
    counted = yield from counting.emptied_jobs(bucket, emptied)
    held = ending.Held.of(emptied, counted.going_on)
    yield from ending.end(bucket, counted.endings, finish.last_of(expected.changed, worker), held)
    return frozenset(counted.endings)
