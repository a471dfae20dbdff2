"""Many connections that complete single parts of one job, on PostgreSQL: how they wait for each other at its counters.

Each connection holds its share of the parts before the clock starts, and then settles them one to a transaction, as a
worker does that runs one slow part at a time. Two processes share the connections, each with one thread per connection.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any, NamedTuple

from bench.databases import Database
from bench.end_to_end import Void, check
from bench.summary import Row, medians, percentile
from bench.tasks import Tasks
from bench.waits import Waits
from fanin.domain import identity
from fanin.domain.limits import CLAIM_PARTS
from fanin.domain.model import Claim, Report, Verdict
from fanin.protocol import finish, lease
from fanin.stores import Store, open_store

GRID = [(n, 1) for n in (1, 2, 8, 32, 64)] + [(n, stripes) for n in (8, 32, 64) for stripes in (4, 16, 64)]
"""(connections, stripes)."""
LEASE_SECONDS = 600.0
READY_SECONDS = 120.0
PROCESSES = 2


class Cell(NamedTuple):
    connections: int
    stripes: int
    parts: int

    @property
    def processes(self) -> int:
        return min(PROCESSES, self.connections)


def row(database: Database, connections: int, stripes: int, parts: int, repeat: int) -> Row:
    """Medians of one cell of the grid."""
    runs = [measure(database, Cell(connections, stripes, parts)) for _ in range(repeat)]
    return {
        "kind": "contention", "database": database.name, "connections": connections, "stripes": stripes,
        "parts": parts, **medians(runs), "runs": runs,
    }  # fmt: skip


def measure(database: Database, cell: Cell) -> Row:
    """Parts per second, the percentiles of one transaction, and what the connections waited for."""
    with database.fresh() as url:
        tasks = Tasks(url)
        job = tasks.app.map(tasks.part, range(cell.parts), then=tasks.joined, stripes=cell.stripes)
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(cell.processes + 1, timeout=READY_SECONDS)
        answers: Any = context.SimpleQueue()
        running = [
            context.Process(target=_settle_all, args=(url, cell, number, barrier, answers))
            for number in range(cell.processes)
        ]
        for process in running:
            process.start()
        barrier.wait()  # every part is held
        with Waits(database, url) as waits:
            barrier.wait()
            took = [answers.get() for _ in running]
        for process in running:
            process.join()
        account, found = job.account(), job.row()
        if (found.status, account["ends"], account["successors"]) != ("completed", 1, 1):
            raise Void(f"{cell} left the job {found.status}: {account}")
        tasks.app.close()
        check(url)
    seconds = max(done for _, done, _ in took) - min(started for started, _, _ in took)
    each = [length for _, _, lengths in took for length in lengths]
    return {
        "parts_per_second": cell.parts / seconds,
        "p50_seconds": percentile(each, 0.5),
        "p99_seconds": percentile(each, 0.99),
        **waits.shares(cell.connections),
    }


def _settle_all(url: str, cell: Cell, number: int, barrier: Any, answers: Any) -> None:
    """One process: its share of the connections, each in a thread with a store of its own."""
    mine = range(number, cell.connections, cell.processes)
    shares = [_hold(url, cell, connection) for connection in mine]
    lengths: list[float] = []
    threads = [threading.Thread(target=_settle, args=(store, claims, lengths)) for store, claims in shares]
    barrier.wait()
    barrier.wait()
    started = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers.put((started, time.time(), lengths))
    for store, _ in shares:
        store.close()


def _hold(url: str, cell: Cell, connection: int) -> tuple[Store, list[Claim]]:
    """A store of one connection, and the parts that it has claimed."""
    store = open_store(url)
    wanted = cell.parts // cell.connections + (connection < cell.parts % cell.connections)
    claims: list[Claim] = []
    while len(claims) < wanted:
        claims += _claim(store, min(wanted - len(claims), CLAIM_PARTS))
    return store, claims


def _claim(store: Store, room: int) -> list[Claim]:
    claim_id = identity.new_claim_id()
    return store.run(lambda: lease.claim(0, "default", {"part": LEASE_SECONDS}, room, claim_id, "bench"))


def _settle(store: Store, claims: list[Claim], lengths: list[float]) -> None:
    for claim in claims:
        report = Report(claim, "succeed", str(claim.idx))
        begun = time.monotonic()
        (answer,) = store.run(lambda: finish.settle(claim.bucket, [report], "bench"))
        lengths.append(time.monotonic() - begun)
        if answer.verdict not in (Verdict.OK, Verdict.LAST):
            raise Void(f"part {claim.idx} was answered {answer}")
