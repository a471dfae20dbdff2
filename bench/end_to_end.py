"""One run as a user sees it: submit, W workers, the successor has read all results. A run that lost a part is void."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.databases import Database
from bench.processes import Program, cpu_seconds, peak_megabytes, server_cpu_seconds
from bench.program import Tasks
from fanin import Job

WAIT_SECONDS = 600.0
WARM_PARTS = 64


class Void(Exception):
    """A run whose outcome is wrong says nothing about speed."""


@dataclass(frozen=True)
class Setting:
    parts: int
    workers: int
    concurrency: int
    sleep: float

    @property
    def ideal_seconds(self) -> float:
        """How long the handlers alone take, in full waves."""
        slots = self.workers * self.concurrency
        return -(-self.parts // slots) * self.sleep


def measure(database: Database, setting: Setting) -> dict[str, float | None]:
    """The figures of one run: seconds, megabytes, or parts per second. None: this machine cannot tell."""
    with database.fresh() as url, workers(url, setting) as running:
        before = [cpu_seconds(worker.pid) for worker in running]
        server_before = server_cpu_seconds(database.server)
        program = Program("submit", url, setting.parts)
        submitted = program.said()
        program.stop()
        job, joined = judge(url, submitted["job"], setting.parts)
        first = min(_firsts(running))
        used = [cpu_seconds(worker.pid) for worker in running]
        server_used = server_cpu_seconds(database.server)
        peaks = [peak_megabytes(worker.pid) for worker in running]
        finished = job.row().finished_at
        assert finished is not None
    total = joined["done"] - submitted["started"]
    return {
        "submit_parts_per_second": setting.parts / (submitted["done"] - submitted["started"]),
        "parts_per_second": setting.parts / total,
        "total_seconds": total,
        "first_part_seconds": first - submitted["done"],
        "join_seconds": joined["started"] - finished,
        "worker_cpu_per_1000": _per_1000(before, used, setting.parts),
        "server_cpu_per_1000": _per_1000([server_before], [server_used], setting.parts),
        "submit_peak_megabytes": submitted["peak"],
        "worker_peak_megabytes": max((peak for peak in peaks if peak is not None), default=None),
        "efficiency": setting.ideal_seconds / total if setting.sleep else None,
    }


@contextmanager
def workers(url: str, setting: Setting) -> Iterator[list[Program]]:
    """Worker processes that are connected and have run parts already, so that their start is not measured."""
    tasks = Tasks(url)
    tasks.app.jobs()  # makes the tables of a new file before several processes want to
    running = [Program("work", url, setting.concurrency, setting.sleep) for _ in range(setting.workers)]
    try:
        cold = list(running)
        while cold:
            tasks.app.map(tasks.warm, range(WARM_PARTS)).wait(WAIT_SECONDS)
            cold = [worker for worker in cold if not _spoke(worker)]
        yield running
    finally:
        for worker in running:
            worker.stop()
        tasks.app.close()


def _spoke(worker: Program) -> bool:
    readable, _, _ = select.select([worker.output], [], [], 0)
    return bool(readable) and bool(worker.said()["warm"])


def _firsts(running: list[Program]) -> list[float]:
    """When each worker started its first part; one that was too late for any says nothing."""
    readable, _, _ = select.select([worker.output for worker in running], [], [], 0)
    return [float(worker.said()["first"]) for worker in running if worker.output in readable]


def judge(url: str, job_id: str, parts: int) -> tuple[Job, dict[str, Any]]:
    """Wait for the successor and judge the run. Raises `Void`."""
    app = Tasks(url).app
    job = app.job(job_id).wait(WAIT_SECONDS)
    successor = job.successor
    if successor is None:
        raise Void(f"job {job_id} is {job.status} and has no successor")
    said = successor.result(WAIT_SECONDS)
    account = job.account()
    if said["count"] != parts or not said["ordered"] or account["successors"] != 1 or account["ends"] != 1:
        raise Void(f"{parts} parts were submitted; the successor saw {said}, the account is {account}")
    return job, said


def _per_1000(before: list[float | None], after: list[float | None], parts: int) -> float | None:
    spent = [b - a for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    return sum(spent) * 1000 / parts if len(spent) == len(before) else None
