"""How fast the raw program is on the same database, in the same minutes: the limit."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from typing import Any

from bench.databases import Database
from bench.end_to_end import Figures, Void
from bench.raw import Held, open_raw
from fanin.domain.limits import CLAIM_PARTS

START_SECONDS = 30.0
ROUNDS_SECONDS = 3600.0


def measure(database: Database, parts: int, workers: int, batch: int = CLAIM_PARTS) -> Figures:
    """``submit_parts_per_second``, ``parts_per_second`` and ``total_seconds`` of the raw program."""
    with database.fresh() as url:
        address = url.removeprefix("sqlite:///") if database.name == "SQLite" else database.address
        raw = open_raw(database.name, address, batch)
        raw.create()
        # Spawned, because no connection may cross a fork.
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(workers + 1, timeout=ROUNDS_SECONDS)
        running = [context.Process(target=_work, args=(database.name, address, batch, barrier)) for _ in range(workers)]
        for process in running:
            process.start()
        barrier.wait(START_SECONDS)  # all are connected
        started = time.time()
        raw.submit(parts)
        submitted = time.time()
        barrier.wait()
        barrier.wait()  # all have found nothing left
        results = list(raw.results())
        done = time.time()
        for process in running:
            process.join()
        if results != list(range(parts)) or raw.ends() != 1:
            raise Void(f"the raw program lost something: {len(results)} of {parts} results, {raw.ends()} ends")
        raw.drop()
        raw.close()
    return {
        "submit_parts_per_second": parts / (submitted - started),
        "parts_per_second": parts / (done - started),
        "total_seconds": done - started,
    }


def _work(name: str, address: str, batch: int, barrier: Any) -> None:
    raw = open_raw(name, address, batch)
    raw.ends()
    barrier.wait()
    barrier.wait()
    held: Held = []
    claim = ""
    while True:
        following = str(uuid.uuid4())
        held, claim = raw.round(held, claim, following), following
        if not held:
            break
    barrier.wait()
    raw.close()
