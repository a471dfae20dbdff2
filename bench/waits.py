"""What the sessions of a PostgreSQL database wait for: samples of pg_stat_activity."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType

import psycopg

from bench.databases import Database

EVERY_SECONDS = 0.01
QUERY = """
    SELECT CASE
        WHEN state <> 'active' THEN 'client'
        WHEN wait_event_type = 'Lock' OR wait_event = 'LockManager' THEN 'lock'
        WHEN wait_event IN ('WALWrite', 'WALSync', 'WalSync', 'WalWrite') THEN 'log'
        WHEN wait_event IS NULL THEN 'cpu'
        ELSE 'other' END, count(*)
    FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid() GROUP BY 1"""


class Waits:
    """Looks from entering to leaving at the sessions that are named after the schema of ``url``."""

    def __init__(self, database: Database, url: str) -> None:
        self._address = database.address
        self._name = url.rpartition("=")[2]
        self._over = threading.Event()
        self._samples = 0
        self._seen: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._look, name="bench-waits")

    def __enter__(self) -> Waits:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def shares(self, connections: int) -> dict[str, float]:
        """``lock_share``, ``log_share``, ``cpu_share``: of the time of so many connections."""
        whole = max(1, self._samples * connections)
        return {f"{what}_share": self._seen[what] / whole for what in ("lock", "log", "cpu")}

    def _look(self) -> None:
        with psycopg.connect(self._address, autocommit=True) as connection:
            while True:
                self._samples += 1
                self._seen.update(dict(connection.execute(QUERY, [self._name]).fetchall()))
                if self._over.wait(EVERY_SECONDS):
                    return
