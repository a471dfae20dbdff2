"""T11: effects. Deferred ones are written by the accepted commit of their part and called by a relay; others are called
by the attempt itself, under the fence. The call lies between two transactions, never inside one.

    register (in finish.settle) -> take  -> call -> settle
                                   begin -> call -> settle
                                            ...        expire: nobody knows -> a person: by_hand, retry

E3: in mode ``at_most_once`` no second call is ever begun, unless a person has asked for it. In the other modes the key
makes a repeated call one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.effects import Effect, Intent, same_request
from fanin.domain.errors import NotAllowedNow, Refused
from fanin.domain.model import Claim, Report
from fanin.protocol.steps import Again, Room, Row, Txn

SQL = Room("effect")

PAGE_EFFECTS = 500
EXPIRED = "its caller did not come back in time: nobody knows whether it has happened"

Key = tuple[str, int, str]
"""(job id, idx, name)"""
Place = tuple[int, str]
"""(idx, name)"""
FIRST: Place = (-1, "")


class Call(msgspec.Struct, frozen=True, gc=False):
    """An effect that the claim ``caller_id`` is to call now. ``doubtful``: an earlier call may have happened."""

    bucket: int
    job_id: str
    idx: int
    name: str
    mode: str
    request: str
    calls: int
    doubtful: bool
    caller_id: str

    @property
    def where(self) -> Key:
        return (self.job_id, self.idx, self.name)

    @property
    def key(self) -> str:
        """What the receiver is given."""
        return identity.effect_key(*self.where)


class Said(msgspec.Struct, frozen=True, gc=False):
    """What a caller says of its call.

    ``verb`` is ``mark`` (it has happened) or ``refuse`` (no answer that says so). Of a refusal: ``doubtful`` if it may
    have happened all the same, ``final`` if calling again is of no use, else ``delay`` in seconds until the next call.
    """

    call: Call
    verb: str
    response: str | None = None
    error: str | None = None
    doubtful: bool = False
    final: bool = False
    delay: float = 0.0


class Begun(msgspec.Struct, frozen=True):
    """What an attempt that wants to call has to do.

    ``call``: call, and say what became of it. Else by ``status``: ``done`` (``response`` is the answer), ``calling``
    (another one calls, for ``seconds`` at most), ``conflict`` (the name stands for another request), ``lost`` (the
    part is held by another attempt, or its job is closed), or a state in which it may not be called, with ``error``.
    """

    status: str
    call: Call | None = None
    response: str | None = None
    error: str | None = None
    seconds: float = 0.0


def register(bucket: int, accepted: Sequence[Report]) -> Txn[None]:
    """Write the intents of reports that this transaction has accepted. Without intents: no statement."""
    rows = [
        (report.claim.job_id, report.claim.idx, i.name, i.mode, i.request, report.claim.attempt, i.calls_allowed)
        for report in accepted
        for i in report.effects
    ]
    if rows:
        yield SQL.register(bucket=bucket, rows=sorted(rows))


def begin(held: Claim, intent: Intent, caller_id: str, caller: str, seconds: float) -> Txn[Begun]:
    """The holder of a part is about to call, for ``seconds`` at most. Said again under its id it changes nothing."""
    where: dict[str, Any] = {"bucket": held.bucket, "job_id": held.job_id, "idx": held.idx}
    mine = yield SQL.hold_part(**where, attempt=held.attempt, claim_id=held.claim_id)
    if not mine:
        return Begun("lost")
    if not (yield SQL.hold_stripe(bucket=held.bucket, job_id=held.job_id, stripe=mine[0][0])):
        return Begun("lost")
    yield SQL.name_effect(
        **where, name=intent.name, mode=intent.mode, attempt=held.attempt, calls_allowed=intent.calls_allowed,
        request=intent.request,
    )  # fmt: skip
    ((_, mode, request, *_),) = yield SQL.find(**where, name=intent.name)
    if not same_request(request, intent.request):
        return Begun("conflict")
    called = yield SQL.call_now(**where, name=intent.name, caller_id=caller_id, caller=caller, seconds=seconds)
    ((status, _, _, response, error, doubtful, holder, rest),) = yield SQL.find(**where, name=intent.name)
    if status == "calling" and holder == caller_id:
        call = Call(held.bucket, *held.key, intent.name, mode, request, 1, bool(doubtful), caller_id)
        return Begun(status, call)
    if not called and status == "calling" and mode == "at_most_once" and rest <= 0:
        return Begun("unknown", error=EXPIRED)
    return Begun(status, None, response, error, max(float(rest), 0.0))


def due_in(bucket: int, names: Sequence[str]) -> Txn[float | None]:
    """Seconds until an effect of these names may be called; None if none waits."""
    found: list[float] = []
    for name in names:
        found += [float(rest) for (rest,) in (yield SQL.due_effects(bucket=bucket, name=name))]
    return min(found, default=None)


def take(bucket: int, name: str, limit: int, caller_id: str, caller: str, seconds: float) -> Txn[list[Call]]:
    """Claim at most ``limit`` effects of one name for a call that takes at most ``seconds``, those due longest first.

    Said again under the same id after a lost answer, it gives back what it took before: nothing is claimed and then
    never called.
    """
    yield SQL.claim_effects(
        bucket=bucket, name=name, limit=min(limit, limits.CLAIM_EFFECTS), caller_id=caller_id, caller=caller,
        seconds=seconds,
    )  # fmt: skip
    held = yield SQL.held_effects(bucket=bucket, caller_id=caller_id)
    return [
        Call(bucket, job_id, idx, name, mode, request, calls, bool(doubtful), caller_id)
        for job_id, idx, name, mode, request, calls, doubtful in sorted(held, key=lambda row: row[:3])
    ]


def settle(bucket: int, said: Sequence[Said]) -> Txn[dict[Key, str]]:
    """What became of calls, one of each effect. The states of those that were heard; the others are another caller's.

    Saying it again changes nothing.
    """
    rows = sorted(map(_row, said), key=lambda row: row[:3])
    settled = {
        (job_id, idx, name): status
        for job_id, idx, name, status in (yield SQL.settle_effects(bucket=bucket, rows=rows))
    }
    for one in sorted(said, key=lambda s: s.call.where):
        if one.call.where in settled:
            continue
        job_id, idx, name = one.call.where
        found = yield SQL.find(bucket=bucket, job_id=job_id, idx=idx, name=name)
        status, holder = (found[0][0], found[0][6]) if found else (None, None)
        mine = holder == one.call.caller_id
        if (one.verb == "mark" and status in ("registered", "calling", "failed", "unknown")) or (
            one.verb == "refuse" and status == "calling" and mine
        ):  # its row moved while it was written
            raise Again(lambda: settle(bucket, said))
        if (one.verb == "mark" and status == "done") or (
            one.verb == "refuse" and mine and status in ("registered", "failed", "unknown")
        ):
            settled[one.call.where] = status
    return settled


def overdue(bucket: int) -> Txn[bool]:
    """Whether `expire` would find something."""
    return bool((yield SQL.overdue_effects(bucket=bucket)))


def expire(bucket: int) -> Txn[list[Key]]:
    """Calls that did not come back and that no relay may repeat: a person decides. Which they are."""
    rows = yield SQL.expire_effects(bucket=bucket, limit=limits.CLAIM_EFFECTS, error=EXPIRED)
    return sorted((job_id, idx, name) for job_id, idx, name in rows)


def by_hand(bucket: int, where: Key, done: bool, response: str | None, note: str | None) -> Txn[str]:
    """A person says whether it has happened. The state; that of before if it was said before.

    Raises `Refused` if there is no such effect, `NotAllowedNow` while it is being called, and for what is over.
    """
    job_id, idx, name = where
    yield SQL.settle_by_hand(
        bucket=bucket, job_id=job_id, idx=idx, name=name, done=done, response=response if done else None, note=note
    )
    found = yield SQL.find(bucket=bucket, job_id=job_id, idx=idx, name=name)
    key, wanted = identity.effect_key(*where), "done" if done else "failed"
    if not found:
        raise Refused(f"there is no effect {key}: `fanin effects` lists them")
    status, rest = found[0][0], float(found[0][7])
    if status == "calling":
        raise NotAllowedNow(
            f"effect {key} is being called, for {max(rest, 0.0):.0f} s at most: say it again when it is over"
        )
    if status != wanted:
        raise NotAllowedNow(f"effect {key} is {status}, it cannot become {wanted}")
    return str(status)


def retry(bucket: int, wheres: Sequence[Key], allowance: int) -> Txn[list[Key]]:
    """Let effects that are stuck be called again by a relay, ``allowance`` times more. Which could be."""
    rows = yield SQL.retry_effects(bucket=bucket, allowance=allowance, rows=sorted(wheres))
    return sorted((job_id, idx, name) for job_id, idx, name in rows)


def refused(bucket: int) -> Txn[list[Key]]:
    """Some of the effects that were surely not performed."""
    rows = yield SQL.refused(bucket=bucket, limit=PAGE_EFFECTS)
    return [(job_id, idx, name) for job_id, idx, name in rows]


def cancel(bucket: int, job_id: str) -> Txn[int]:
    """Cancel the effects of a job that surely have not happened. How many were. For compensations."""
    return len((yield SQL.cancel_effects(bucket=bucket, job_id=job_id)))


def find(bucket: int, where: Key) -> Txn[tuple[str, str] | None]:
    """(state, request) of one effect."""
    job_id, idx, name = where
    rows = yield SQL.find(bucket=bucket, job_id=job_id, idx=idx, name=name)
    return (rows[0][0], rows[0][2]) if rows else None


def of_job(bucket: int, job_id: str, after: Place) -> Txn[tuple[list[Effect], Place | None]]:
    """A page of a job's effects after (idx, name), in this order, and where the next one begins."""
    rows = yield SQL.of_job(bucket=bucket, job_id=job_id, idx=after[0], name=after[1], limit=PAGE_EFFECTS)
    page = list(map(_effect, rows))
    return page, (page[-1].idx, page[-1].name) if len(page) == PAGE_EFFECTS else None


def newest(buckets: Sequence[int], status: str | None, limit: int) -> Txn[list[Effect]]:
    """The effects that changed last, newest first."""
    found: list[Effect] = []
    for bucket in buckets:
        rows = yield SQL.newest(bucket=bucket, everything=status is None, status=status or "", limit=limit)
        found += map(_effect, rows)
    found.sort(key=lambda e: (-(e.settled_at or e.at), e.key))
    return found[:limit]


def counts(buckets: Sequence[int]) -> Txn[dict[str, tuple[int, float]]]:
    """State to (how many, age of the oldest in seconds)."""
    found: dict[str, tuple[int, float]] = {}
    for bucket in buckets:
        for status, count, age in (yield SQL.counts(bucket=bucket)):
            before = found.get(status, (0, 0.0))
            found[status] = (before[0] + count, max(before[1], float(age)))
    return found


def _row(said: Said) -> Row:
    delay = min(float(said.delay), limits.DELAY_SECONDS_MAX) if said.delay > 0 else 0.0
    return (
        *said.call.where, said.call.caller_id, said.verb, said.final, said.doubtful, delay, said.response, said.error
    )  # fmt: skip


def _effect(row: Row) -> Effect:
    (job_id, idx, name, mode, status, relayed, doubtful, attempt, calls, calls_allowed, due_at, at, settled_at, request,
        response, error, note) = row  # fmt: skip
    answer = None if response is None else msgspec.json.decode(response)
    return Effect(
        identity.effect_key(job_id, idx, name), job_id, idx, name, mode, status, bool(relayed), bool(doubtful), attempt,
        calls, calls_allowed, due_at, at, settled_at, msgspec.json.decode(request), answer, error, note,
    )  # fmt: skip
