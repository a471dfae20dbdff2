"""Put a database back and look at all of it: for tests that start many times from one state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

from fanin.protocol.steps import Query, Row, Rows, Statement, Txn
from fanin.stores.base import Store

T = TypeVar("T")

TABLES = (
    "job",
    "job_stripe",
    "part",
    "attempt_log",
    "job_log",
    "repair",
    "outbox",
    "staged_output",
    "effect",
    "schedule",
    "firing",
    "leftover",
    "part_key",
    "flow",
    "flow_step",
)
"""The tables of the protocol, parents first."""
_UNSTEADY = {"outbox": ("xid",), "job_log": ("id",), "repair": ("id",)}
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
    """All rows of all tables at one moment, without the columns that say nothing about the state."""
    found: dict[str, list[Row]] = {table: [] for table in TABLES}
    if store.dialect == "pg":  # one statement is one snapshot, whatever commits meanwhile
        arms = [f"SELECT '{table}' AS name, row_to_json(t)::text AS row FROM fanin.{table} AS t" for table in TABLES]
        for line in select(store, " UNION ALL ".join(arms)):
            found[line["name"]].append(_steady(line["name"], json.loads(line["row"])))
    else:
        for table in TABLES:
            found[table] = [_steady(table, row) for row in select(store, f"SELECT * FROM fanin.{table}")]
    return {table: sorted(rows, key=repr) for table, rows in found.items()}


def _steady(table: str, row: dict[str, Any]) -> Row:
    return tuple(value for name, value in row.items() if name not in _UNSTEADY.get(table, ()))
