"""A job grows: a live part adds parts to its own job, each of which has a key that the job had not seen.

In the part's own commit: `finish.settle` hands the spawns of accepted successes to `counting.count`, which holds all
stripes of the job and calls `grow` between the count-down and the look whether anything is left. At once: `spawn`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

from fanin.domain import limits
from fanin.domain.errors import BadOption, LimitExceeded, Refused
from fanin.domain.model import Claim
from fanin.protocol.steps import Room, Txn, one

SQL = Room("growth")
T = TypeVar("T")

Item = tuple[str, str]
"""(key, payload) of a part that is wanted."""


class Spawner(NamedTuple):
    """A part that adds others to its job, on its own counter."""

    idx: int
    stripe: int
    items: Sequence[Item]


class Grown(NamedTuple):
    """``left``: (remaining, sealed) of each counter to which parts were added. ``fresh``: how many there are of them.
    ``refused``: the spawners whose parts may not be added, and why; then all must be rolled back."""

    fresh: int = 0
    left: dict[int, tuple[int, bool]] = {}  # noqa: RUF012 - never written
    refused: dict[int, Refused] = {}  # noqa: RUF012 - never written


def grow(bucket: int, job_id: str, spawners: Iterable[Spawner]) -> Txn[Grown]:
    """Add what the spawners want and the job has not seen. All stripes of the job are held, and open."""
    wanted = sorted(spawners)
    task, queue, priority, attempts, turn, _, width, spawn_from = one((yield SQL.growing(bucket=bucket, job_id=job_id)))
    if width is None:
        return Grown(refused={spawner.idx: does_not_grow(job_id) for spawner in wanted})
    new = yield from add_keys(bucket, job_id, (key for spawner in wanted for key, _ in spawner.items))
    created, spawned = map(int, one((yield SQL.totals(bucket=bucket, job_id=job_id))))
    chosen, refused = _choose(wanted, new, width - created)
    if refused:
        return Grown(
            refused={
                idx: LimitExceeded(
                    f"job {job_id} may have {width} parts and has {created}: the {count} that this part adds are too "
                    "many. Let parts add fewer, or create the job with a larger grows=…"
                )
                for idx, count in refused.items()
            }
        )
    if not chosen:
        return Grown()
    first = int(one((yield SQL.first_turn(bucket=bucket, queue=queue, priority=priority)))[0])
    rows = [
        (spawn_from + spawned + n, spawner.stripe, max(turn + created + n, first), spawner.idx, payload)
        for n, (spawner, payload) in enumerate(chosen)
    ]
    for chunk in chunks(rows):
        yield SQL.add_parts(
            bucket=bucket, job_id=job_id, rows=chunk, task=task, queue=queue, priority=priority, attempts=attempts,
            delay=0.0,
        )  # fmt: skip
    left: dict[int, tuple[int, bool]] = {}
    for stripe in sorted({row[1] for row in rows}):
        fresh = sum(row[1] == stripe for row in rows)
        counted = yield SQL.count_spawned(bucket=bucket, job_id=job_id, stripe=stripe, fresh=fresh)
        remaining, sealed = one(counted)
        left[stripe] = remaining, bool(sealed)
    yield SQL.ring(queue=queue)
    return Grown(len(rows), left)


def spawn(held: Claim, items: Sequence[Item]) -> Txn[int | None]:
    """Add parts to the job of a held part, now. How many were new; None if the claim is lost or the job closed.

    Saying it again adds nothing. Raises `LimitExceeded` past the width of the job, `BadOption` if it does not grow.
    """
    bucket, job_id = held.bucket, held.job_id
    rows = yield SQL.hold_part(bucket=bucket, job_id=job_id, idx=held.idx, attempt=held.attempt, claim_id=held.claim_id)
    if not rows:
        return None
    if any(closed for *_, closed in (yield SQL.lock_stripes(bucket=bucket, job_id=job_id))):
        return None
    grown = yield from grow(bucket, job_id, [Spawner(held.idx, rows[0][0], items)])
    for problem in grown.refused.values():
        raise problem
    return grown.fresh


def add_keys(bucket: int, job_id: str, keys: Iterable[str]) -> Txn[set[str]]:
    """Note keys that the job may not have seen. Those that it had not."""
    new: set[str] = set()
    for chunk in chunks(sorted(set(keys))):
        new.update(str(key) for (key,) in (yield SQL.add_keys(bucket=bucket, job_id=job_id, keys=chunk)))
    return new


def does_not_grow(job_id: str) -> BadOption:
    return BadOption(f"job {job_id} does not grow: create it with app.map(…, grows=True) or app.open(…, grows=True)")


def chunks(rows: Iterable[T]) -> Iterator[list[T]]:
    """Lists that one INSERT can carry."""
    stream = iter(rows)
    while chunk := list(islice(stream, limits.CHUNK_PARTS)):
        yield chunk


def _choose(wanted: Sequence[Spawner], new: set[str], room: int) -> tuple[list[tuple[Spawner, str]], dict[int, int]]:
    """(spawner, payload) of the parts to make, each key once; and the spawners for which there is no room."""
    chosen: list[tuple[Spawner, str]] = []
    refused: dict[int, int] = {}
    taken: set[str] = set()
    for spawner in wanted:
        mine: dict[str, str] = {}
        for key, payload in spawner.items:
            if key in new and key not in taken:
                mine.setdefault(key, payload)
        if len(mine) > room - len(chosen):
            refused[spawner.idx] = len(mine)
            continue
        taken.update(mine)
        chosen += [(spawner, payload) for payload in mine.values()]
    return chosen, refused
