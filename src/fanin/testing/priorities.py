"""Random schedules that find a rare mistake with a known chance: probabilistic concurrency testing (PCT).

Each actor gets a priority by lot, and whoever has the highest moves as long as it can. At a few steps, drawn too, the
one that would move falls below all that have not fallen. A mistake that shows when ``depth`` steps fall in one order is
met by one schedule with a chance of at least ``1 / (actors * steps ** (depth - 1))``, however many actors there are; a
scheduler that throws dice at every step has no such bound. After Burckhardt, Kothari, Musuvathi and Nagarakatti,
"A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs" (2010).
"""

from __future__ import annotations

import random


class Priorities:
    """Who moves next in one schedule. The same arguments give the same choices.

    ``names``: the actors, one letter each. ``steps``: about how many steps they make together. ``depth``: one more than
    the steps at which somebody falls. Raises ValueError if it is below 1, or if there are not so many steps.
    """

    def __init__(self, seed: int, names: str, steps: int, depth: int) -> None:
        if not 1 <= depth <= steps + 1:
            raise ValueError(f"depth={depth}: give 1 to {steps + 1}, one more than the {steps} steps at the most")
        lot = random.Random(seed)
        self._priority = {name: rank for rank, name in enumerate(lot.sample(names, len(names)))}
        self._falls = {step: -rank for rank, step in enumerate(lot.sample(range(steps), depth - 1), 1)}

    def __call__(self, made: str, ready: str) -> str:
        """The name of the actor that moves, of those in ``ready``, after the steps in ``made``."""
        if len(made) in self._falls:
            self._priority[self._highest(ready)] = self._falls[len(made)]
        return self._highest(ready)

    def _highest(self, ready: str) -> str:
        return max(ready, key=self._priority.__getitem__)
