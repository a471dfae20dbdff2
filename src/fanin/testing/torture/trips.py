"""The flows of a torture: three steps, each with an undo; in a known share of them the last one must fail."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec

import fanin
from fanin.domain.policy import Backoff
from fanin.flow import FlowRun
from fanin.testing.torture.journal import Journal
from fanin.testing.torture.plan import FLOW_EVERY, LEASE_SECONDS

ATTEMPTS = 1000
"""No step fails because its workers were killed: only those that must."""
BACKOFF = Backoff(first=0.05, factor=1.5, cap=0.4)
LEGS, PAY, LAST = "legs", "pay", "last"


class Trip(msgspec.Struct, frozen=True):
    """One flow: a step of ``legs`` parts, one call, and one more that fails for good if the flow is ``doomed``."""

    number: int
    key: str
    legs: int
    doomed: bool

    @property
    def parts(self) -> int:
        """All parts: of the steps, and of what undoes those that were done, each job of that made by one more part."""
        return self.legs + 2 + (self.legs + 3 if self.doomed else 0)


class Leg(msgspec.Struct, frozen=True):
    """One part's argument."""

    trip: int
    step: str
    n: int = 0
    fails: int = 0
    doomed: bool = False
    milliseconds: int = 0


def trip(seed: int, number: int) -> Trip:
    """The flow of a number."""
    draw = random.Random(f"{seed}/{number}/trip")
    return Trip(number, f"torture/{seed}/{number}", draw.choice((1, 2, 5)), number // FLOW_EVERY % 2 == 0)


def _legs(seed: int, wanted: Trip) -> list[Leg]:
    draw = random.Random(f"{seed}/{wanted.number}/legs")
    return [
        Leg(wanted.number, LEGS, n, fails=int(draw.random() < 0.1), milliseconds=draw.randrange(0, 60))
        for n in range(wanted.legs)
    ]


class TripTasks:
    """The handlers of the steps, and the one that undoes them. Results say when: the clock is that of the machine."""

    def __init__(self, app: fanin.App, journal: Journal) -> None:
        self._app = app
        self._journal = journal
        made = app.task(name="torture.leg", lease=LEASE_SECONDS, attempts=ATTEMPTS, backoff=BACKOFF)
        self.leg: Any = made(self._leg)
        made = app.task(name="torture.undo", lease=LEASE_SECONDS, attempts=ATTEMPTS, backoff=BACKOFF)
        self.undo: Any = made(self._undo)

    def start(self, seed: int, wanted: Trip) -> FlowRun:
        """Write the flow; the same key again finds it."""
        flow = self._app.flow("torture.trip", key=wanted.key)
        legs = flow.map(self.leg, _legs(seed, wanted), name=LEGS, undo=self.undo)
        pay = flow.step(self.leg, Leg(wanted.number, PAY), name=PAY, after=legs, undo=self.undo)
        last = Leg(wanted.number, LAST, doomed=wanted.doomed)
        flow.step(self.leg, last, name=LAST, after=pay, undo=self.undo)
        return flow.start()

    def _leg(self, leg: Leg) -> dict[str, Any]:
        began = time.monotonic()
        part = fanin.current()
        self._journal.write(e="body", j=part.job_id, i=part.idx, a=part.attempt)
        time.sleep(leg.milliseconds / 1000)
        if leg.doomed:
            raise fanin.Permanent("this flow must be undone")
        if part.attempt <= leg.fails:
            raise ValueError(f"attempt {part.attempt}")
        return {"step": leg.step, "n": leg.n, "trip": leg.trip, "began": began, "at": time.monotonic()}

    def _undo(self, done: dict[str, Any]) -> dict[str, Any]:
        began = time.monotonic()
        part = fanin.current()
        self._journal.write(e="body", j=part.job_id, i=part.idx, a=part.attempt)
        self._journal.write(e="undo", t=done["trip"], s=done["step"], n=done["n"], at=began)
        return {"step": done["step"], "n": done["n"], "trip": done["trip"], "began": began, "at": time.monotonic()}
