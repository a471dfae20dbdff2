"""The same transactions driven on an event loop, by psycopg's own cursors."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader

from fanin.domain.errors import BadOption, Unavailable
from fanin.protocol.steps import Again, Txn, TxnFactory
from fanin.stores.base import backoff
from fanin.stores.pg_errors import check_commit, check_in_transaction, translated
from fanin.stores.postgres import POOL_CONNECTIONS, PostgresStore

T = TypeVar("T")


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
