"""Let a transaction die at a chosen place: after its k-th statement, in its COMMIT, or just after it.

The connection is dropped there, as if the process had been killed, and the database is left to clean up by itself.
"""

from __future__ import annotations

import time
from enum import Enum
from typing import Any, NamedTuple

import apsw

from fanin.protocol.steps import Again, Rows, Statement, TxnFactory
from fanin.stores.base import Store, drive
from fanin.stores.postgres import PostgresStore
from fanin.stores.sqlite import SqliteStore

NOTICE_SECONDS = 90


class When(Enum):
    STATEMENT = "after a statement"
    """The connection is gone before COMMIT was said: nothing may have happened."""
    COMMITTING = "while committing"
    """COMMIT was sent and its answer never read: it may have happened or not."""
    COMMITTED = "after the commit"
    """It has happened, and the caller does not know."""


class Cut(NamedTuple):
    when: When
    statements: int = 0
    """How many statements have run; for ``STATEMENT`` only."""

    def __str__(self) -> str:
        return f"{self.when.value} {self.statements}" if self.when is When.STATEMENT else self.when.value


class _Dead(Exception):
    """The process has died here."""


class _Line:
    """One connection of either database, as a thing that can be dropped."""

    def __init__(self, store: Store) -> None:
        assert isinstance(store, PostgresStore | SqliteStore)
        self._store = store
        self._connection: Any = store.connect()

    def begin(self) -> None:
        self._connection.execute(
            self._store.target.begin if isinstance(self._store, PostgresStore) else "BEGIN IMMEDIATE"
        )

    def execute(self, statement: Statement) -> Rows:
        if isinstance(self._store, SqliteStore):
            text, values = statement.query.for_sqlite(), statement.sqlite_values()
            return list(self._connection.execute(text, values))
        text, values = statement.query.for_postgres(self._store.schema), statement.postgres_values()
        cursor = self._connection.execute(text, values)
        return cursor.fetchall() if cursor.description else []

    def end(self, word: str) -> None:
        self._connection.execute(word)

    def send_commit(self) -> None:
        """COMMIT without waiting for the answer. An SQLite commit has no such moment."""
        if isinstance(self._connection, apsw.Connection):
            self.end("COMMIT")
        else:
            self._connection.pgconn.send_query(b"COMMIT")
            self._connection.pgconn.flush()

    def drop(self) -> None:
        if isinstance(self._connection, apsw.Connection):
            self._connection.close()
        else:
            from fanin.testing.stepper import sever

            session = self._connection.info.backend_pid
            sever(self._connection)
            self._wait_for_the_end_of(session)

    def _wait_for_the_end_of(self, session: int) -> None:
        """Until the server has noticed: what comes next would else skip rows that the dead session still locks."""
        assert isinstance(self._store, PostgresStore)
        given_up = time.monotonic() + NOTICE_SECONDS
        with self._store.connection() as connection:
            while connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [session]).fetchone():
                if time.monotonic() > given_up:
                    raise TimeoutError(
                        f"the server has not noticed in {NOTICE_SECONDS} s that session {session} is gone"
                    )
                time.sleep(0.002)


def statements(store: Store, factory: TxnFactory[Any]) -> list[Statement]:
    """Run a transaction to its end and commit it. Returns the statements that it made, those of its tries included."""
    made: list[Statement] = []
    _run(store, factory, None, made)
    return made


def cuts(count: int) -> list[Cut]:
    """All places where a transaction of so many statements can be cut. After the last one is right before COMMIT."""
    return [*(Cut(When.STATEMENT, k) for k in range(count + 1)), Cut(When.COMMITTING), Cut(When.COMMITTED)]


def run_cut(store: Store, factory: TxnFactory[Any], cut: Cut) -> None:
    """Run a transaction on a connection of its own, and drop that at the cut."""
    _run(store, factory, cut, [])


def _run(store: Store, factory: TxnFactory[Any], cut: Cut | None, made: list[Statement]) -> None:
    line = _Line(store)
    last = cut.statements if cut is not None and cut.when is When.STATEMENT else None

    def execute(statement: Statement) -> Rows:
        if len(made) == last:
            raise _Dead
        made.append(statement)
        return line.execute(statement)

    try:
        while True:
            line.begin()
            try:
                drive(factory(), execute)
                break
            except Again as again:
                factory = again.factory
                line.end("ROLLBACK")
        if last is not None:
            raise _Dead
        if cut is not None and cut.when is When.COMMITTING:
            line.send_commit()
        else:
            line.end("COMMIT")
    except _Dead:
        pass
    finally:
        line.drop()
