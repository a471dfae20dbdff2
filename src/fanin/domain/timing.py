"""When a schedule fires: the slots of a cron expression in a time zone, and what becomes of those that were missed.

A slot is a moment, in seconds since the epoch. A local time that a change of the clock leaves out has its slot where
the clock goes on; one that comes twice has its slot at the first. That is so for fixed times of day, as in Debian's
cron; an expression whose minute or hour begins with ``*`` counts by elapsed time, so it has no slots in what is left
out, and twice as many in what comes twice.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from cronsim import CronSim, CronSimError

from fanin.domain import limits
from fanin.domain.errors import BadOption, shown

MISFIRES = ("skip", "once", "all")
OVERLAPS = ("skip", "queue", "allow")
NAMED = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_FOLD_SECONDS = 3 * 3600
"""No clock is set back by more."""
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """A checked cron expression, its zone, and the bounds between which it has slots; both belong to it."""

    cron: str
    tz: str = "UTC"
    start: float | None = None
    end: float | None = None

    def after(self, moment: float) -> float | None:
        """The first slot after ``moment``; None if there is none for fifty years, or the end comes before it."""
        low = self._low(moment)
        # A local time that comes twice says nothing of the first or the second: what lies before is dropped here.
        slot = next((s for s in self._slots(low - 1) if s > low), None)
        return slot if slot is None or self.end is None or slot <= self.end else None

    def latest(self, after: float, until: float, limit: int) -> list[float]:
        """The slots after ``after`` and up to ``until``, the latest first, at most ``limit``."""
        low = self._low(after)
        high = until if self.end is None else min(until, self.end)
        found: list[float] = []
        for slot in takewhile(lambda s: s > low, self._slots(high + _FOLD_SECONDS, reverse=True)):
            if slot <= high:
                found.append(slot)
            if len(found) >= limit:
                break
        return found

    def _low(self, after: float) -> float:
        return after if self.start is None else max(after, math.nextafter(self.start, 0))

    def local(self, moment: float) -> datetime:
        """A moment as the schedule's own zone has it."""
        return datetime.fromtimestamp(moment, zone(self.tz))

    def _slots(self, moment: float, reverse: bool = False) -> Iterator[float]:
        for at in CronSim(NAMED.get(self.cron, self.cron), self.local(moment), reverse):
            yield at.timestamp()


class Rule(msgspec.Struct, frozen=True):
    """What becomes of slots that come late (``misfire``), and while the job of the one before is live (``overlap``)."""

    misfire: str = "once"
    overlap: str = "skip"
    grace: float = 60.0
    catch_up: int = 100
    jitter: float = 0.0


class Choice(NamedTuple):
    """The slot to decide next: fire it, or (``fire`` false) pass over it. ``missed``: passed over with or before it."""

    slot: float
    fire: bool
    missed: int


def choose(timing: Timing, rule: Rule, mark: float, now: float, free_at: float | None = None) -> Choice | None:
    """What to do about the slots after ``mark`` that have come, or None if none has.

    free_at: when the job before ended, if it was waited for: nothing is late before that.
    """
    due = timing.latest(mark, now, limits.SCHEDULE_MISSED_SLOTS)
    if not due:
        return None
    if rule.misfire == "all":
        wanted = due[: rule.catch_up]
        return Choice(wanted[-1], True, len(due) - len(wanted))
    late = now - max(due[0], free_at or 0.0)
    if rule.misfire == "skip" and late > rule.grace:
        return Choice(due[0], False, len(due))
    return Choice(due[0], True, len(due) - 1)


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo:
    """The time zone of a name. Raises `BadOption` if there is none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        near = difflib.get_close_matches(str(name), available_timezones(), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ", such as 'Europe/Berlin' or 'UTC'"
        raise BadOption(f"tz={shown(name)} is no time zone: give a name of the IANA database{hint}") from None


def make_timing(cron: str, tz: str, start: datetime | None, end: datetime | None) -> Timing:
    """The timing of the options of `App.schedule`. Raises `BadOption`."""
    if not isinstance(tz, str):
        raise BadOption(f"tz={shown(tz)} is no time zone: give a name of the IANA database, such as 'Europe/Berlin'")
    zone(tz)
    text = " ".join(str(cron).split())
    timing = Timing(text, tz, _bound(start, "start"), _bound(end, "end"))
    if timing.start is not None and timing.end is not None and timing.end < timing.start:
        raise BadOption(f"end={end} comes before start={start}")
    hint = "write minute, hour, day, month and weekday, as in '0 2 * * *' for two o'clock every night"
    try:
        text = NAMED.get(text, text)
        first = next(CronSim(text, _LONG_AGO), None)
    except CronSimError as problem:
        raise BadOption(f"cron={shown(cron)}: {str(problem).lower()}; {hint}") from None
    if first is None:
        raise BadOption(f"cron={shown(cron)} names a day that never comes")
    fields = text.split()
    if len(fields) == 6 and not (fields[1].startswith("*") and fields[2].startswith("*")):
        raise BadOption(
            f"cron={shown(cron)}: with seconds in front, the minute and the hour must begin with *; else {hint}"
        )
    return timing


def make_rule(misfire: str, overlap: str, grace: float, catch_up: int, jitter: float) -> Rule:
    """The rule of the options of `App.schedule`. Raises `BadOption`."""
    if misfire not in MISFIRES:
        raise BadOption(f"misfire={shown(misfire)}: there are {', '.join(MISFIRES)}")
    if overlap not in OVERLAPS:
        raise BadOption(f"overlap={shown(overlap)}: there are {', '.join(OVERLAPS)}")
    if misfire == "all" and overlap == "skip":
        raise BadOption(
            "misfire='all' with overlap='skip' would skip all but the first of what was missed: take overlap='queue' "
            "(one after the other) or overlap='allow' (all at once)"
        )
    if type(catch_up) is not int or not 1 <= catch_up <= limits.SCHEDULE_CATCH_UP_SLOTS:
        raise BadOption(f"catch_up={shown(catch_up)}: give a whole number from 1 to {limits.SCHEDULE_CATCH_UP_SLOTS}")
    return Rule(misfire, overlap, grace, catch_up, jitter)


def _bound(moment: Any, name: str) -> float | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise BadOption(f"{name}={shown(moment)}: give a datetime with a time zone, such as datetime(…, tzinfo=UTC)")
    return float(moment.timestamp())


def soon(timing: Timing, mark: float, count: int) -> list[float]:
    """The next ``count`` slots after ``mark``."""
    found: list[float] = []
    while len(found) < count and (slot := timing.after(found[-1] if found else mark)) is not None:
        found.append(slot)
    return found
