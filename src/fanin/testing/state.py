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
WITNESS = "witness"
"""The table of `fanin.testing.invariants.install`."""
_UNSTEADY = {"outbox": ("xid",), "job_log": ("id",), "repair": ("id",), WITNESS: ("n",)}
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


def ask(store: Store, asked: Statement) -> list[dict[str, Any]]:
    """The rows of a large question that is asked again and again: PostgreSQL keeps its plan, which takes longer to make
    than to follow."""
    if store.dialect != "pg":
        return store.table(asked)
    from psycopg.rows import dict_row

    from fanin.stores.pg_errors import translated
    from fanin.stores.postgres import PostgresStore

    assert isinstance(store, PostgresStore)
    if store.target.pooled:
        return store.table(asked)
    with store.connection() as connection, translated(store.url):
        cursor = connection.cursor(row_factory=dict_row)
        return cursor.execute(asked.query.for_postgres(store.schema), prepare=True).fetchall()


class Snapshot:
    """The rows of all tables at one moment, to go back to as often as wanted. A database keeps one: a new one takes its
    place."""

    def __init__(self, store: Store, tables: Iterable[str] = TABLES) -> None:
        self._store = store
        self._tables = tuple(tables)
        make = [f"CREATE TABLE IF NOT EXISTS fanin.kept_{t} AS SELECT * FROM fanin.{t} LIMIT 0" for t in self._tables]
        clear = [f"DELETE FROM fanin.kept_{table}" for table in self._tables]
        keep = [f"INSERT INTO fanin.kept_{table} SELECT * FROM fanin.{table}" for table in self._tables]
        execute(store, *make, *clear, *keep)
        empty = [f"DELETE FROM fanin.{table}" for table in reversed(self._tables)]
        arms = [f"SELECT '{table}' AS name WHERE EXISTS (SELECT 1 FROM fanin.{table})" for table in self._tables]
        used = {row["name"] for row in select(store, " UNION ALL ".join(arms))}
        fill = [
            f"INSERT INTO fanin.{table} SELECT * FROM fanin.kept_{table}" for table in self._tables if table in used
        ]
        self._texts = empty + fill

    def restore(self, *more: str) -> None:
        """Everything as it was; ``more`` are statements of the same transaction."""
        execute(self._store, *self._texts, *more)


def dump(store: Store, *, witness: bool = False) -> dict[str, Rows]:
    """All rows of all tables at one moment, without the columns that say nothing about the state.

    ``witness``: its rows too.
    """
    tables = (*TABLES, WITNESS) if witness else TABLES
    found: dict[str, list[Row]] = {table: [] for table in tables}
    if store.dialect == "pg":  # one statement is one snapshot, whatever commits meanwhile
        arms = [f"SELECT '{table}' AS name, row_to_json(t)::text AS row FROM fanin.{table} AS t" for table in tables]
        for line in ask(store, statement(" UNION ALL ".join(arms))):
            found[line["name"]].append(_steady(line["name"], json.loads(line["row"])))
    else:
        for table in tables:
            found[table] = [_steady(table, row) for row in select(store, f"SELECT * FROM fanin.{table}")]
    return {table: sorted(rows, key=repr) for table, rows in found.items()}


def _steady(table: str, row: dict[str, Any]) -> Row:
    return tuple(value for name, value in row.items() if name not in _UNSTEADY.get(table, ()))
