"""Oban: a batch of jobs, and a fan-in made by hand (`counter`): batches and workflows are not in the open edition."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import counter
import harness
import pooled
from oban import Oban, worker

SLOTS = 20


@worker(queue="parts")
class Part:
    async def process(self, job: Any) -> None:
        fan, n = job.args["fan"], job.args["n"]
        rows = await pooled.fetch(counter.DONE, fan, n, n)
        if rows and rows[0][0] == 0:
            await joins.enqueue({"fan": fan})


@worker(queue="joins")
class Join:
    async def process(self, job: Any) -> None:
        harness.joined(row[0] for row in await pooled.fetch(counter.VALUES, job.args["fan"]))


joins: Any = Join  # the decorator has added what puts it into its queue


async def serve() -> None:
    pool = await Oban.create_pool(dsn=harness.url(), max_size=10)
    async with Oban(pool=pool, queues={"parts": SLOTS, "joins": 1}):
        await asyncio.Event().wait()


async def create(parts: int) -> None:
    itself = harness.itself(__file__)
    fan = pooled.run(counter.NEW, parts)
    pool = await Oban.create_pool(dsn=harness.url(), max_size=2)
    async with Oban(pool=pool, name="submitter") as oban:
        await oban.enqueue_many([itself.Part.new({"fan": fan, "n": n}) for n in range(parts)])
    await pool.close()


def tables() -> None:
    pooled.run(counter.TABLES)
    command = [str(Path(sys.executable).parent / "oban"), "install", "--dsn", harness.url()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def commands(workers: int) -> list[list[str]]:
    return [[sys.executable, "-c", "import asyncio, on_oban; asyncio.run(on_oban.serve())"] for _ in range(workers)]


if __name__ == "__main__":
    harness.measure(lambda parts: asyncio.run(create(parts)), commands, tables)
