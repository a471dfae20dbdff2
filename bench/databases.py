"""The databases that are measured, and an empty place in each for every run."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

SETTINGS = {"shared_buffers": "256MB", "log_lock_waits": "off"}


@dataclass(frozen=True)
class Database:
    """``address`` is a folder for SQLite and a URL for PostgreSQL; ``server`` the id of a local server process."""

    name: str
    address: str
    server: int | None = None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of an empty database with fanin's tables; it is removed afterwards."""
        if self.name == "SQLite":
            with tempfile.TemporaryDirectory(prefix="run-", dir=self.address) as folder:
                yield f"sqlite:///{folder}/fanin.db"
            return
        import psycopg

        from fanin.stores import migrate

        schema = f"bench_{secrets.token_hex(4)}"
        url = f"{self.address}?fanin_schema={schema}"
        with psycopg.connect(self.address, autocommit=True) as connection:
            migrate.postgres(connection, schema, url)
            connection.execute("CHECKPOINT")  # no run pays for the one before
            try:
                yield url
            finally:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")

    def transactions(self) -> int:
        """How many transactions the PostgreSQL database has ended."""
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as connection:
            row = connection.execute(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            ).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def databases(wanted: str) -> Iterator[list[Database]]:
    """``sqlite``, ``postgres`` or ``both``. PostgreSQL is ``FANIN_BENCH_URL``, else a private server with fsync on.

    Raises LookupError when PostgreSQL is wanted and the machine has none.
    """
    found: list[Database] = []
    with ExitStack() as stack:
        if wanted in ("sqlite", "both"):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fanin-bench-"))
            found.append(Database("SQLite", folder))
        if wanted in ("postgres", "both"):
            found.append(stack.enter_context(_postgres()))
        yield found


@contextmanager
def _postgres() -> Iterator[Database]:
    if url := os.environ.get("FANIN_BENCH_URL"):
        yield Database("PostgreSQL", url)
        return
    from tests.support.postgres import Guard, create_server, installations

    installed = installations()
    if not installed:
        raise LookupError("no PostgreSQL here: install one, set FANIN_BENCH_URL, or give --database sqlite")
    guard = Guard()
    try:
        server = create_server(guard, installed[0], fsync=True, settings=SETTINGS)
        pid = int(Path(server.data, "postmaster.pid").read_text().split()[0])
        yield Database("PostgreSQL", server.url(), pid)
    finally:
        guard.close()
