"""The databases that are measured, and an empty place in each for every run."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SETTINGS = {"shared_buffers": "256MB", "log_lock_waits": "off", "max_wal_size": "4GB"}
GONE_SECONDS = 10.0


class Footprint(NamedTuple):
    """What a run has left in the database: bytes and parts; of PostgreSQL alone, row versions that were written, dead
    rows, and how often autovacuum has come."""

    versions: int | None
    dead: int | None
    vacuums: int | None
    bytes: int
    parts: int

    def other_parts(self, measured: int) -> int:
        """Parts of the warm-up and of the successors, which the counts hold as well."""
        return self.parts - measured


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
        url = f"{self.address}{'&' if '?' in self.address else '?'}application_name={schema}&fanin_schema={schema}"
        with psycopg.connect(self.address, autocommit=True) as connection:
            migrate.postgres(connection, schema, url)
            connection.execute("CHECKPOINT")  # no run pays for the one before
            try:
                yield url
            finally:
                connection.execute(f"DROP SCHEMA {schema} CASCADE")

    def transactions(self) -> int:
        """How many transactions the PostgreSQL database has ended."""
        ended = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        return self._number(ended)

    def log_position(self) -> int | None:
        """How many bytes PostgreSQL's write-ahead log has grown to. None: SQLite's log begins again and again."""
        if self.name == "SQLite":
            return None
        return self._number("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")

    def footprint(self, url: str) -> Footprint:
        """What stands in the tables of ``url``. To be asked when the workers have gone: a session of PostgreSQL tells
        what it has done when it ends."""
        if self.name == "SQLite":
            return _footprint_of_file(url.removeprefix("sqlite:///"))
        import psycopg

        schema = url.rpartition("=")[2]
        with psycopg.connect(self.address, autocommit=True) as connection:
            deadline = time.monotonic() + GONE_SECONDS
            while time.monotonic() < deadline and _others(connection, schema):
                time.sleep(0.05)
            parts = connection.execute(f"SELECT count(*) FROM {schema}.part").fetchone()
            row = connection.execute(
                "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint, sum(n_dead_tup)::bigint, "
                "sum(autovacuum_count)::bigint, sum(pg_total_relation_size(relid))::bigint "
                "FROM pg_stat_user_tables WHERE schemaname = %s", [schema],
            ).fetchone()  # fmt: skip
        assert row is not None
        assert parts is not None
        return Footprint(row[0], row[1], row[2], row[3], parts[0])

    def _number(self, query: str) -> int:
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as connection:
            row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])


def _others(connection: object, schema: str) -> bool:
    """Whether sessions are still open that have worked in the schema, which they are named after."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    row = connection.execute(query, [schema]).fetchone()  # type: ignore[attr-defined]
    return bool(row[0])


def _footprint_of_file(path: str) -> Footprint:
    import apsw

    connection = apsw.Connection(path)
    parts = next(connection.execute("SELECT count(*) FROM fanin_part"))[0]
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    return Footprint(None, None, None, Path(path).stat().st_size, parts)


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
