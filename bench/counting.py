"""Count a store's statements and commits as they go by. That costs nothing beside their journey."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from fanin.protocol.steps import Rows, Statement, TxnFactory
from fanin.stores.base import Store
from fanin.testing.tap import Tap, watched


class Counting(Tap):
    """``commits`` and ``statements`` of writing transactions (without BEGIN and COMMIT), and ``reads``."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def after(self, statement: Statement, rows: Rows) -> None:
        self.counts["statements"] += 1

    def commit(self) -> None:
        self.counts["commits"] += 1


class Reading(Tap):
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def after(self, statement: Statement, rows: Rows) -> None:
        self._counts["reads"] += 1


def count(store: Store, counting: Counting) -> Counting:
    """From now on the transactions of ``store`` and of the stores that it reserves are counted."""
    run, read, reserve = store.run, store.read, store.reserve
    reading = Reading(counting.counts)

    def counted(factory: TxnFactory[Any]) -> Any:
        return run(watched(factory, counting))

    def counted_read(factory: TxnFactory[Any]) -> Any:
        return read(watched(factory, reading))

    def reserved() -> Store:
        own = reserve()
        count(own, counting)
        return own

    replaced = cast(Any, store)
    replaced.run, replaced.read, replaced.reserve = counted, counted_read, reserved
    return counting
