"""T12: claim events, and say what became of them. Publishing lies between the two, outside any transaction.

At least once: a relay that dies between the acknowledgement and the mark leaves an event that is sent again, with the
same key and the same bytes. A lease is a hint for liveness only; the claim id decides who is heard.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fanin.domain import limits
from fanin.domain.events import Event
from fanin.protocol.steps import Again, Room, Txn

SQL = Room("outbox")

LOST = "its relay was lost each time that it was to be published"


class Refusal(msgspec.Struct, frozen=True):
    """An event that the receiver did not take: it waits ``delay`` seconds, or is parked."""

    key: str
    delay: float
    error: str
    park: bool = False


def due_in(bucket: int) -> Txn[float | None]:
    """Seconds until the next event may be claimed; None if none waits."""
    rows = yield SQL.due_events(bucket=bucket)
    return float(rows[0][0]) if rows else None


def take(bucket: int, limit: int, lease: float, claim_id: str, relay: str) -> Txn[list[Event]]:
    """Claim at most ``limit`` events for ``lease`` seconds, oldest first. Of each job the earliest alone.

    An event whose relay was lost again and again while it held it is parked here.
    """
    rows = yield SQL.claim_events(
        bucket=bucket, limit=min(limit, limits.CLAIM_EVENTS), lease=lease, claim_id=claim_id, relay=relay
    )
    events = sorted((Event(bucket, *row) for row in rows), key=lambda e: (e.at, e.job_id, e.seq))
    spent = [Refusal(e.key, 0.0, LOST, True) for e in events if e.tries > limits.EVENT_TRIES]
    yield from _refuse(bucket, claim_id, spent)
    return [event for event in events if event.tries <= limits.EVENT_TRIES]


def settle(
    bucket: int,
    claim_id: str,
    published: Sequence[str],
    refused: Sequence[Refusal],
    unsent: Sequence[str],
    delay: float,
) -> Txn[list[str]]:
    """What became of the events of one claim. Returns the keys that another relay holds or has published meanwhile.

    ``unsent`` ones wait ``delay`` seconds, which costs no try. Saying it again changes nothing.
    """
    done: set[str] = set()
    if published:
        done |= {key for (key,) in (yield SQL.mark_published(bucket=bucket, claim_id=claim_id, keys=sorted(published)))}
    done |= yield from _refuse(bucket, claim_id, refused)
    if unsent:
        given = yield SQL.give_back(bucket=bucket, claim_id=claim_id, keys=sorted(unsent), delay=delay)
        done |= {key for (key,) in given}
    missing = sorted({*published, *(r.key for r in refused), *unsent} - done)
    if not missing:
        return []
    standing = {
        key: (holder, status) for key, holder, status in (yield SQL.look_at_events(bucket=bucket, keys=missing))
    }
    if any(standing.get(key) == (claim_id, "claimed") for key in missing):  # its row moved while it was written
        raise Again(lambda: settle(bucket, claim_id, published, refused, unsent, delay))
    return [key for key in missing if standing.get(key, (None, None))[0] != claim_id]


def retry(bucket: int, keys: Sequence[str] | None = None) -> Txn[int]:
    """Let parked events wait again, all or those of ``keys``. How many; call it until it is 0."""
    rows = yield SQL.retry_parked(
        bucket=bucket, everything=keys is None, keys=list(keys or ()), limit=limits.CLAIM_EVENTS
    )
    return len(rows)


def _refuse(bucket: int, claim_id: str, refused: Sequence[Refusal]) -> Txn[set[str]]:
    if not refused:
        return set()
    rows = sorted((r.key, min(float(r.delay), limits.DELAY_SECONDS_MAX), r.error, r.park) for r in refused)
    return {key for (key,) in (yield SQL.refuse_events(bucket=bucket, claim_id=claim_id, rows=rows))}
