"""The numbered schema changes: apply, verify, print. Two processes that migrate at once are safe."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from fanin.domain.errors import SchemaMismatch

if TYPE_CHECKING:
    import apsw

_PASSWORD = re.compile(r"(://[^/@:]*:)[^@]*@")
_NAME = re.compile(r"(\d{4})_(\w+)\.(pg|lite)\.sql")


class Migration(NamedTuple):
    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """All schema changes of one database, in order."""
    found = []
    for file in resources.files("fanin.protocol.migrations").iterdir():
        match = _NAME.fullmatch(file.name)
        if match and match[3] == dialect:
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return tuple(sorted(found))


def judge(applied: list[int], url: str) -> None:
    """Raise `SchemaMismatch` if the schema is older or newer than this program."""
    url = _PASSWORD.sub(r"\1***@", url)
    known = [migration.version for migration in migrations("pg")]
    newest = max(applied, default=0)
    if newest > known[-1]:
        raise SchemaMismatch(
            f"the database has schema version {newest}, this fanin knows up to {known[-1]}: upgrade fanin here "
            "(pip install -U fanin)"
        )
    if newest < known[-1]:
        have = f"has schema version {newest}" if newest else "has no fanin schema"
        raise SchemaMismatch(
            f"the database {have}, this fanin needs {known[-1]}: run `fanin migrate --url '{url}'` once"
        )


def script(dialect: str, schema: str, applied: list[int], buckets: int = 1) -> str:
    """The SQL that brings the schema up to date, as it would run, for people who apply it with their own tool."""
    prefix = f'"{schema}".' if dialect == "pg" else "fanin_"
    number, real = ("integer", "double precision") if dialect == "pg" else ("integer", "real")
    pieces = [f'CREATE SCHEMA IF NOT EXISTS "{schema}";'] if dialect == "pg" else []
    pieces.append(
        "CREATE TABLE IF NOT EXISTS fanin.migration (\n"
        f"    version {number} PRIMARY KEY,\n    name text NOT NULL,\n    checksum text NOT NULL,\n"
        f"    applied_at {real} NOT NULL\n);"
    )
    for migration in migrations(dialect):
        if migration.version not in applied:
            pieces.append(migration.text)
            pieces.append(
                "INSERT INTO fanin.migration (version, name, checksum, applied_at) VALUES "
                f"({migration.version}, '{migration.name}', '{migration.checksum}', fanin.clock());"
            )
            if migration.version == 1:
                pieces.append(f"INSERT INTO fanin.setting (name, value) VALUES ('buckets', '{buckets}');")
    return re.sub(r"\bfanin\.", prefix, "\n\n".join(pieces)) + "\n"


def embedded(connection: apsw.Connection, url: str) -> list[int]:
    """Bring an SQLite file up to date, automatically. Returns the versions that were applied by this call."""
    applied = _applied_lite(connection)
    if not _outdated(applied):
        judge(applied, url)
        return []
    connection.execute("BEGIN IMMEDIATE")
    try:
        applied = _applied_lite(connection)  # another process may have been first
        if _outdated(applied):
            for _ in connection.execute(script("lite", "", applied)):
                pass
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    judge(now := _applied_lite(connection), url)
    return sorted(set(now) - set(applied))


def postgres(connection: Any, schema: str, url: str, buckets: int = 1) -> list[int]:
    """Bring a PostgreSQL schema up to date on a psycopg connection in autocommit mode. Returns what was applied."""
    with connection.transaction():
        # Whatever the database's default is: a snapshot older than the lock would not see what another call has done.
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", ["fanin migrate " + schema])
        applied = applied_postgres(connection, schema)
        if max(applied, default=0) > migrations("pg")[-1].version:
            judge(applied, url)
        todo = [m.version for m in migrations("pg") if m.version not in applied]
        if todo:
            connection.execute(script("pg", schema, applied, buckets))
    return todo


def applied_postgres(connection: Any, schema: str) -> list[int]:
    # Asked of the catalogue by a query: to_regclass may answer from what this session remembers.
    there = "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'migration'"
    if connection.execute(there, [schema]).fetchone() is None:
        return []
    return [row[0] for row in connection.execute(f'SELECT version FROM "{schema}".migration ORDER BY version')]


def _applied_lite(connection: apsw.Connection) -> list[int]:
    found = list(connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fanin_migration'"))
    if not found:
        return []
    return [int(str(row[0])) for row in connection.execute("SELECT version FROM fanin_migration ORDER BY version")]


def _outdated(applied: list[int]) -> bool:
    return max(applied, default=0) < migrations("lite")[-1].version
