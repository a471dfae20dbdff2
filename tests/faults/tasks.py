"""What the workers of the storm run, each in a process of its own: ``python -m tests.faults.tasks URL``."""

from __future__ import annotations

import logging
import random
import signal
import sys
import time
from typing import Any

import fanin
from fanin.runtime.worker import Worker

LEASE_SECONDS = 1.0

app = fanin.App("sqlite:///tasks-only.db")


@app.task(name="part", lease=LEASE_SECONDS, attempts=20, backoff=0.05)
def part(x: int) -> tuple[int, int]:
    """Takes a moment; now and then it fails, or takes longer than a lease. Returns the square and who found it."""
    time.sleep(random.uniform(0.02, 0.25) if random.random() > 0.02 else LEASE_SECONDS * 1.2)
    if random.random() < 0.05:
        raise ValueError(x)
    return x * x, fanin.current().attempt


@app.task(name="part-async", lease=LEASE_SECONDS, attempts=20, backoff=0.05)
async def part_async(x: int) -> tuple[int, int]:
    import asyncio

    await asyncio.sleep(random.uniform(0.02, 0.25))
    return x * x, fanin.current().attempt


@app.task(name="gather", lease=LEASE_SECONDS, attempts=20)
def gather(found: fanin.Joined[tuple[int, int]]) -> dict[str, Any]:
    return {"sum": sum(square for square, _ in found), "count": len(found), "failed": found.failed}


@app.task(name="gather-ids", lease=LEASE_SECONDS, attempts=20)
def gather_ids(found: fanin.Joined[str]) -> int:
    return len(set(found))


@app.task(name="split", lease=LEASE_SECONDS, attempts=20, backoff=0.05)
def split(n: int) -> str:
    """A part that starts a job of its own, under a key, so that its next attempt finds the same one."""
    part_ = fanin.current()
    child = running.map(part, range(n), then=gather, key=f"child of {part_.idempotency_key}")
    time.sleep(random.uniform(0.0, 0.1))
    return child.id


running = app


def use(url: str) -> fanin.App:
    """The same tasks on another database."""
    global running
    running = fanin.App(url)
    running.tasks.update(app.tasks)
    return running


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, format="%(process)d %(levelname)s %(message)s")
    from tests.faults import tasks  # the module, not this script: its tasks are the ones to run

    worker = Worker(tasks.use(sys.argv[1]), concurrency=4)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
