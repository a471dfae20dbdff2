"""A psycopg pool of autocommit connections that take ``$1``, opened by the first who asks."""

from __future__ import annotations

from typing import Any

import harness
from psycopg import AsyncRawCursor, RawCursor, connect
from psycopg_pool import AsyncConnectionPool

_pools: list[AsyncConnectionPool] = []


async def fetch(query: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows of one statement, which is its own transaction."""
    if not _pools:
        options = {"autocommit": True, "cursor_factory": AsyncRawCursor}
        _pools.append(AsyncConnectionPool(harness.url(), min_size=2, max_size=8, open=False, kwargs=options))
        await _pools[0].open()
    async with _pools[0].connection() as connection:
        cursor = await connection.execute(query, values)
        return await cursor.fetchall()


def run(query: str, *values: Any) -> Any:
    """The first column of the first row of one statement, if it has rows, on a connection made for it."""
    with connect(harness.url(), autocommit=True, cursor_factory=RawCursor) as connection:
        cursor = connection.execute(query, values or None)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
