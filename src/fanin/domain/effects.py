"""Effects: what parts want done outside the database, and what the receiver of a call can promise."""

from __future__ import annotations

from typing import Any

import msgspec

MODES = ("idempotent", "probe", "at_most_once")
"""``idempotent``: the receiver honours the key, so a call may be repeated. ``probe``: it can be asked whether a call
has taken effect. ``at_most_once``: neither, so a call is never repeated unless a person says so."""


class Intent(msgspec.Struct, frozen=True, gc=False):
    """What an attempt wants done: ``request`` is JSON, ``calls_allowed`` the calls that may be made of it."""

    name: str
    mode: str
    request: str
    calls_allowed: int


class Effect(msgspec.Struct, frozen=True):
    """An effect as it stands in the database. Times are seconds since the epoch, UTC.

    ``key`` names it to the receiver and to people. ``relayed``: a worker's effect loop calls, else the part's own
    attempt. ``doubtful``: a call ended without a clear answer, so it may have happened. ``calls`` counts the calls that
    were begun. ``due_at``: the next call while ``registered``, the end of the call while ``calling``. ``note``: what a
    person said when it was settled by hand.
    """

    key: str
    job_id: str
    idx: int
    name: str
    mode: str
    status: str
    relayed: bool
    doubtful: bool
    attempt: int
    calls: int
    calls_allowed: int
    due_at: float
    at: float
    settled_at: float | None
    request: Any
    response: Any
    error: str | None
    note: str | None


def same_request(one: str, other: str) -> bool:
    """Whether two requests say the same, whatever the order of their fields."""
    return one == other or msgspec.json.decode(one) == msgspec.json.decode(other)
