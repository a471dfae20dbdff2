"""Which databases a test runs on, and a place of its own in each."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.support.postgres import Server, installations

SQLITE = "sqlite"
PG = "pg"


def postgres_flavours(*, every_version: bool) -> list[tuple[str, str]]:
    """(name in the test's id, flavour): the machine's server, else the wheel's; or both, for pg_versions."""
    found = [installation.flavour for installation in installations()]
    named = [(PG if n == 0 else f"{PG}-{flavour}", flavour) for n, flavour in enumerate(found)]
    return named if every_version else named[:1]


@contextmanager
def schema_of_its_own(server: Server) -> Iterator[str]:
    """The name of a schema that nobody else uses; what the test made in it is dropped afterwards.

    Raises AssertionError when the test left a transaction open that holds locks in it.
    """
    name = f"t_{secrets.token_hex(6)}"
    try:
        yield name
    finally:
        left = drop_schema(server, name)
        assert not left, f"transactions were left open in {name}: {left}"


@cache
def _made_file() -> bytes:
    """A file with its tables, made once: the other tests begin with a copy."""
    from fanin.stores import open_store

    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/made.db")
        list(store.check())  # the first use of a file makes its tables
        store.close()
        return Path(folder, "made.db").read_bytes()


def migrate_database(url: str) -> None:
    """Make fanin's tables in an empty database."""
    from fanin.stores import migrate, open_store

    if url.startswith("sqlite:"):
        file = open_store(url).file
        assert file is not None
        Path(file).write_bytes(_made_file())
        return
    import psycopg

    address, _, schema = url.partition("?fanin_schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        migrate.postgres(connection, schema, url)


def drop_schema(server: Server, name: str) -> list[str]:
    """Drop a schema. Sessions that hold locks in it are ended, and what they ran last is returned."""
    import psycopg

    with psycopg.connect(server.url(), autocommit=True, options="-c lock_timeout=2s") as connection:
        try:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
            return []
        except psycopg.errors.LockNotAvailable:
            holders = connection.execute(
                "SELECT DISTINCT a.pid, a.state || ': ' || a.query FROM pg_locks l "
                "JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
                "JOIN pg_stat_activity a ON a.pid = l.pid "
                "WHERE n.nspname = %s AND l.granted AND a.pid <> pg_backend_pid()",
                [name],
            ).fetchall()
            for pid, _ in holders:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
            return [said for _, said in holders]
