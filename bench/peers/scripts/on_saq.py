"""SAQ: a job that maps the parts and polls until all have results, on Redis. The waiting is that job's, in memory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import harness
from saq import Queue

SLOTS = 20
LONGEST_SECONDS = 600
POLL_SECONDS = 0.05

queue = Queue.from_url(harness.url() or "redis://127.0.0.1")


async def part(context: Any, *, n: int) -> int:
    return n


async def parent(context: Any, *, parts: int) -> None:
    each = [{"n": n} for n in range(parts)]
    mapped = context["worker"].queue.map("part", each, timeout=LONGEST_SECONDS, poll_interval=POLL_SECONDS)
    harness.joined(await mapped)


settings: dict[str, Any] = {"queue": queue, "functions": (part, parent), "concurrency": SLOTS}


def submit(parts: int) -> None:
    async def create() -> None:
        own = Queue.from_url(harness.url())
        await own.connect()
        await own.enqueue("parent", parts=parts, timeout=LONGEST_SECONDS)
        await own.disconnect()

    asyncio.run(create())


def commands(workers: int) -> list[list[str]]:
    return [[str(Path(sys.executable).parent / "saq"), "on_saq.settings"] for _ in range(workers)]


if __name__ == "__main__":
    harness.measure(submit, commands)
