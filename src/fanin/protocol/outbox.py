"""T12: claim events, and say what became of them. Publishing lies between the two, outside any transaction.

At least once: a relay that dies between the acknowledgement and the mark leaves an event that is sent again, with the
same key and the same bytes. A lease is a hint for liveness only; the claim id decides who is heard.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fanin.domain import limits
from fanin.domain.events import Event
from fanin.protocol.steps import Again, Room, Rows, Statement, Txn

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
    return (yield from _taken(bucket, claim_id, (yield _claim(bucket, limit, lease, claim_id, relay))))


def settle(bucket: int, claim_id: str, said: Sequence[Said]) -> Txn[list[str]]:
    """What became of the events of one claim. Returns the keys that another relay holds, or has settled meanwhile.

    Saying it again changes nothing.
    """
    settled = yield _write(bucket, claim_id, said)
    lost = yield from _missed(bucket, claim_id, said, settled)
    if lost is None:
        raise Again(lambda: settle(bucket, claim_id, said))
    return lost


def exchange(
    bucket: int, claim_id: str, said: Sequence[Said], limit: int, lease: float, following: str, relay: str
) -> Txn[tuple[list[str], list[Event]]]:
    """`settle` for the claim ``claim_id``, then `take` as ``following``: one commit, and one journey before it."""
    settled = yield _write(bucket, claim_id, said)
    claimed = yield _claim(bucket, limit, lease, following, relay)
    lost = yield from _missed(bucket, claim_id, said, settled)
    if lost is None:
        raise Again(lambda: exchange(bucket, claim_id, said, limit, lease, following, relay))
    return lost, (yield from _taken(bucket, following, claimed))


def _claim(bucket: int, limit: int, lease: float, claim_id: str, relay: str) -> Statement:
    return SQL.claim_events(
        bucket=bucket, limit=min(limit, limits.CLAIM_EVENTS), lease=lease, claim_id=claim_id, relay=relay
    )


def _taken(bucket: int, claim_id: str, rows: Rows) -> Txn[list[Event]]:
    events = sorted((Event(bucket, *row) for row in rows), key=lambda e: (e.at, e.job_id, e.seq))
    spent = [Said(e.key, "park", error=LOST) for e in events if e.tries > limits.EVENT_TRIES]
    if spent:
        yield from settle(bucket, claim_id, spent)
    return [event for event in events if event.tries <= limits.EVENT_TRIES]


def _write(bucket: int, claim_id: str, said: Sequence[Said]) -> Statement:
    rows = sorted((s.key, s.verb, min(float(s.delay), limits.DELAY_SECONDS_MAX), s.error) for s in said)
    return SQL.settle_events(bucket=bucket, claim_id=claim_id, rows=rows)


def _missed(bucket: int, claim_id: str, said: Sequence[Said], rows: Rows) -> Txn[list[str] | None]:
    """The keys that are not ours any more. None: a row moved while it was written, all must be said again."""
    settled = {key for (key,) in rows}
    lost: list[str] = []
    for key in sorted(s.key for s in said if s.key not in settled):
        standing = yield SQL.look_at_event(bucket=bucket, event_key=key)
        if standing == [(claim_id, "claimed")]:
            return None
        if not standing or standing[0][0] != claim_id:
            lost.append(key)
    return lost


def retry(bucket: int, keys: Sequence[str] | None = None) -> Txn[int]:
    """Let parked events wait again, all or those of ``keys``. How many; call it until it is 0."""
    rows = yield SQL.retry_parked(
        bucket=bucket, everything=keys is None, keys=list(keys or ()), limit=limits.CLAIM_EVENTS
    )
    return len(rows)
