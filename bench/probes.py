"""What a worker costs while it has nothing to do, how soon it starts, and how much memory a large job takes."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Any

from bench.databases import Database
from bench.end_to_end import WAIT_SECONDS, Setting, measure, workers
from bench.processes import cpu_seconds
from bench.program import Tasks

SETTLE_SECONDS = 12.0
"""After the warm-up: PostgreSQL counts what a session has done up to ten seconds later."""
PAUSE_SECONDS = (0.1, 0.4)

ONE_WORKER = Setting(parts=0, workers=1, concurrency=4, sleep=0.0)


def idle(database: Database, seconds: float) -> dict[str, Any]:
    """One worker without work for so many seconds: transactions per second and the share of one core."""
    with database.fresh() as url, workers(url, ONE_WORKER) as (worker,):
        time.sleep(SETTLE_SECONDS)
        counts = database.name == "PostgreSQL"
        ended = database.transactions() if counts else 0
        cpu = cpu_seconds(worker.pid)
        time.sleep(seconds)
        used = cpu_seconds(worker.pid)
        ended = database.transactions() - ended if counts else 0
    return {
        "database": database.name,
        "transactions_per_second": ended / seconds if counts else None,
        "cpu_share": None if cpu is None or used is None else (used - cpu) / seconds,
    }


def pickup(database: Database, times: int) -> dict[str, Any]:
    """Seconds from the call of submit to the start of the handler, with an idle worker: an upper bound of the delay
    after the commit."""
    delays: list[float] = []
    with database.fresh() as url, workers(url, ONE_WORKER):
        tasks = Tasks(url)
        for _ in range(times):
            time.sleep(random.uniform(*PAUSE_SECONDS))  # at any point of the worker's own rhythm
            called = time.time()
            delays.append(tasks.app.submit(tasks.now).result(WAIT_SECONDS) - called)
        tasks.app.close()
    delays.sort()
    return {
        "database": database.name,
        "p50_seconds": statistics.median(delays),
        "p99_seconds": delays[math.ceil(len(delays) * 0.99) - 1],
        "worst_seconds": delays[-1],
    }


def memory(database: Database, parts: int) -> dict[str, Any]:
    """Peak memory of the submitting program and of the largest of two workers, one of which runs the successor."""
    found = measure(database, Setting(parts, workers=2, concurrency=4, sleep=0.0))
    return {
        "database": database.name,
        "parts": parts,
        "submit_peak_megabytes": found["submit_peak_megabytes"],
        "worker_peak_megabytes": found["worker_peak_megabytes"],
    }
