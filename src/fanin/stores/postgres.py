"""PostgreSQL 13 and later through psycopg 3.

Every transaction says READ COMMITTED itself, whatever the database's default is. Sessions set synchronous_commit to at
least ``on``, lock and idle time-outs, and pin the plans of the hot statements (index order instead of a sort over all
ready rows). Behind a pooler in transaction mode (``?fanin_pooler=transaction``) all of that goes into each transaction
and no statement is prepared.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from fanin.domain.errors import BadOption
from fanin.protocol.steps import Rows, Statement, Txn, TxnFactory
from fanin.stores import migrate
from fanin.stores.base import Bell, Store, again, drive, retry
from fanin.stores.pg_bell import PostgresBell
from fanin.stores.pg_errors import (
    check_commit,
    check_in_transaction,
    check_primary,
    first_line,
    rollback,
    translated,
    where,
)
from fanin.stores.pg_target import Target
from fanin.stores.pg_wire import Line, Wire

T = TypeVar("T")

POOL_CONNECTIONS = 8


class PostgresStore(Store):
    dialect = "pg"

    def __init__(self, url: str, connections: int = POOL_CONNECTIONS) -> None:
        self.url = url
        self.target = Target(url)
        self.schema = self.target.schema
        self._limit = connections
        self._buckets = 1
        self._pid = -1
        self._reset()

    def _reset(self) -> None:
        self._idle: list[Line] = []
        self._places = threading.BoundedSemaphore(self._limit)
        self._checked = False
        self._pid = os.getpid()  # last: from here on other threads take what stands above

    @property
    def buckets(self) -> int:
        if not self._checked:
            again(self._touch, self.tries)
        return self._buckets

    def _touch(self) -> None:
        with self.connection():
            pass

    def run(self, factory: TxnFactory[T]) -> T:
        return retry(self._write, factory, self.tries)

    def _write(self, factory: TxnFactory[T]) -> T:
        with self.connection() as connection, translated(self.url):
            try:
                self._begin(connection)
                value = drive(factory(), lambda statement: self._execute(connection, statement))
                check_commit(connection.wire.commit())
                return value
            except BaseException:
                rollback(connection)
                raise

    def _begin(self, connection: Line) -> None:
        if self.target.pooled:
            connection.execute(self.target.begin)  # several statements, which only go out alone
        else:
            connection.wire.begin(self.target.begin)

    def read(self, factory: TxnFactory[T]) -> T:
        return retry(self._read, factory, self.tries)

    def _read(self, factory: TxnFactory[T]) -> T:
        with self.connection() as connection, translated(self.url):
            try:
                value = drive(factory(), lambda statement: self._execute(connection, statement))
                connection.wire.settle()
                return value
            except BaseException:
                rollback(connection)
                raise

    def table(self, statement: Statement) -> list[dict[str, Any]]:
        return again(lambda: self._table(statement), self.tries)

    def _table(self, statement: Statement) -> list[dict[str, Any]]:
        with (
            self.connection() as connection,
            translated(self.url),
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            connection.execute("BEGIN READ ONLY; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; "
                               "SET LOCAL enable_sort = on; SET LOCAL plan_cache_mode = auto")  # fmt: skip
            try:
                cursor.execute(statement.query.for_postgres(self.schema), statement.postgres_values(), prepare=False)
                return cursor.fetchall()
            finally:
                rollback(connection)

    def _execute(self, connection: Line, statement: Statement) -> Rows:
        return connection.wire.send(statement, self.schema)

    def run_in(self, connection: Any, txn: Txn[T]) -> T:
        if not isinstance(connection, psycopg.Connection):
            raise BadOption(
                f"within={type(connection).__module__}.{type(connection).__qualname__}: this store is PostgreSQL, so "
                "the connection must be a psycopg.Connection (an AsyncConnection goes with AsyncApp)"
            )
        check_in_transaction(connection.info.transaction_status, connection.autocommit)
        cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
        cursor.adapters.register_loader("uuid", TextLoader)

        def on_theirs(statement: Statement) -> Rows:
            cursor.execute(statement.query.for_postgres(self.schema), statement.postgres_values())
            return cursor.fetchall() if cursor.description else []

        return drive(txn, on_theirs)

    def bell(self, queues: list[str]) -> Bell:
        return PostgresBell(self, queues)

    def reserve(self) -> Store:
        store = PostgresStore(self.url, connections=1)
        store.tries = 1
        return store

    def close(self) -> None:
        self._after_fork()
        idle = self._idle
        self._reset()  # a connection in use is put by, or closed, by whoever uses it
        while idle:
            idle.pop().close()

    def _after_fork(self) -> None:
        """In a child the sockets belong to the parent; the first of its threads puts them aside."""
        if self._pid != os.getpid():
            with _forking:
                if self._pid != os.getpid():
                    _abandoned.append(self._idle)
                    self._reset()

    @contextlib.contextmanager
    def connection(self) -> Iterator[Line]:
        """A connection of ours in autocommit mode; a broken one does not go back."""
        self._after_fork()
        with self._places:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self.connect()
            if not self._checked:
                self._check_schema(connection)
            try:
                yield connection
            finally:
                if connection.info.transaction_status == TransactionStatus.IDLE and not connection.wire.busy:
                    self._idle.append(connection)
                else:
                    connection.close()

    def connect(self, conninfo: str | None = None) -> Line:
        """A new connection with everything set that the promise rests on. Raises `UnsafeStore` on a standby."""
        with translated(self.url):
            try:
                connection = Line.connect(conninfo or self.target.conninfo, autocommit=True, **self.target.options)
            except psycopg.OperationalError as problem:
                if any(words in str(problem) for words in _WRONG_ADDRESS):  # waiting would not help
                    raise BadOption(f"{where(self.url)}: {first_line(problem)}; check the URL") from problem
                raise
            try:
                self.target.prepare(connection)
                for greeting in self.target.greetings:
                    connection.execute(greeting)
                connection.wire = Wire(connection, prepare=not self.target.pooled)
                row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
                check_primary(bool(row and row[0]), self.url)
            except BaseException:
                connection.close()
                raise
            return connection

    def _check_schema(self, connection: psycopg.Connection[Any]) -> None:
        try:
            with translated(self.url):
                migrate.judge(migrate.applied_postgres(connection, self.schema), self.url)
                query = sql.SQL("SELECT value FROM {}.setting WHERE name = 'buckets'").format(
                    sql.Identifier(self.schema)
                )
                row = connection.execute(query).fetchone()
        except BaseException:
            connection.close()
            raise
        self._buckets = int(row[0]) if row else 1
        self._checked = True


_abandoned: list[object] = []
_forking = threading.Lock()

_WRONG_ADDRESS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "could not translate host name")
