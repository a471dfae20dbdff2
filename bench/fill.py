"""How fast fanin's own table of parts can be filled by hand: what a submit is compared with.

One COPY on PostgreSQL, one prepared INSERT for each row on SQLite, in one transaction: the same columns, indexes,
checks and payloads as of a submit. Nothing is encoded, checked, hashed or counted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

from bench.databases import Database
from bench.end_to_end import Figures
from fanin import App

COLUMNS = (
    "bucket, job_id, idx, stripe, status, ready, queue, task, priority, turn, attempt, attempts_allowed, "
    "due_at, payload"
)
COPIED_ROWS = 10_000
"""Written to the socket at once."""


def measure(database: Database, parts: int) -> Figures:
    """``fill_parts_per_second``."""
    with database.fresh() as url:
        with App(url) as app:
            app.jobs()  # makes the tables of a new file
        seconds = (_insert if database.name == "SQLite" else _copy)(database, url, parts)
    return {"fill_parts_per_second": parts / seconds}


def _copy(database: Database, url: str, parts: int) -> float:
    import psycopg

    job_id, now = uuid.uuid4(), time.time()
    head, tail = f"0\t{job_id}\t", f"\t0\t3\t{now}\t"
    schema = url.rpartition("=")[2]
    with psycopg.connect(database.address, autocommit=True) as connection:
        started = time.time()
        with connection.transaction(), connection.cursor().copy(f"COPY {schema}.part ({COLUMNS}) FROM STDIN") as copy:
            for first in range(0, parts, COPIED_ROWS):
                numbers = range(first, min(first + COPIED_ROWS, parts))
                copy.write("".join(f"{head}{n}\t0\tpending\tt\tdefault\tpart\t0\t{n}{tail}[{n}]\n" for n in numbers))
        return time.time() - started


def _insert(database: Database, url: str, parts: int) -> float:
    import apsw

    job_id, now = str(uuid.uuid4()), time.time()
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.execute("PRAGMA synchronous = FULL; PRAGMA cache_size = -32768")

    def rows() -> Iterator[tuple[str, int, int, float, str]]:
        return ((job_id, n, n, now, f"[{n}]") for n in range(parts))

    started = time.time()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        f"INSERT INTO fanin_part ({COLUMNS}) "
        "VALUES (0, ?, ?, 0, 'pending', true, 'default', 'part', 0, ?, 0, 3, ?, ?)", rows(),
    )  # fmt: skip
    connection.execute("COMMIT")
    seconds = time.time() - started
    connection.close()
    return seconds
