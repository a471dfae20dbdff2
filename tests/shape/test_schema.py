"""The schema that the migrations make is the one that was reviewed.

When it is meant to change, write the golden files anew and review their difference:

    FANIN_WRITE_GOLDEN=1 make test ARGS=tests/shape/test_schema.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from fanin.stores.base import Store
from tests.protocol.helpers import say
from tests.shape import schema

GOLDEN = Path(__file__).parent / "golden"


def dump(store: Any) -> str:
    if store.dialect == "lite":
        say(store, "SELECT 1")
        return schema.of_sqlite(store._writer)
    with store.connection() as connection:
        return schema.of_postgres(connection, store.schema)


@pytest.mark.pg_versions
def test_the_schema_is_the_reviewed_one(store: Store) -> None:
    golden = GOLDEN / ("postgresql.txt" if store.dialect == "pg" else "sqlite.txt")
    found = dump(store)
    if os.environ.get("FANIN_WRITE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text(), f"{golden.name} differs; see the head of {Path(__file__).name}"


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE fanin.part ADD COLUMN another text",
        "DROP INDEX fanin.part_due",
        "CREATE INDEX fanin_another ON fanin.part (task)",
        "CREATE TABLE fanin.another (n int)",
    ],
)
def test_a_change_of_the_schema_is_seen(store: Store, change: str) -> None:
    before = dump(store)
    say(store, change)
    assert dump(store) != before


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE fanin.part ALTER task DROP NOT NULL",
        "ALTER TABLE fanin.part ALTER payload SET STORAGE EXTENDED",
        "ALTER TABLE fanin.job ALTER run SET DEFAULT 2",
        "ALTER TABLE fanin.job ALTER turn TYPE integer",
        "ALTER TABLE fanin.part SET (fillfactor = 100)",
        "ALTER TABLE fanin.job ADD CHECK (depth < 7)",
        "CREATE OR REPLACE FUNCTION fanin.clock() RETURNS double precision LANGUAGE sql AS 'SELECT 1.0::float8'",
        "CREATE VIEW fanin.seen AS SELECT 1",
    ],
)
def test_a_change_that_only_postgresql_knows_is_seen(pg_server: Any, store: Store, change: str) -> None:
    before = dump(store)
    say(store, change)
    assert dump(store) != before


def test_both_databases_have_the_same_tables_and_columns() -> None:
    """Beside ``outbox.xid``, which only PostgreSQL needs."""
    wide, narrow = (GOLDEN / name for name in ("postgresql.txt", "sqlite.txt"))
    tables: dict[str, set[str]] = {}
    for block in wide.read_text().split("\n\n"):
        head, *lines = block.splitlines()
        if head.isidentifier():
            words = [line.split()[0] for line in lines]
            tables[head] = {w for w in words if w == w.lower() and w.isidentifier() and w != "with"}
    connection = apsw.Connection(":memory:")
    connection.execute(narrow.read_text().replace("\n\n", ";\n"))
    found: dict[str, set[str]] = {}
    for name, column in connection.execute(
        "SELECT t.name, c.name FROM sqlite_master AS t JOIN pragma_table_info(t.name) AS c WHERE t.type = 'table'"
    ):
        found.setdefault(str(name).removeprefix("fanin_"), set()).add(str(column))
    assert found == {name: columns - {"xid"} for name, columns in tables.items()}
    assert len(found["part"]) > 15
