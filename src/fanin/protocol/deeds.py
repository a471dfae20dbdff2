"""What operators do is written down with the deed: who, when, why."""

from __future__ import annotations

from typing import Any, NamedTuple

from fanin.domain import identity, limits
from fanin.domain.errors import BadOption, shown
from fanin.protocol.steps import Room, Txn

SQL = Room("deeds")


class Deed(NamedTuple):
    """Who does something to a job or a flow, and why; both for people. ``id`` is made once, before the first try: by it
    a deed that is said again, because its answer was lost, is known."""

    id: str
    who: str | None = None
    reason: str | None = None


def deed(who: str | None = None, reason: str | None = None) -> Deed:
    """Raises `BadOption` for a text that is too long or cannot be stored."""
    texts: tuple[tuple[str, Any, int], ...] = (("by", who, limits.NAME_CHARS), ("reason", reason, limits.REASON_CHARS))
    for name, text, limit in texts:
        if text is not None and not (isinstance(text, str) and len(text) <= limit and storable(text)):
            raise BadOption(f"{name}={shown(text)}: use a text of at most {limit} characters, no NUL or lone surrogate")
    if who == "":
        raise BadOption("by='': give the name of the one who does it, or None for the user of this process")
    return Deed(identity.new_claim_id(), who, reason)


def write_down(bucket: int, job_id: str, what: str, done: Deed, idx: int | None = None) -> Txn[None]:
    """``job_id``: of a job, with the part as ``idx``, or of a flow, with the step."""
    yield SQL.write_down(bucket=bucket, job_id=job_id, id=done.id, what=what, idx=idx, who=done.who, reason=done.reason)


def written(bucket: int, of: str, done: Deed) -> Txn[int | None]:
    """The run in which this deed was done to a job or a flow; None if it was not.

    Asked under the lock that the deed takes first: what was sent before, and is still under way, has committed then.
    """
    rows = yield SQL.written(bucket=bucket, job_id=of, id=done.id)
    return int(rows[0][0]) if rows else None


def storable(text: str) -> bool:
    """Whether any database can hold it."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
