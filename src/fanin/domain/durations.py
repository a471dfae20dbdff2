"""Durations as people write them: ``30``, ``"45s"``, ``"10m"``, ``"1h30m"``, ``"2d"``, or a timedelta. And instants: a
datetime with a zone, or seconds since the epoch."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any

from fanin.domain import limits
from fanin.domain.errors import BadOption, shown

Duration = float | int | str | timedelta
Instant = float | int | datetime

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PIECE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smhdw])")
_WHOLE = re.compile(r"(?:\s*\d+(?:\.\d+)?\s*(?:ms|[smhdw]))+\s*")


def seconds(value: Duration, name: str = "duration") -> float:
    """``value`` in seconds. A bare number is seconds. Raises `BadOption` naming ``name`` for anything else."""
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, float):
        found = value
    elif isinstance(value, int) and not isinstance(value, bool):
        found = float(max(-1, min(value, limits.DELAY_SECONDS_MAX)))  # an int may be too large for a float
    elif isinstance(value, str) and _WHOLE.fullmatch(value):
        found = sum(float(number) * _UNITS[unit] for number, unit in _PIECE.findall(value))
    elif isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*", value):
        found = float(value)
    else:
        raise BadOption(f"{name}={shown(value)}: give seconds, or a text such as '30s', '10m', '1h30m' or '2d'")
    if not math.isfinite(found) or found < 0:
        raise BadOption(f"{name}={shown(value)}: must be zero or more, and finite")
    return min(found, limits.DELAY_SECONDS_MAX)


def wait_of(value: Any) -> float:
    """`seconds` for what a handler asks for: never an error, which would hide what the handler says by it. At once for
    what is no time or lies below zero."""
    if isinstance(value, float) and value == math.inf:
        return limits.DELAY_SECONDS_MAX
    try:
        return seconds(value)
    except Exception:  # of a value that cannot be shown, too
        return 0.0


def instant(value: Instant, name: str) -> float:
    """``value`` in seconds since the epoch. Raises `BadOption` naming ``name``, also for a datetime without a zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.timestamp()
    if isinstance(value, float | int) and not isinstance(value, bool) and abs(value) <= limits.INSTANT_SECONDS_MAX:
        return float(value)
    raise BadOption(
        f"{name}={shown(value)}: give a datetime with a time zone, such as datetime(2027, 1, 1, tzinfo=UTC), or "
        "seconds since the epoch"
    )


def deadline(after: Duration | None, at: Instant | None) -> tuple[float | None, float | None]:
    """``give_up_after`` and ``give_up_at``, at most one of them. Raises `BadOption`."""
    if after is not None and at is not None:
        raise BadOption(f"give_up_after={shown(after)} and give_up_at={shown(at)}: give one of them")
    return (
        None if after is None else seconds(after, "give_up_after"), None if at is None else instant(at, "give_up_at")
    )  # fmt: skip


def span(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``3 m 5 s``, ``2 h 10 m``, ``4 d 3 h``."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, name, smaller, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {small_name}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"
