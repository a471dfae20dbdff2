"""Stop a process as a long pause would, but not while it writes to a file: there it would hold up all others."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

import apsw

from fanin.stores.base import Store
from fanin.stores.sqlite import SqliteStore


def freeze(pid: int, store: Store) -> None:
    """SIGSTOP, and return when it stands still. SIGCONT lets it go on."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        while _state(pid) not in "TtZX":
            time.sleep(0.001)
        if not isinstance(store, SqliteStore) or _is_free(store):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _is_free(store: SqliteStore) -> bool:
    for suffix in ("-queue", "-writer"):
        lock = os.open(store.path + suffix, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
    connection = store.connect()
    try:
        connection.set_busy_timeout(0)
        connection.execute("BEGIN IMMEDIATE; ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
