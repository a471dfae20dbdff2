"""Whether the speed falls while a database fills: jobs one after the other in the same tables, nothing is removed."""

from __future__ import annotations

from collections.abc import Iterator

from bench.databases import Database
from bench.end_to_end import Void, check, judge_all, workers
from bench.processes import Program
from bench.settings import Setting
from bench.summary import Row, median


def rows(database: Database, total: int, step: int) -> Iterator[Row]:
    """One row: the speed of the first and the last fifth of the jobs, and what has piled up; ``series`` has all."""
    jobs: list[Row] = []
    with database.fresh() as url:
        with workers(url, Setting(step, workers=2)):
            for done in range(step, total + 1, step):
                program = Program("submit", url, step, 1, "sync")
                submitted = program.said("submitted")
                program.stop()
                ((_, joined),) = judge_all(url, submitted["jobs"], step)
                jobs.append(
                    {
                        "parts_before": done - step,
                        "parts_per_second": step / (joined["done"] - submitted["started"]),
                        "submit_parts_per_second": step / (submitted["done"] - submitted["started"]),
                    }
                )
        left = database.footprint(url)
        check(url)
    if not jobs:
        raise Void(f"{total} parts are less than one job of {step}")
    fifth = max(1, len(jobs) // 5)
    first, last = (median([job["parts_per_second"] for job in some]) for some in (jobs[:fifth], jobs[-fifth:]))
    assert first is not None
    assert last is not None
    yield {
        "kind": "decay", "database": database.name, "parts": total, "step": step,
        "first_parts_per_second": first, "last_parts_per_second": last, "kept": last / first,
        "dead_rows": left.dead, "vacuums": left.vacuums,
        "stored_bytes_per_part": left.bytes / left.parts, "series": jobs,
    }  # fmt: skip
