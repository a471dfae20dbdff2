"""The raw program on SQLite."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import apsw

from bench.raw import Held
from fanin.domain.limits import CLAIM_PARTS

BUSY_SECONDS = 0.0002
LEASE_SECONDS = 60.0


class RawSqlite:
    """A round is one BEGIN IMMEDIATE … COMMIT with the log synced, as durable as fanin's."""

    COMPLETE = (
        "UPDATE raw_part SET status = 2, result = ? WHERE idx = ? AND status = 1 AND attempt = ? AND claim_id = ?"
    )
    CLAIM = """
        UPDATE raw_part SET status = 1, attempt = attempt + 1, claim_id = ?, until = ?
        WHERE idx IN (SELECT idx FROM raw_part WHERE status = 0 ORDER BY idx LIMIT ?)
        RETURNING idx, attempt, payload"""

    def __init__(self, address: str, batch: int = CLAIM_PARTS) -> None:
        self.batch = batch
        self.connection = apsw.Connection(address)
        self.connection.set_busy_handler(_again)
        self.connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32768")

    def create(self) -> None:
        self.connection.execute(
            "CREATE TABLE raw_part (idx INTEGER PRIMARY KEY, status INTEGER NOT NULL, attempt INTEGER NOT NULL, "
            "claim_id TEXT, until REAL, payload TEXT NOT NULL, result TEXT); "
            "CREATE INDEX raw_ready ON raw_part (idx) WHERE status = 0; "
            "CREATE TABLE raw_job (id INTEGER PRIMARY KEY, remaining INTEGER NOT NULL); "
            "CREATE TABLE raw_outbox (job INTEGER PRIMARY KEY)"
        )

    def submit(self, parts: int) -> None:
        self.connection.execute("BEGIN IMMEDIATE; INSERT INTO raw_job VALUES (1, ?)", [parts])
        self.connection.executemany(
            "INSERT INTO raw_part (idx, status, attempt, payload) VALUES (?, 0, 0, ?)",
            ((n, f"[{n}]") for n in range(parts)),
        )
        self.connection.execute("COMMIT")

    def round(self, held: Held, claim: str, following: str) -> Held:
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        if held:
            self.connection.executemany(self.COMPLETE, ((str(n), n, attempt, claim) for n, attempt in held))
            counted = run("UPDATE raw_job SET remaining = remaining - ? WHERE id = 1 RETURNING remaining", [len(held)])
            if counted.fetchall() == [(0,)]:
                run("INSERT INTO raw_outbox VALUES (1)")
        claimed: list[Any] = run(self.CLAIM, [following, time.time() + LEASE_SECONDS, self.batch]).fetchall()
        run("COMMIT")
        return [(idx, attempt) for idx, attempt, _ in claimed]

    def results(self) -> Iterator[int]:
        for (text,) in self.connection.execute("SELECT result FROM raw_part WHERE status = 2 ORDER BY idx"):
            yield int(text)

    def ends(self) -> int:
        return len(self.connection.execute("SELECT 1 FROM raw_outbox").fetchall())

    def drop(self) -> None:
        """The file goes with its folder."""

    def close(self) -> None:
        self.connection.close()


def _again(_: int) -> bool:
    """SQLite asks whether to try for the lock once more; its own pauses are too long for a benchmark."""
    time.sleep(BUSY_SECONDS)
    return True
