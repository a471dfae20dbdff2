"""Put a database back and look at all of it: for tests that start many times from one state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from fanin.protocol.steps import Query, Rows, Statement, Txn
from fanin.stores.base import Store

T = TypeVar("T")

TABLES = ("job", "job_stripe", "part", "attempt_log", "outbox")
"""The tables of the protocol, parents first."""
_UNSTEADY = {"outbox": ("xid",)}
"""Columns whose value says nothing about the state."""


def statement(text: str) -> Statement:
    """One statement of a test, written as in a room of the protocol: ``fanin.part``, no parameters."""
    return Query("test", "statement", (), {"pg": text, "lite": text})()


def execute(store: Store, *texts: str) -> None:
    """Run statements in one transaction."""

    def txn() -> Txn[None]:
        for text in texts:
            yield statement(text)

    store.run(txn)


def select(store: Store, text: str) -> list[dict[str, Any]]:
    return store.table(statement(text))


class Snapshot:
    """The rows of all tables at one moment, to go back to as often as wanted."""

    def __init__(self, store: Store, tables: Iterable[str] = TABLES) -> None:
        self._store = store
        self._tables = tuple(tables)
        drop = [f"DROP TABLE IF EXISTS fanin.kept_{table}" for table in self._tables]
        keep = [f"CREATE TABLE fanin.kept_{table} AS SELECT * FROM fanin.{table}" for table in self._tables]
        execute(store, *drop, *keep)
        empty = [f"DELETE FROM fanin.{table}" for table in reversed(self._tables)]
        fill = [f"INSERT INTO fanin.{table} SELECT * FROM fanin.kept_{table}" for table in self._tables]
        self._texts = empty + fill

    def restore(self, *more: str) -> None:
        """Everything as it was; ``more`` are statements of the same transaction."""
        execute(self._store, *self._texts, *more)


def dump(store: Store) -> dict[str, Rows]:
    """All rows of all tables in the order of their keys, without what only tells when or by whom they were written."""
    found: dict[str, Rows] = {}
    for table in TABLES:
        rows = select(store, f"SELECT * FROM fanin.{table} ORDER BY 1, 2, 3, 4, 5")
        unsteady = _UNSTEADY.get(table, ())
        found[table] = [tuple(value for name, value in row.items() if name not in unsteady) for row in rows]
    return found
