"""A tree of nested jobs, five levels deep: how long it takes to be joined, and what the worker needs for it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.databases import Database
from bench.end_to_end import WAIT_SECONDS, Void, check, workers
from bench.processes import peak_megabytes
from bench.settings import Setting
from bench.summary import Row
from bench.tasks import Tasks

LEVELS = 5
LEAVES = (1_000, 10_000, 100_000)


def widths(leaves: int) -> list[int]:
    """How wide the jobs of each level are, so that there are so many leaves: as even as the number's factors allow."""
    found = [1] * LEVELS
    for factor in reversed(_factors(leaves)):
        found[found.index(min(found))] *= factor
    return found


def _factors(number: int) -> list[int]:
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


def rows(database: Database, leaves: int) -> Iterator[Row]:
    """One run, with one worker process."""
    with database.fresh() as url:
        with workers(url, Setting(leaves, workers=1)) as (worker,), Tasks(url).app as app:
            started = time.monotonic()
            job = app.map(app.tasks["tree"], [widths(leaves)])
            found = job.result(WAIT_SECONDS)
            seconds = time.monotonic() - started
            peak, server_peak = peak_megabytes(worker.pid), peak_megabytes(database.server)
        if found != leaves:
            raise Void(f"a tree of {leaves} leaves was joined to {found}")
        check(url)
    yield {
        "kind": "tree", "database": database.name, "parts": leaves, "levels": LEVELS, "total_seconds": seconds,
        "parts_per_second": leaves / seconds, "worker_peak_megabytes": peak, "server_peak_megabytes": server_peak,
    }  # fmt: skip
