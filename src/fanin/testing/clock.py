"""Move the clock of a database, for every process that uses it.

fanin reads the time through one function of the database. On PostgreSQL that function is replaced, so every session
sees the new time at its next statement. An SQLite file has no functions of its own: each process registers one, so
processes that shall follow must call `follow` with the same file of the offset (or have it named by the environment).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from fanin.domain.errors import BadOption
from fanin.stores.base import Store
from fanin.stores.sqlite import SqliteStore
from fanin.testing.state import execute

VARIABLE = "FANIN_CLOCK_FILE"

_REPLACE = (
    "CREATE OR REPLACE FUNCTION fanin.clock() RETURNS double precision LANGUAGE sql STABLE PARALLEL SAFE "
    "AS $$ SELECT {} $$"
)
_TRUE_TIME = "extract(epoch FROM statement_timestamp())::double precision"


class Clock:
    """The clock of one database.

    file: for SQLite, where processes find the offset; without it only this store's clock moves.
    """

    def __init__(self, store: Store, file: str | None = None) -> None:
        self._store = store
        self._file = file
        if isinstance(store, SqliteStore) and file is not None:
            follow(store, file)

    def advance(self, seconds: float) -> None:
        """From now on the clock is ``seconds`` ahead of the true time (behind, if negative), and runs."""
        self._set(f"offset {seconds!r}", f"{_TRUE_TIME} + {float(seconds)!r}", lambda: time.time() + seconds)

    def freeze(self, moment: float | None = None) -> None:
        """From now on the clock stands at ``moment``, seconds since the epoch (default: now)."""
        at = float(time.time() if moment is None else moment)
        self._set(f"frozen {at!r}", f"{at!r}::double precision", lambda: at)

    def reset(self) -> None:
        """The true time again."""
        self._set("offset 0.0", _TRUE_TIME, time.time)

    def _set(self, said: str, sql: str, now: Callable[[], float]) -> None:
        if not isinstance(self._store, SqliteStore):
            execute(self._store, _REPLACE.format(sql))
        elif self._file is None:
            self._store.clock = now
        else:
            fresh = f"{self._file}.{os.getpid()}"
            with open(fresh, "w", encoding="ascii") as file:
                file.write(said)
            os.replace(fresh, self._file)


def follow(store: Store, file: str | None = None) -> None:
    """Let an SQLite store's clock follow ``file`` (default: ``FANIN_CLOCK_FILE``; not set: nothing happens).

    On PostgreSQL nothing is to be done: its clock is in the database. Raises `BadOption` for a file with other content.
    """
    path = file or os.environ.get(VARIABLE)
    if path is not None and isinstance(store, SqliteStore):
        store.clock = _FileClock(path)


class _FileClock:
    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._kind, self._value = "offset", 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            try:
                found = os.stat(self._path)
            except FileNotFoundError:
                return time.time()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._read()
                self._stamp = stamp
            return self._value if self._kind == "frozen" else time.time() + self._value

    def _read(self) -> None:
        with open(self._path, encoding="ascii") as file:
            text = file.read()
        kind, _, value = text.partition(" ")
        try:
            if kind not in ("offset", "frozen"):
                raise ValueError(kind)
            self._kind, self._value = kind, float(value)
        except ValueError:
            raise BadOption(f"{self._path} does not hold a clock: {text[:40]!r}") from None
