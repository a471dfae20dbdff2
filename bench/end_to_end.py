"""One run as a user sees it: submit, W workers, the successor has read all results. A run that lost a part is void."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import child
from bench.databases import Database
from bench.processes import Program, cpu_seconds, peak_megabytes, written_bytes
from bench.settings import Setting, Work
from bench.tasks import Tasks
from fanin import App, Job

WAIT_SECONDS = 3600.0
WARM_PARTS = 64

Figures = dict[str, float | None]


class Void(Exception):
    """A run whose outcome is wrong says nothing about speed."""


def measure(database: Database, setting: Setting) -> Figures:
    """The figures of one run: seconds, megabytes, or parts per second. None: this machine or database cannot tell."""
    with database.fresh() as url:
        with workers(url, setting) as running:
            begin(running)
            before = [cpu_seconds(worker.pid) for worker in running]
            written_before = [written_bytes(worker.pid) for worker in running]
            server_before, log_before = cpu_seconds(database.server), database.log_position()
            program = Program("submit", url, setting.parts, setting.jobs, setting.work.mode)
            submitted = program.said("submitted")
            program.stop()
            joins = judge_all(url, submitted["jobs"], setting.parts)
            used = [cpu_seconds(worker.pid) for worker in running]
            server_used, log_used = cpu_seconds(database.server), database.log_position()
            written = [written_bytes(worker.pid) for worker in running]
            peaks = [peak_megabytes(worker.pid) for worker in running]
            server_peak = peak_megabytes(database.server)
        counts = [submitted["counts"], *(worker.said("counts") for worker in running)]
        footprint = database.footprint(url)
        check(url)
    firsts = [first for worker in running for first in worker.heard("first")]
    total = max(joined["done"] for _, joined in joins) - submitted["started"]
    own_log = difference(written_before, written)
    if own_log is not None:
        own_log += submitted["written"]
    log_bytes = own_log if log_used is None or log_before is None else log_used - log_before
    parts = setting.total
    return {
        "submit_parts_per_second": parts / (submitted["done"] - submitted["started"]),
        "parts_per_second": parts / total,
        "total_seconds": total,
        "first_part_seconds": min(firsts) - submitted["done"] if setting.jobs == 1 else None,
        "join_seconds": _median([joined["started"] - finished for finished, joined in joins]),
        "worker_cpu_per_1000": scaled(difference(before, used), 1000 / parts),
        "server_cpu_per_1000": scaled(difference([server_before], [server_used]), 1000 / parts),
        "submit_peak_megabytes": submitted["peak"],
        "worker_peak_megabytes": max((peak for peak in peaks if peak is not None), default=None),
        "server_peak_megabytes": server_peak,
        "log_bytes_per_part": scaled(log_bytes, 1 / parts),
        "row_versions_per_part": scaled(footprint.versions, 1 / (parts + footprint.other_parts(parts))),
        "dead_rows": footprint.dead,
        "stored_bytes_per_part": footprint.bytes / (parts + footprint.other_parts(parts)),
        **{f"{name}_per_part": sum(each.get(name, 0) for each in counts) / parts
           for name in ("commits", "statements", "reads")},
        "efficiency": setting.ideal_seconds / total if setting.ideal_seconds else None,
    }  # fmt: skip


@contextmanager
def workers(url: str, setting: Setting) -> Iterator[list[Program]]:
    """Worker processes that are connected and have run parts already, so that their start is not measured."""
    tasks = Tasks(url, Work(mode=setting.work.mode))
    tasks.app.jobs()  # makes the tables of a new file before several processes want to
    what = setting.work.spell()
    running = [
        Program("work", url, setting.concurrency, setting.batch, what, environment={child.VARIABLE: what})
        for _ in range(setting.workers)
    ]
    try:
        while not all(worker.heard("warm") for worker in running):
            tasks.app.map(tasks.warm, range(WARM_PARTS)).wait(WAIT_SECONDS)
        yield running
    finally:
        for worker in running:
            worker.stop()
        tasks.app.close()


def begin(running: list[Program]) -> None:
    """From now on the workers' statements are counted."""
    for worker in running:
        worker.begin()


def judge_all(url: str, job_ids: list[str], parts: int) -> list[tuple[float, dict[str, Any]]]:
    """Wait for every job and judge it: when it ended, and what its successor has seen. Raises `Void`."""
    with Tasks(url).app as app:
        judged = [judge(app, job_id, parts) for job_id in job_ids]
        return [(job.row().finished_at or 0.0, said) for job, said in judged]


def judge(app: App, job_id: str, parts: int) -> tuple[Job, dict[str, Any]]:
    """Wait for the successor and judge the run. Raises `Void`."""
    job = app.job(job_id).wait(WAIT_SECONDS)
    successor = job.successor
    if successor is None:
        raise Void(f"job {job_id} is {job.status} and has no successor: {job.failures()[:1]}")
    said = successor.result(WAIT_SECONDS)
    account = job.account()
    if said["count"] != parts or not said["ordered"] or account["successors"] != 1 or account["ends"] != 1:
        raise Void(f"{parts} parts were submitted; the successor saw {said}, the account is {account}")
    return job, said


def check(url: str) -> None:
    """What `fanin check` does. Raises `Void` with the first broken rule."""
    with App(url) as app:
        for name, sentence, findings in app.store.check():
            if findings:
                raise Void(f"rule {name} is broken ({sentence}): {findings[0].row}")


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def difference(before: list[Any], after: list[Any]) -> float | None:
    if None in before or None in after:
        return None
    return float(sum(after) - sum(before))


def scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
