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


class Said(msgspec.Struct, frozen=True):
    """What a relay says about an event that it holds.

    ``verb`` is ``mark`` (the receiver has acknowledged it), ``refuse`` (it waits ``delay`` seconds for its next try),
    ``park`` (it waits for a person) or ``release`` (it was not sent at all; costs no try). ``error`` goes with a
    refusal.
    """

    key: str
    verb: str
    delay: float = 0.0
    error: str | None = None


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
    spent = [Said(e.key, "park", error=LOST) for e in events if e.tries > limits.EVENT_TRIES]
    if spent:
        yield from settle(bucket, claim_id, spent)
    return [event for event in events if event.tries <= limits.EVENT_TRIES]


def settle(bucket: int, claim_id: str, said: Sequence[Said]) -> Txn[list[str]]:
    """What became of the events of one claim. Returns the keys that another relay holds, or has settled meanwhile.

    Saying it again changes nothing.
    """
    rows = sorted((s.key, s.verb, min(float(s.delay), limits.DELAY_SECONDS_MAX), s.error) for s in said)
    settled = {key for (key,) in (yield SQL.settle_events(bucket=bucket, claim_id=claim_id, rows=rows))}
    lost: list[str] = []
    for key in (row[0] for row in rows if row[0] not in settled):
        standing = yield SQL.look_at_event(bucket=bucket, event_key=key)
        if standing == [(claim_id, "claimed")]:  # its row moved while it was written
            raise Again(lambda: settle(bucket, claim_id, said))
        if not standing or standing[0][0] != claim_id:
            lost.append(key)
    return lost


def retry(bucket: int, keys: Sequence[str] | None = None) -> Txn[int]:
    """Let parked events wait again, all or those of ``keys``. How many; call it until it is 0."""
    rows = yield SQL.retry_parked(
        bucket=bucket, everything=keys is None, keys=list(keys or ()), limit=limits.CLAIM_EVENTS
    )
    return len(rows)
