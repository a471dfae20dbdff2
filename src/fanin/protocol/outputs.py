"""T16: outputs are staged under the fence, count with the claim under which their part succeeds, and are swept else.

stage -> upload -> mark_ready -> the part's own commit -> kept
                                 or another attempt's  -> object removed -> swept -> removed once more -> forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fanin.domain.model import Claim
from fanin.protocol.steps import Room, Row, Txn

SQL = Room("outputs")

PAGE_OUTPUTS = 500
SWEEP_OUTPUTS = 500


class Placed(msgspec.Struct, frozen=True):
    """One output: whose it is, and where its object lies."""

    job_id: str
    idx: int
    attempt: int
    claim_id: str
    name: str
    root: str
    size: int = 0
    digest: str = ""

    @property
    def path(self) -> str:
        """The object's path below the root; every attempt has its own."""
        return f"{self.job_id}/{self.idx}/{self.attempt}-{self.claim_id}/{self.name}"

    @property
    def key(self) -> tuple[str, int, str, str]:
        return (self.job_id, self.idx, self.claim_id, self.name)


def stage(held: Claim, name: str, root: str) -> Txn[bool]:
    """Note an output before its object is written. False if the claim is lost: nothing is written."""
    return bool((yield SQL.stage(**_fence(held), name=name, root=root)))


def mark_ready(held: Claim, name: str, size: int, digest: str) -> Txn[bool]:
    """Note that the object is whole. False if the claim is lost meanwhile: the sweeper will remove the object."""
    return bool((yield SQL.mark_ready(**_fence(held), name=name, size=size, digest=digest)))


def counting(bucket: int, job_id: str, after: tuple[int, str]) -> Txn[list[Placed]]:
    """A page of the outputs that count, after (idx, name), in this order."""
    rows = yield SQL.counting(bucket=bucket, job_id=job_id, idx=after[0], name=after[1], limit=PAGE_OUTPUTS)
    return [_placed(job_id, row) for row in rows]


def one_counting(bucket: int, job_id: str, idx: int, name: str) -> Txn[Placed | None]:
    rows = yield SQL.one_counting(bucket=bucket, job_id=job_id, idx=idx, name=name)
    return _placed(job_id, rows[0]) if rows else None


def keep(bucket: int, grace: float) -> Txn[int]:
    """Decide the outputs that count and are older than ``grace`` seconds. How many."""
    return len((yield SQL.keep(bucket=bucket, grace=grace)))


def lost(bucket: int, grace: float) -> Txn[list[Placed]]:
    """Outputs that can never count, older than ``grace`` seconds."""
    rows = yield SQL.lost(bucket=bucket, grace=grace, limit=SWEEP_OUTPUTS)
    return [Placed(job, idx, attempt, claim, name, root) for job, idx, claim, name, attempt, root in rows]


def mark_swept(bucket: int, removed: Sequence[Placed]) -> Txn[int]:
    """Note that their objects have been removed. How many were not noted before."""
    return len((yield SQL.mark_swept(bucket=bucket, rows=sorted(output.key for output in removed))))


def swept_before(bucket: int, longest: float) -> Txn[list[Placed]]:
    """Outputs swept more than ``longest`` seconds ago: to be removed once more, then forgotten."""
    rows = yield SQL.swept_before(bucket=bucket, longest=longest, limit=SWEEP_OUTPUTS)
    return [Placed(job, idx, attempt, claim, name, root) for job, idx, claim, name, attempt, root in rows]


def forget(bucket: int, removed: Sequence[Placed]) -> Txn[int]:
    """Drop the rows of outputs that were removed for the second time. How many."""
    return len((yield SQL.forget(bucket=bucket, rows=sorted(output.key for output in removed))))


def undecided(bucket: int) -> Txn[tuple[int, float | None]]:
    """How many outputs are not decided yet, and the age of the oldest in seconds."""
    ((count, age),) = yield SQL.undecided(bucket=bucket)
    return count, age


def _fence(held: Claim) -> dict[str, Any]:
    return {
        "bucket": held.bucket, "job_id": held.job_id, "idx": held.idx, "attempt": held.attempt,
        "claim_id": held.claim_id,
    }  # fmt: skip


def _placed(job_id: str, row: Row) -> Placed:
    idx, name, root, size, digest, attempt, claim_id = row
    return Placed(job_id, idx, attempt, claim_id, name, root, size, digest)
