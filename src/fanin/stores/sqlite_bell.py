"""Wakes an idle worker when another connection has committed to its file.

``data_version`` says whether one has. A look takes a few microseconds, but it wakes a sleeping processor. So the kernel
is asked to tell when the log is written to, and the looks follow: the first at once, more of them until the commit that
was being written is there. Where the kernel does not tell, they go round every 30 ms.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from typing import TYPE_CHECKING

import apsw

from fanin.stores.base import Bell
from fanin.stores.sqlite_watch import FileWatch

if TYPE_CHECKING:
    from fanin.stores.sqlite import SqliteStore

POLL_SECONDS = 0.03
"""Between two looks where nobody tells, and the longest pause while a commit is under way."""
REST_SECONDS = 0.5
"""Between two looks where the kernel has told of the last commit."""
FIRST_SECONDS = 0.001
STIR_SECONDS = 1.0
"""So long after the last write to the log a commit is looked for in short pauses."""
HUSH_SECONDS = 0.01
"""After a ring the next one comes no sooner, however often others commit."""


class SqliteBell(Bell):
    def __init__(self, store: SqliteStore) -> None:
        self._connection = store.connect()
        self._seen = self._version()
        self._watch = FileWatch(store.path + "-wal")
        self._hand, self._ear = socket.socketpair()
        self._hand.setblocking(False)
        self._ear.setblocking(False)
        self._trusted = False
        """Whether the kernel has told of the last commit before it was seen."""
        self._hush = 0.0

    def wait(self, seconds: float) -> bool:
        now = time.monotonic()
        deadline = now + seconds
        if self._rung(min(max(self._hush - now, 0.0), seconds)):
            return True
        stirred, pause = -math.inf, FIRST_SECONDS
        while True:
            now = time.monotonic()
            if self._watch.told():
                stirred, pause = now, FIRST_SECONDS
                told = True
            else:
                told = now - stirred < STIR_SECONDS
            if (version := self._version()) != self._seen:
                self._seen, self._trusted, self._hush = version, told, now + HUSH_SECONDS
                return True
            if now >= deadline:
                return False
            if told:
                rung = self._rung(min(pause, deadline - now))
                pause = min(2 * pause, POLL_SECONDS)
            else:
                rung = self._rung(min(REST_SECONDS if self._trusted else POLL_SECONDS, deadline - now), watching=True)
            if rung:
                return True

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # full of rings already, or closed
            self._hand.send(b"x")

    def close(self) -> None:
        self._hand.close()
        self._ear.close()
        self._watch.close()
        self._connection.close()

    def _rung(self, seconds: float, watching: bool = False) -> bool:
        """Sleep so long, or until somebody rings (True), or until the kernel tells."""
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        if watching and self._watch.fd is not None:
            poll.register(self._watch.fd, select.POLLIN)
        if not any(fd == self._ear.fileno() for fd, _ in poll.poll(seconds * 1000)):
            return False
        with contextlib.suppress(BlockingIOError):
            while self._ear.recv(4096):
                pass
        return True

    def _version(self) -> int:
        try:
            return int(self._connection.pragma("data_version"))
        except apsw.Error:
            return -1  # looking is only a hint; the worker's own transaction reports what is wrong
