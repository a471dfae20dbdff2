"""What a worker costs while it has nothing to do, how soon it starts, how soon a successor does, and peak memory."""

from __future__ import annotations

import random
import time
from typing import Any

from bench.databases import Database
from bench.end_to_end import WAIT_SECONDS, check, difference, judge, measure, scaled, workers
from bench.processes import cpu_seconds
from bench.settings import Setting
from bench.summary import percentile
from bench.tasks import Tasks

SETTLE_SECONDS = 12.0
"""After the warm-up: PostgreSQL counts what a session has done up to ten seconds later."""
PAUSE_SECONDS = (0.1, 0.4)
JOIN_PARTS = 20

IDLE_WORKERS = 10

ONE_WORKER = Setting(parts=0, workers=1)
MANY_WORKERS = Setting(parts=0, workers=IDLE_WORKERS)
TWO_WORKERS = Setting(parts=0, workers=2)


def idle(database: Database, seconds: float) -> dict[str, Any]:
    """Workers without work for so many seconds: transactions per second and share of one core of each, and the share
    of one core that 100 of them would take the server, without what it takes by itself."""
    with database.fresh() as url:
        by_itself = cpu_seconds(database.server)
        time.sleep(0 if by_itself is None else seconds)
        alone = difference([by_itself], [cpu_seconds(database.server)])
        with workers(url, MANY_WORKERS) as running:
            time.sleep(SETTLE_SECONDS)
            counts = database.name == "PostgreSQL"
            ended = database.transactions() if counts else 0
            cpu, server = [cpu_seconds(worker.pid) for worker in running], cpu_seconds(database.server)
            time.sleep(seconds)
            used = difference(cpu, [cpu_seconds(worker.pid) for worker in running])
            server_used = difference([server, alone], [cpu_seconds(database.server), 0.0])
            ended = database.transactions() - ended if counts else 0
    return {
        "kind": "idle",
        "database": database.name,
        "workers": IDLE_WORKERS,
        "transactions_per_second": ended / seconds / IDLE_WORKERS if counts else None,
        "cpu_share": scaled(used, 1 / seconds / IDLE_WORKERS),
        "server_share_of_100": scaled(server_used, 100 / seconds / IDLE_WORKERS),
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
    return {"kind": "pickup", "database": database.name, **_spread(delays)}


def join(database: Database, times: int) -> dict[str, Any]:
    """Seconds from the statement that ends a job to the start of its successor, for small jobs one after the other."""
    delays: list[float] = []
    with database.fresh() as url:
        with workers(url, TWO_WORKERS):
            tasks = Tasks(url)
            for _ in range(times):
                job = tasks.app.map(tasks.part, range(JOIN_PARTS), then=tasks.joined)
                ended, said = judge(tasks.app, job.id, JOIN_PARTS)
                delays.append(said["started"] - (ended.row().finished_at or 0.0))
            tasks.app.close()
        check(url)
    return {"kind": "join", "database": database.name, **_spread(delays)}


def _spread(delays: list[float]) -> dict[str, float]:
    return {
        "p50_seconds": percentile(delays, 0.5),
        "p99_seconds": percentile(delays, 0.99),
        "worst_seconds": max(delays),
        "times": len(delays),
    }


def memory(database: Database, parts: int) -> dict[str, Any]:
    """Peak memory of the submitting program, of the largest of two workers, one of which runs the successor, and of
    the largest of the server's processes (its shared buffers are in there)."""
    found = measure(database, Setting(parts, workers=2))
    peaks = {key: found[key] for key in found if key.endswith("_peak_megabytes")}
    return {"kind": "memory", "database": database.name, "parts": parts, **peaks}
