"""PostgreSQL 13 and later through psycopg 3: the same transactions, driven in sync and in async programs.

Every transaction says READ COMMITTED itself, whatever the database's default is. Sessions set synchronous_commit to at
least ``on``, lock and idle time-outs, and pin the plans of the hot statements (index order instead of a sort over all
ready rows). Behind a pooler in transaction mode (``?fanin_pooler=transaction``) all of that goes into each transaction
and no statement is prepared.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors, sql
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from fanin.domain.errors import BadOption, StoreBusy, StoreUnreachable, Unavailable, UnsafeStore
from fanin.protocol.steps import Again, Rows, Statement, Txn, TxnFactory
from fanin.stores import migrate
from fanin.stores.base import Bell, Store, again, backoff, drive, retry

T = TypeVar("T")

MIN_VERSION = 130000
LOCK_SECONDS = 10
IDLE_SECONDS = 15
POOL_CONNECTIONS = 8

_PINS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "lock_timeout": f"{LOCK_SECONDS}s",
    "idle_in_transaction_session_timeout": f"{IDLE_SECONDS}s",
}
"""Without statistics (a table just filled) the planner sorts all ready rows at each claim, and scans all parts of a job
where it joins a batch of them: the cost per part then grows with the job. The enable switches only make the other plans
a last resort."""
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_KEEPALIVE = {
    "connect_timeout": 10, "keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 20000,
}  # fmt: skip
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'on', {local}) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
)


class Target:
    """A URL taken apart: what libpq is told, the schema, and whether a transaction pooler stands between."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self.url = url
        self.schema = query.pop("fanin_schema", "fanin")
        self.pooled = query.pop("fanin_pooler", "none") == "transaction"
        self.listen_url = query.pop("fanin_listen", None) or os.environ.get("FANIN_LISTEN_URL")
        self.conninfo = urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))
        if not re.fullmatch("[a-z_][a-z0-9_]{0,49}", self.schema):
            raise BadOption(
                f"fanin_schema={self.schema!r}: use a name of lower-case letters, digits and underscores, up to 50"
            )
        known = conninfo_to_dict(self.conninfo)
        self.options: dict[str, Any] = {k: v for k, v in _KEEPALIVE.items() if k not in known}
        self.options["client_encoding"] = "utf8"  # whatever the environment says
        if not self.pooled:
            pins = " ".join(f"-c {name}={value}" for name, value in _PINS.items())
            self.options["options"] = f"{known.get('options', '')} {pins}".strip()
            self.begin = _BEGIN
        else:
            pins = "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in _PINS.items())
            self.begin = f"{_BEGIN}; {pins}; {_DURABLE.format(local='true')}"

    def prepare(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        """What both kinds of connection need before their first statement."""
        connection.prepare_threshold = None if self.pooled else 2
        connection.adapters.register_loader("uuid", TextLoader)  # ids are strings everywhere
        connection.adapters.register_dumper(list, ColumnDumper)
        version = connection.info.server_version
        if version < MIN_VERSION:
            raise UnsafeStore(f"PostgreSQL {version // 10000} is too old: 13 or later is needed")
        encoding = connection.info.parameter_status("server_encoding")
        if encoding not in ("UTF8", None):  # a pooler may not say
            raise UnsafeStore(
                f"{where(self.url)} stores text as {encoding}, where not every result fits: create the database with "
                "ENCODING 'UTF8'"
            )

    @property
    def greetings(self) -> list[str]:
        """Statements to run on a new connection."""
        return [] if self.pooled else [_DURABLE.format(local="false")]


class ColumnDumper(Dumper):
    """A list as an array literal without a type: every list in the protocol has a cast. psycopg's own dumper asks each
    element for its type and its quotes, which costs the client as much as all the rest of a transaction."""

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = self.connection.info.encoding if self.connection is not None else "utf-8"

    def dump(self, column: list[Any]) -> bytes:
        if set(map(type, column)) == {str} and (text := "\0".join(column)).count("\0") < len(column):
            literal = '{"' + _escaped(text).replace("\0", '","') + '"}'
        else:
            literal = "{" + ",".join(map(_element, column)) + "}"
        if "\0" in literal:
            raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00)")
        return literal.encode(self._encoding)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    return '"' + _escaped(value) + '"' if isinstance(value, str) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


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
        self._idle: list[psycopg.Connection[Any]] = []
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
            connection.execute(self.target.begin)
            try:
                value = drive(factory(), lambda statement: self._execute(connection, statement))
                check_commit(connection.execute("COMMIT").statusmessage)
                return value
            except BaseException:
                rollback(connection)
                raise

    def read(self, factory: TxnFactory[T]) -> T:
        return retry(self._read, factory, self.tries)

    def _read(self, factory: TxnFactory[T]) -> T:
        with self.connection() as connection, translated(self.url):
            return drive(factory(), lambda statement: self._execute(connection, statement))

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

    def _execute(self, connection: psycopg.Connection[Any], statement: Statement) -> Rows:
        cursor = connection.execute(statement.query.for_postgres(self.schema), statement.postgres_values())
        return cursor.fetchall() if cursor.description else []

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
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
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
                usable = not connection.closed and not connection.broken
                if usable and connection.info.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()

    def connect(self, conninfo: str | None = None) -> psycopg.Connection[Any]:
        """A new connection with everything set that the promise rests on. Raises `UnsafeStore` on a standby."""
        with translated(self.url):
            try:
                connection = psycopg.connect(conninfo or self.target.conninfo, autocommit=True, **self.target.options)
            except psycopg.OperationalError as problem:
                if any(words in str(problem) for words in _WRONG_ADDRESS):  # waiting would not help
                    raise BadOption(f"{where(self.url)}: {_first_line(problem)}; check the URL") from problem
                raise
            try:
                self.target.prepare(connection)
                for greeting in self.target.greetings:
                    connection.execute(greeting)
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


class AsyncPostgres:
    """The same transactions on an event loop. One instance belongs to one loop."""

    def __init__(self, store: PostgresStore) -> None:
        import asyncio

        self._store = store
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._places = asyncio.BoundedSemaphore(POOL_CONNECTIONS)

    async def run(self, factory: TxnFactory[T]) -> T:
        """As `Store.run`."""
        return await self._retry(self._store.target.begin, factory)

    async def read(self, factory: TxnFactory[T]) -> T:
        return await self._retry(None, factory)

    async def _retry(self, begin: str | None, factory: TxnFactory[T]) -> T:
        import asyncio

        pauses = backoff(self._store.tries)
        while True:
            try:
                async with self._connection() as connection:
                    with translated(self._store.url):
                        return await self._attempt(connection, begin, factory)
            except Again as again:
                factory = again.factory
            except Unavailable:
                pause = next(pauses, None)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def _attempt(self, connection: psycopg.AsyncConnection[Any], begin: str | None, factory: TxnFactory[T]) -> T:
        if begin is None:
            return await self._drive(connection.cursor(), factory())
        await connection.execute(begin)
        try:
            value = await self._drive(connection.cursor(), factory())
            check_commit((await connection.execute("COMMIT")).statusmessage)
            return value
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                await connection.execute("ROLLBACK")
            raise

    async def run_in(self, connection: Any, txn: Txn[T]) -> T:
        """Run inside the caller's own transaction on a psycopg.AsyncConnection."""
        if not isinstance(connection, psycopg.AsyncConnection):
            raise BadOption(
                f"within={type(connection).__qualname__}: AsyncApp on PostgreSQL takes a psycopg.AsyncConnection"
            )
        check_in_transaction(connection.info.transaction_status, connection.autocommit)
        cursor = connection.cursor(row_factory=psycopg.rows.tuple_row)
        cursor.adapters.register_loader("uuid", TextLoader)
        return await self._drive(cursor, txn)

    async def _drive(self, cursor: psycopg.AsyncCursor[Any], txn: Txn[T]) -> T:
        try:
            statement = next(txn)
            while True:
                await cursor.execute(statement.query.for_postgres(self._store.schema), statement.postgres_values())
                statement = txn.send(await cursor.fetchall() if cursor.description else [])
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            txn.close()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with self._places:
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                yield connection
            finally:
                usable = not connection.closed and not connection.broken
                if usable and connection.info.transaction_status == TransactionStatus.IDLE:
                    self._idle.append(connection)
                else:
                    await connection.close()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        import asyncio

        store = self._store
        # The schema, version and standby checks are made once, by the sync twin, off the loop.
        await asyncio.to_thread(self._store._touch)
        with translated(store.url):
            connection = await psycopg.AsyncConnection.connect(
                store.target.conninfo, autocommit=True, **store.target.options
            )
            store.target.prepare(connection)
            for greeting in store.target.greetings:
                await connection.execute(greeting)
            return connection

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()


class PostgresBell(Bell):
    """LISTEN on a connection of its own, watched by a thread. Deaf is not dead: the worker polls all the same."""

    def __init__(self, store: PostgresStore, queues: list[str]) -> None:
        self._store = store
        self._queues = set(queues)
        self._rung = threading.Event()
        self._closing = threading.Event()
        self._wake, self._woken = os.pipe()
        target = store.target
        self._deaf = target.pooled and target.listen_url is None
        self._thread = threading.Thread(target=self._listen, name="fanin-bell", daemon=True)
        if not self._deaf:
            self._thread.start()

    def wait(self, seconds: float) -> bool:
        rung = self._rung.wait(seconds)
        self._rung.clear()
        return rung

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            os.write(self._woken, b"x")
        if self._thread.is_alive():
            self._thread.join(5)
        for end in (self._wake, self._woken):
            with contextlib.suppress(OSError):
                os.close(end)

    def _listen(self) -> None:
        pause = 0.2
        while not self._closing.is_set():
            try:
                with self._store.connect(self._store.target.listen_url) as connection:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f'"{self._store.schema}".bell')))
                    self._rung.set()  # what came between the last look and this LISTEN
                    pause = 0.2
                    self._hear(connection)
            except (psycopg.Error, Unavailable, OSError):
                if self._closing.wait(pause):
                    return
                pause = min(pause * 2, 10.0)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        """Until asked to close. A silent half minute is ended by a query, which finds a dead connection."""
        while not self._closing.is_set():
            readable, _, _ = select.select([connection.fileno(), self._wake], [], [], 30.0)
            if self._wake in readable:
                return
            if not readable:
                connection.execute("SELECT 1")
                continue
            for note in connection.notifies(timeout=0):
                if not self._queues or note.payload in self._queues:
                    self._rung.set()


_abandoned: list[object] = []
_forking = threading.Lock()

_WRONG_ADDRESS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "could not translate host name")
_AGAIN = (
    errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable,
    errors.IdleInTransactionSessionTimeout, errors.QueryCanceled, errors.TooManyConnections, errors.CannotConnectNow,
    errors.AdminShutdown, errors.CrashShutdown, errors.DiskFull, errors.OutOfMemory, errors.ReadOnlySqlTransaction,
    errors.IoError,
)  # fmt: skip
_STORAGE = ("md.c", "fd.c", "slru.c", "buffile.c", "xlog.c")
"""Where the server's own source meets the disk. A quota that is used up, or a file that may not grow, has no SQLSTATE:
it is reported as an internal error from one of these."""


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """psycopg's errors as ours. What the database could not do now is `Unavailable`: never a failure of a part."""
    try:
        yield
    except (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable) as problem:
        raise StoreBusy(f"{where(url)} asked for another try: {_first_line(problem)}") from problem
    except _AGAIN as problem:
        raise Unavailable(f"{where(url)}: {_first_line(problem)}") from problem
    except errors.InternalError_ as problem:
        if problem.diag.source_file not in _STORAGE:
            raise
        raise Unavailable(f"{where(url)} cannot write: {_first_line(problem)}") from problem
    except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
        raise StoreUnreachable(f"cannot reach {where(url)}: {_first_line(problem)}") from problem


def check_commit(tag: str | None) -> None:
    """COMMIT of a transaction that had failed answers ROLLBACK, without an error."""
    if tag != "COMMIT":
        raise Unavailable(f"the database answered COMMIT with {tag}")


def check_primary(in_recovery: bool, url: str) -> None:
    if in_recovery:
        raise UnsafeStore(
            f"{where(url)} is a standby: decisions can only be made on the primary; use its address, or a list of "
            "hosts with target_session_attrs=read-write"
        )


def check_in_transaction(status: TransactionStatus, autocommit: bool) -> None:
    """The caller's connection must be in a transaction, or open one by itself with our first statement."""
    if status == TransactionStatus.INERROR:
        raise BadOption("within=: the connection's transaction has failed; roll it back first")
    if autocommit and status == TransactionStatus.IDLE:
        raise BadOption(
            "within=: this connection commits every statement: put the call in `with connection.transaction():`"
        )


def rollback(connection: psycopg.Connection[Any]) -> None:
    """Leave the transaction, if the connection still can; a broken one is thrown away by its owner."""
    with contextlib.suppress(psycopg.Error):
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.execute("ROLLBACK")


def where(url: str) -> str:
    """The URL without its password, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return f"{parts.scheme}://{host}{parts.path}"


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
