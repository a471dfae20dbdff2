"""Where the torture happens: a schema or a file of its own, made before and removed after; and its rows for the judge.

Nothing here goes through the protocol: the judge must not be told by the accused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from fanin.stores import open_store, sqlite_path
from fanin.testing.wire import Address

Row = tuple[Any, ...]

QUERIES = {
    "jobs": "SELECT id, key, status, outcome, run, succeeded_parts, failed_parts, abandoned_parts, parent_id, "
    "successor IS NOT NULL, reason, give_up_at IS NOT NULL, waiter_id, waiter_idx FROM {}job",
    "stripes": "SELECT job_id, stripe, created, remaining, succeeded, failed, abandoned FROM {}job_stripe",
    "parts": "SELECT job_id, idx, stripe, status, attempt, claim_id, attempts_allowed, result FROM {}part",
    "events": "SELECT event_key, job_id, payload FROM {}outbox WHERE type = 'job.finished'",
    "flows": "SELECT id, key, status FROM {}flow",
    "steps": "SELECT flow_id, n, name, status, job_id, undo_job_id, ended_no FROM {}flow_step",
    "flow_events": "SELECT event_key, job_id, payload FROM {}outbox WHERE type <> 'job.finished'",
    "effects": "SELECT job_id, idx, name, mode, status FROM {}effect",
    "outputs": "SELECT job_id, idx, claim_id, attempt, name, status FROM {}staged_output",
}
"""Everything that the judge asks of the tables, each with the schema or prefix put in."""
PENDING = (
    "SELECT (SELECT count(*) FROM {0}job WHERE status IN ('open', 'running')), (SELECT count(*) FROM {0}job), "
    "(SELECT count(*) FROM {0}job_stripe WHERE remaining > 0) "
    "+ (SELECT count(*) FROM {0}outbox WHERE status IN ('waiting', 'claimed')) "
    "+ (SELECT count(*) FROM {0}flow WHERE finished_at IS NULL) "
    "+ (SELECT count(*) FROM {0}effect WHERE status IN ('registered', 'calling'))"
)


class Ground(ABC):
    """One database for one torture."""

    url: str
    """Where the processes work."""
    shown: str
    """The address for people, without a password."""
    postgres: bool
    address: Address | None = None
    """Where a proxy finds the server."""

    @abstractmethod
    def create(self) -> None: ...

    @abstractmethod
    def destroy(self) -> None: ...

    @abstractmethod
    def _rows(self, queries: list[str]) -> list[list[Row]]:
        """The rows of some queries, all from one snapshot."""

    @property
    @abstractmethod
    def _prefix(self) -> str: ...

    def tables(self) -> dict[str, list[Row]]:
        """All rows that the judge looks at, ids as strings, from one snapshot."""
        found = self._rows([query.format(self._prefix) for query in QUERIES.values()])
        return dict(zip(QUERIES, found, strict=True))

    def pending(self) -> tuple[int, int, int]:
        """Jobs that have not ended, all jobs, and what else is not at its end: stripes, events, flows, effects."""
        ((row,),) = self._rows([PENDING.format(self._prefix)])
        return int(row[0]), int(row[1]), int(row[2])

    def check(self) -> list[str]:
        """What ``fanin check`` says, as a second opinion."""
        store = open_store(self.url)
        try:
            return [f"{name}: {sentence}" for name, sentence, findings in store.check() if findings]
        finally:
            store.close()

    def through(self, port: int) -> str:
        """The URL by way of a proxy on 127.0.0.1."""
        raise NotImplementedError("a file has no connection to cut")


class FileGround(Ground):
    """A file beside the one that was named."""

    postgres = False
    _prefix = "fanin_"

    def __init__(self, url: str) -> None:
        self.path = f"{os.path.abspath(sqlite_path(url))}.torture-{secrets.token_hex(4)}"
        self.url = f"sqlite:///{self.path}"
        self.shown = self.url

    def create(self) -> None:
        self.check()  # the first use makes the tables

    def destroy(self) -> None:
        for suffix in ("", "-wal", "-shm", "-journal", "-queue", "-writer"):
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.path + suffix)

    def _rows(self, queries: list[str]) -> list[list[Row]]:
        import apsw

        connection = apsw.Connection(self.path)
        try:
            connection.set_busy_timeout(10_000)
            connection.execute("BEGIN")
            return [connection.execute(query).fetchall() for query in queries]
        finally:
            connection.close()


class SchemaGround(Ground):
    """A schema of its own in the database that was named."""

    postgres = True

    def __init__(self, url: str, buckets: int = 1, kind: str = "torture") -> None:
        parts = urlsplit(url)
        self._query = dict(parse_qsl(parts.query))
        self.schema = f"fanin_{kind}_{secrets.token_hex(4)}"
        self._query["fanin_schema"] = self.schema
        self._buckets = buckets
        self.url = urlunsplit(parts._replace(query=urlencode(self._query)))
        self.shown = f"{parts.scheme}://{parts.netloc.rsplit('@', 1)[-1]}{parts.path}?fanin_schema={self.schema}"

    @property
    def _prefix(self) -> str:
        return f'"{self.schema}".'

    def create(self) -> None:
        from fanin.stores import migrate

        with self._connection() as connection:
            migrate.postgres(connection, self.schema, self.url, self._buckets)
            host = connection.info.hostaddr or connection.info.host
            port = connection.info.port
            self.address = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)

    def destroy(self) -> None:
        with self._connection() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(l.pid) FROM (SELECT DISTINCT l.pid FROM pg_locks AS l "
                "JOIN pg_class AS c ON c.oid = l.relation JOIN pg_namespace AS n ON n.oid = c.relnamespace "
                "WHERE n.nspname = %s AND l.pid <> pg_backend_pid()) AS l",
                [self.schema],
            )
            connection.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')

    def through(self, port: int) -> str:
        parts = urlsplit(self.url)
        kept = {name: value for name, value in self._query.items() if name not in ("host", "hostaddr", "port")}
        if "host" in self._query and "user" not in kept and not parts.username:
            kept["user"] = os.environ.get("PGUSER", "")
        who, at, _ = parts.netloc.rpartition("@")
        query = urlencode({**kept, "sslmode": "disable", "gssencmode": "disable"})
        return urlunsplit(parts._replace(netloc=f"{who}{at}127.0.0.1:{port}", query=query))

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        from fanin.stores.postgres import PostgresStore

        store = PostgresStore(self.url)
        connection = store.connect()
        try:
            yield connection
        finally:
            connection.close()

    def _rows(self, queries: list[str]) -> list[list[Row]]:
        with self._connection() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute("SET LOCAL enable_seqscan = on; SET LOCAL enable_sort = on")
            return [connection.execute(query).fetchall() for query in queries]


def ground_of(url: str, seed: int) -> Ground:
    """The place for a torture of the database of ``url``. Raises `BadOption` as `open_store` does."""
    store = open_store(url)
    return FileGround(url) if store.dialect == "lite" else SchemaGround(url, buckets=1 + seed % 3)
