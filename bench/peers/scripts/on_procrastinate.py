"""Procrastinate: a batch of jobs, and a fan-in made by hand (`counter`): it has none."""

from __future__ import annotations

import asyncio
import sys

import counter
import harness
import pooled
import procrastinate

SLOTS = 10

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=harness.url()))


@app.task(name="part")
async def part(fan: int, n: int) -> None:
    rows = await pooled.fetch(counter.DONE, fan, n, n)
    if rows and rows[0][0] == 0:
        await join.defer_async(fan=fan)


@app.task(name="join")
async def join(fan: int) -> None:
    harness.joined(row[0] for row in await pooled.fetch(counter.VALUES, fan))


async def create(parts: int) -> None:
    fan = pooled.run(counter.NEW, parts)
    own = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=harness.url()))
    async with own.open_async():
        await own.configure_task("part").batch_defer_async(*({"fan": fan, "n": n} for n in range(parts)))


async def tables() -> None:
    pooled.run(counter.TABLES)
    own = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=harness.url()))
    async with own.open_async():
        await own.schema_manager.apply_schema_async()


def commands(workers: int) -> list[list[str]]:
    words = ["--app", "on_procrastinate.app", "--log-level", "warning", "worker", "--concurrency", str(SLOTS)]
    return [[sys.executable, "-m", "procrastinate", *words] for _ in range(workers)]


if __name__ == "__main__":
    harness.measure(lambda parts: asyncio.run(create(parts)), commands, lambda: asyncio.run(tables()))
