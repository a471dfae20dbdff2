"""Many cases in one database, one after the other, and what was wrong in any of them."""

from __future__ import annotations

import itertools
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import fanin
from fanin.testing.invariants import violations
from tests.sagas.judge import wrong
from tests.sagas.outside import Firm, Outside
from tests.sagas.shapes import SHAPES
from tests.sagas.walk import Points, Walk
from tests.support.figures import record

LONG = os.environ.get("FANIN_LONG") == "1"
VARIANTS = [{"held": held, "lazy": lazy} for held in (False, True) for lazy in (False, True)]
"""In which order a worker runs what it has claimed, and when upkeep comes."""
FEWER = {"lite": 1, "pg": 3}
"""In the short form a case takes longer on PostgreSQL, so there are fewer."""


class Survey:
    """The cases of one shape. The long form runs all of them in each variant.

    every: in the short form SQLite runs each ``every``-th case in one of the variants, which take turns, and PostgreSQL
    each third of these.
    """

    def __init__(self, url: str, shape: str, every: int) -> None:
        self.app = fanin.App(url, max_parts=3)
        self.shape = shape
        self.firm = Firm(self.app)
        self.points = Points(self.app.store)
        self.faults: list[str] = []
        self.cases = 0
        self._share = every * FEWER[self.app.store.dialect]
        self._first = sum(map(ord, shape))
        self._number = itertools.count(self._first)

    @property
    def items(self) -> list[str]:
        return SHAPES[self.shape].items.split()

    def case(self, name: str, outside: Callable[[], Outside], lead: Callable[[Walk], Any], **options: Any) -> None:
        """Walk a flow as ``lead`` says, then to its end, and judge it."""
        number = next(self._number)
        turn = VARIANTS[number // self._share % len(VARIANTS)] if number % self._share == 0 else None
        for variant in VARIANTS:
            if LONG or variant is turn:
                self._one(f"{name} {variant}", outside(), lead, **variant, **options)

    def every_point(
        self, name: str, outside: Callable[[], Outside], act: Callable[[Walk], None],
        lead: Callable[[Walk], Any] = Walk.nothing, then: Callable[[Walk], Any] = Walk.nothing, **options: Any,
    ) -> None:  # fmt: skip
        """One case for each transaction of the walk after which ``act`` may come. How many there are depends on the
        variant.

        lead: how the walk begins; the transactions are counted from there. then: how it goes on afterwards.
        """
        for number, variant in enumerate(VARIANTS):
            for point in self._points(number):

                def led(walk: Walk, point: int = point) -> None:
                    lead(walk)
                    walk.act(point, lambda: act(walk))
                    then(walk)

                walk = self._one(f"{name} after transaction {point} {variant}", outside(), led, **variant, **options)
                if not walk.acted:
                    break

    def _points(self, variant: int) -> Iterator[int]:
        """After which transactions something happens, without an end."""
        if LONG:
            return itertools.count()
        if self._share <= 4:
            return itertools.count(variant * self._share, len(VARIANTS) * self._share)
        turn = next(self._number) // len(VARIANTS)
        if turn % len(VARIANTS) != variant:
            return iter(())
        return itertools.count(turn % self._share, self._share)

    def _one(self, name: str, outside: Outside, lead: Callable[[Walk], Any], **options: Any) -> Walk:
        self.cases += 1
        walk = Walk(self.firm, self.points, self.shape, outside, **options)
        try:
            lead(walk)
            walk.go()
            found = list(wrong(walk))
        except Exception:
            found = [traceback.format_exc()[-1500:]]
        self.faults += [f"{name}: {one}\n      {walk.told()}" for one in found]
        return walk

    def end(self, suite: str) -> None:
        """Nothing was wrong in any case, and no rule is broken by what all of them have left."""
        broken = violations(self.app.store)
        told = f"{self.cases} cases of {self.shape}, {suite}: "
        assert not self.faults, f"{told}{len(self.faults)} faults\n" + "\n".join(self.faults[:12])
        assert not broken, told + "\n".join(broken)
        record("sagas", cases={f"{suite}/{self.app.store.dialect}": self.cases})


@contextmanager
def surveyed(url: str, shape: str, suite: str, every: int) -> Iterator[Survey]:
    """The cases that are run in this block are judged, then all that they have left."""
    survey = Survey(url, shape, every)
    yield survey
    survey.end(suite)
    survey.app.close()
