"""The loop that fires schedules, in every worker of an application that declares some.

Any number of them may run: each slot is decided once, by a transaction. What is read before it (which slot is next, the
items of its job) may be out of date by then; then the transaction finds the mark moved, and nothing is written.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fanin.domain import limits
from fanin.domain.errors import Unavailable
from fanin.domain.model import ScheduleRow
from fanin.domain.timing import Rule, Timing, choose
from fanin.protocol import schedule
from fanin.protocol.schedule import Prepared, Slot
from fanin.runtime.background import Background
from fanin.stores.base import Store

log = logging.getLogger("fanin")

PERIOD_SECONDS = 1.0
SOONEST_SECONDS = 0.02
AGAIN_SECONDS = 5.0
"""A schedule whose items could not be had is tried again after this, then after twice as long, up to a minute."""
LATEST_SECONDS = 60.0


class Declared(Protocol):
    """A schedule as the code says it."""

    @property
    def name(self) -> str: ...
    @property
    def timing(self) -> Timing: ...
    @property
    def rule(self) -> Rule: ...
    def _texts(self) -> tuple[str, str]: ...
    def _prepare(self, slot: float, by_hand: bool = False) -> Prepared: ...


class Scheduler:
    """Decides the slots that have come. ``found`` wakes the worker."""

    def __init__(self, store: Store, schedules: Mapping[str, Declared], found: Callable[[], None]) -> None:
        self._store = store
        self._schedules = schedules
        self._found = found
        self._known: set[str] = set()
        self._rest: dict[str, tuple[float, float]] = {}

    def background(self) -> Background:
        return Background("scheduler", self.step, every=PERIOD_SECONDS, first=random.uniform(0, 0.2))

    def step(self) -> float:
        """One round over all schedules. Returns the seconds until the next."""
        pause = PERIOD_SECONDS * random.uniform(0.7, 1.0)
        buckets: dict[int, list[Declared]] = {}
        for one in self._schedules.values():
            buckets.setdefault(schedule.bucket_of(one.name, self._store.buckets), []).append(one)
        for bucket, some in sorted(buckets.items()):
            for one in some:
                if one.name not in self._known:
                    timing, spec = one._texts()
                    self._store.run(lambda: schedule.declare(bucket, one.name, timing, spec))
                    self._known.add(one.name)
            seen = self._store.read(lambda: schedule.look(bucket))
            for one in some:
                if (row := seen.rows.get(one.name)) is None:
                    self._known.discard(one.name)  # forgotten by an operator: it begins anew
                else:
                    pause = min(pause, self._tend(bucket, one, row, seen.now))
        return max(pause, SOONEST_SECONDS)

    def _tend(self, bucket: int, one: Declared, row: ScheduleRow, now: float) -> float:
        """Decide at most one slot. Seconds until it should be looked at again."""
        until, wait = self._rest.get(one.name, (0.0, AGAIN_SECONDS))
        if time.monotonic() < until:
            return PERIOD_SECONDS
        try:
            pause = self._decide(bucket, one, row, now)
        except Unavailable:
            raise
        except Exception as problem:
            self._rest[one.name] = (time.monotonic() + wait, min(wait * 2, LATEST_SECONDS))
            log.exception("schedule %s cannot be fired; trying again in %.0f s", one.name, wait)
            said = f"{type(problem).__name__}: {problem}".replace("\0", "\\0")[: limits.REASON_CHARS]
            said = said.encode(errors="backslashreplace").decode()
            self._store.run(lambda: schedule.note_error(bucket, one.name, said))
            return PERIOD_SECONDS
        self._rest.pop(one.name, None)
        return pause

    def _decide(self, bucket: int, one: Declared, row: ScheduleRow, now: float) -> float:
        if row.asked_at is not None:
            asked = Slot(one.name, row.asked_at, overlap=one.rule.overlap, by_hand=True)
            if self._fire(bucket, one, asked):
                return 0.0
        if row.paused_at is not None or (coming := one.timing.after(row.mark)) is None:
            return PERIOD_SECONDS
        if coming > now:
            return coming - now
        free_at = None
        if one.rule.overlap == "queue":
            live, free_at = self._store.read(lambda: schedule.latest(bucket, row.job_id))
            if live:
                return PERIOD_SECONDS
        chosen = choose(one.timing, one.rule, row.mark, now, free_at)
        if chosen is None:
            return PERIOD_SECONDS
        slot = Slot(one.name, chosen.slot, row.mark, chosen.missed, one.rule.overlap)
        if not chosen.fire:
            if self._store.run(lambda: schedule.pass_over(bucket, slot)):
                log.warning("schedule %s: %d slots were missed", one.name, slot.missed)
            return 0.0
        return 0.0 if self._fire(bucket, one, slot) else PERIOD_SECONDS

    def _fire(self, bucket: int, one: Declared, slot: Slot) -> bool:
        """Whether the slot was decided."""
        prepared = one._prepare(slot.at, slot.by_hand)
        fired = self._store.run(lambda: schedule.fire(bucket, slot, prepared))
        if fired.what == "fired":
            log.info("schedule %s: job %s for the slot at %s", one.name, fired.job_id, one.timing.local(slot.at))
            self._found()
        elif fired.what == "skipped":
            log.warning("schedule %s: skipped, job %s of the firing before is still live", one.name, fired.job_id)
        return fired.what in ("fired", "skipped")


def schedulers(store: Store, schedules: Mapping[str, Any], found: Callable[[], None]) -> list[Background]:
    """The thread that a worker needs for its application's schedules, if there are any."""
    return [Scheduler(store, schedules, found).background()] if schedules else []
