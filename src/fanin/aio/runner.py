"""How coroutines drive the transactions of a store."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, TypeVar

from fanin.protocol.steps import Txn, TxnFactory
from fanin.stores.base import Store

T = TypeVar("T")


class Runner(Protocol):
    """Drives transactions for coroutines."""

    async def run(self, factory: TxnFactory[T]) -> T: ...
    async def read(self, factory: TxnFactory[T]) -> T: ...
    async def run_in(self, connection: Any, txn: Txn[T]) -> T: ...
    async def close(self) -> None: ...


class ThreadRunner:
    """For SQLite: a commit waits for the disk, so it happens in a thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, factory: TxnFactory[T]) -> T:
        return await asyncio.to_thread(self._store.run, factory)

    async def read(self, factory: TxnFactory[T]) -> T:
        return await asyncio.to_thread(self._store.read, factory)

    async def run_in(self, connection: Any, txn: Txn[T]) -> T:
        return self._store.run_in(connection, txn)  # the caller's connection stays in the caller's thread

    async def close(self) -> None:
        await asyncio.to_thread(self._store.close)
