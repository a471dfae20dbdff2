"""PgQueuer: a batch of jobs, and a fan-in made by hand (`counter`): it has none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import counter
import harness
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

BATCH = 100


@asynccontextmanager
async def service() -> AsyncIterator[PgQueuer]:
    async with asyncpg.create_pool(harness.url(), min_size=2, max_size=8) as pool:
        connection = await asyncpg.connect(harness.url())
        queuer = PgQueuer(AsyncpgDriver(connection))
        queries = Queries.from_asyncpg_pool(pool)  # two drivers on one connection would collide

        @queuer.entrypoint("part")
        async def part(job: Any) -> None:
            fan, n = map(int, job.payload.split())
            if await pool.fetchval(counter.DONE, fan, n, n) == 0:
                await queries.enqueue("join", str(fan).encode())

        @queuer.entrypoint("join")
        async def join(job: Any) -> None:
            harness.joined(row[0] for row in await pool.fetch(counter.VALUES, int(job.payload)))

        yield queuer


async def create(parts: int) -> None:
    connection = await asyncpg.connect(harness.url())
    fan = await connection.fetchval(counter.NEW, parts)
    payloads = [f"{fan} {n}".encode() for n in range(parts)]
    await Queries(AsyncpgDriver(connection)).enqueue(["part"] * parts, payloads, [0] * parts)
    await connection.close()


async def tables() -> None:
    connection = await asyncpg.connect(harness.url())
    await connection.execute(counter.TABLES)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def commands(workers: int) -> list[list[str]]:
    code = f"import asyncio, pgqueuer; asyncio.run(pgqueuer.run('on_pgqueuer:service', batch_size={BATCH}))"
    return [[sys.executable, "-c", code] for _ in range(workers)]


if __name__ == "__main__":
    harness.measure(lambda parts: asyncio.run(create(parts)), commands, lambda: asyncio.run(tables()))
