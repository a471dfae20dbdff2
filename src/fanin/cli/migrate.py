"""``fanin migrate``: make or update the tables, say whether that is needed, or print the SQL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, option, print_json
from fanin.domain import limits
from fanin.domain.errors import BadOption, SchemaMismatch
from fanin.stores import default_url, open_store
from fanin.stores import migrate as migrations

if TYPE_CHECKING:
    from fanin.stores.postgres import PostgresStore
    from fanin.stores.sqlite import SqliteStore


def migrate(
    *,
    check: Annotated[bool, option("Change nothing; exit with 1 if the tables are missing or old.")] = False,
    sql: Annotated[bool, option("Print the SQL that is missing, for another tool to apply; change nothing.")] = False,
    buckets: Annotated[
        int | None, option("Shards of a new PostgreSQL schema (default: 1). Cannot be changed later.")
    ] = None,
    common: Common = DEFAULT,
) -> int:
    """Make the tables, or bring them up to date. Two at once are safe; a schema newer than this program is refused.

    An SQLite file does this by itself at its first use.
    """
    if check and sql:
        raise BadOption("--check and --sql: choose one")
    if buckets is not None and not 1 <= buckets <= limits.BUCKETS:
        raise BadOption(f"--buckets {buckets}: give 1 to {limits.BUCKETS}")
    store: Any = open_store(common.url or default_url())
    try:
        if store.dialect == "lite":
            if buckets not in (None, 1):
                raise BadOption(f"--buckets {buckets}: an SQLite file is one shard; buckets are for PostgreSQL")
            return _sqlite(store, check, sql, common)
        return _postgres(store, check, sql, buckets, common)
    finally:
        store.close()


def _sqlite(store: SqliteStore, check: bool, sql: bool, common: Common) -> int:
    applied = _applied_in_file(store.path)
    if sql:
        print(migrations.script("lite", "", applied), end="")
        return exits.OK
    if check:
        return _tell_check(applied, "lite", store.url, common)
    store.run(_nothing)
    return _tell_applied([v for v in _applied_in_file(store.path) if v not in applied], "lite", store.url, common)


def _postgres(store: PostgresStore, check: bool, sql: bool, buckets: int | None, common: Common) -> int:
    where = store.url.split("@")[-1]
    with store.connect() as connection:
        if sql or check:
            applied = migrations.applied_postgres(connection, store.schema)
            if check:
                return _tell_check(applied, "pg", where, common)
            print(migrations.script("pg", store.schema, applied, buckets or 1), end="")
            return exits.OK
        # Not after a look of our own: the session would remember that the tables are missing, also after it has waited
        # for another migration to make them.
        todo = migrations.postgres(connection, store.schema, store.url, buckets or 1)
        if buckets is not None and 1 not in todo:
            row = connection.execute(f"SELECT value FROM \"{store.schema}\".setting WHERE name = 'buckets'").fetchone()
            if row is not None and int(row[0]) != buckets:
                raise BadOption(
                    f"--buckets {buckets}: this schema was made with {row[0]}, which cannot be changed; make another "
                    "schema (?fanin_schema=NAME in the URL)"
                )
    return _tell_applied(todo, "pg", where, common)


def _applied_in_file(path: str) -> list[int]:
    """The schema versions in a file; looking makes no file and writes nothing."""
    import apsw

    from fanin.stores.sqlite import translated

    if not os.path.exists(path):
        return []
    with translated(path):
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        try:
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fanin_migration'")
            if not known.fetchall():
                return []
            rows = connection.execute("SELECT version FROM fanin_migration ORDER BY version").fetchall()
            return [int(str(row[0])) for row in rows]
        finally:
            connection.close()


def _nothing() -> Any:
    """A transaction without statements: opening the file for it brings its tables up to date."""
    yield from ()


def _tell_check(applied: list[int], dialect: str, where: str, common: Common) -> int:
    newest, known = max(applied, default=0), migrations.migrations(dialect)[-1].version
    if newest > known:
        raise SchemaMismatch(f"{where} has schema version {newest}, this fanin knows up to {known}: upgrade fanin here")
    current = newest == known
    if common.json:
        print_json({"current": current, "version": newest, "needed": known})
    elif current:
        print(f"up to date: schema version {newest}")
    elif newest:
        print(f"schema version {newest}, needed: {known}. Run: fanin migrate")
    else:
        print(f"no fanin tables yet in {where}. Run: fanin migrate")
    return exits.OK if current else exits.FAILED


def _tell_applied(todo: list[int], dialect: str, where: str, common: Common) -> int:
    version = migrations.migrations(dialect)[-1].version
    if common.json:
        print_json({"applied": todo, "version": version})
    elif todo:
        print(f"applied {', '.join(f'{v:04}' for v in todo)}: {where} has schema version {version}")
    else:
        print(f"nothing to do: {where} has schema version {version}")
    return exits.OK
