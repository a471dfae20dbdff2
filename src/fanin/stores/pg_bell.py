"""The doorbell of a queue on PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from fanin.domain.errors import Unavailable
from fanin.stores.base import Bell

if TYPE_CHECKING:
    from fanin.stores.postgres import PostgresStore


class PostgresBell(Bell):
    """LISTEN on a connection of its own, watched by a thread. Deaf is not dead: the worker polls all the same."""

    def __init__(self, store: PostgresStore, queues: list[str]) -> None:
        self._store = store
        self._queues = set(queues)
        self._rung = threading.Event()
        self._closing = threading.Event()
        self._wake, self._woken = os.pipe()
        target = store.target
        self._deaf = target.pooled and target.listen_url is None
        self._thread = threading.Thread(target=self._listen, name="fanin-bell", daemon=True)
        if not self._deaf:
            self._thread.start()

    def wait(self, seconds: float) -> bool:
        rung = self._rung.wait(seconds)
        self._rung.clear()
        return rung

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            os.write(self._woken, b"x")
        if self._thread.is_alive():
            self._thread.join(5)
        for end in (self._wake, self._woken):
            with contextlib.suppress(OSError):
                os.close(end)

    def _listen(self) -> None:
        pause = 0.2
        while not self._closing.is_set():
            try:
                with self._store.connect(self._store.target.listen_url) as connection:
                    connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f'"{self._store.schema}".bell')))
                    self._rung.set()  # what came between the last look and this LISTEN
                    pause = 0.2
                    self._hear(connection)
            except (psycopg.Error, Unavailable, OSError):
                if self._closing.wait(pause):
                    return
                pause = min(pause * 2, 10.0)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        """Until asked to close. A silent half minute is ended by a query, which finds a dead connection."""
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._closing.is_set():
            readable = [fd for fd, _ in poll.poll(30_000)]
            if self._wake in readable:
                return
            if not readable:
                connection.execute("SELECT 1")
                continue
            for note in connection.notifies(timeout=0):
                if not self._queues or note.payload in self._queues:
                    self._rung.set()
