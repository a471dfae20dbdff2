"""The heartbeat: renew what the worker holds, and stop what it holds no more.

Two threads. One talks to the database, on a connection of its own, so that no handler and no commit can hold it up. The
other only looks at the clock, so that a database that does not answer cannot hold up a time-out, nor hide that a lease
may have run out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from fanin.domain.errors import Unavailable
from fanin.protocol import lease
from fanin.runtime.background import Background
from fanin.runtime.executors import Running
from fanin.stores.base import Store

log = logging.getLogger("fanin")

TICK_SECONDS = 0.2
RENEW_SHARE = 1 / 3
GIVE_UP_SHARE = 0.9


class Heart:
    """``stop(running, reason)`` is called once for work whose lease is lost, or may be; ``overdue(running)`` for an
    attempt past its time-out. ``held()`` gives what the worker holds, also parts that wait for a thread."""

    def __init__(
        self,
        store: Store,
        held: Callable[[], Iterable[Running]],
        stop: Callable[[Running, str], None],
        overdue: Callable[[Running], None],
        worker: str | None = None,
    ) -> None:
        self._store = store.reserve()
        self._held = held
        self._stop = stop
        self._overdue = overdue
        self._worker = worker
        self.well = True
        """Whether the last heartbeat reached the database. While it does not, nothing more is to be claimed."""
        self._threads = [
            Background("heartbeat", self.beat, every=TICK_SECONDS, first=TICK_SECONDS),
            Background("watch", self.watch, every=TICK_SECONDS, first=TICK_SECONDS),
        ]

    def start(self) -> None:
        # The connection is made now: beside handlers that keep the interpreter busy it may take longer than a lease.
        try:
            self._store.read(lambda: lease.look(0))
        except Unavailable as problem:
            log.warning("heartbeat: %s; trying again", problem)
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for thread in self._threads:
            thread.close()
        self._store.close()

    def beat(self) -> None:
        """Renew every lease of which a third has passed since its claim or last renewal was sent.

        Also of parts whose report waits for the database; but not of one in a transaction: its row is locked. Raises
        `Unavailable`.
        """
        try:
            self._beat(time.monotonic())
        except Unavailable:
            self.well = False
            raise
        self.well = True

    def _beat(self, now: float) -> None:
        due: dict[int, list[Running]] = {}
        for running in self._held():
            if not running.sent and not running.part.cancelled and self._age(running, now) >= RENEW_SHARE:
                due.setdefault(running.claim.bucket, []).append(running)
        for bucket, group in due.items():
            self._renew(bucket, group)
        if not due and not self.well:
            self._store.read(lambda: lease.look(0))  # ask until it answers again

    def watch(self) -> None:
        """Without the database: who is past the time-out, and whose lease may have run out by our own reckoning."""
        now = time.monotonic()
        for running in self._held():
            if running.said or running.part.cancelled:
                continue
            if running.deadline is not None and now >= running.deadline:
                self._overdue(running)
            elif self._age(running, now) >= GIVE_UP_SHARE:
                self._stop(running, "the lease may have run out, the database has not answered")

    def _renew(self, bucket: int, group: list[Running]) -> None:
        sent = time.monotonic()
        held = [(running.claim, running.task.lease) for running in group]
        # By the attempt: one worker may hold an overtaken and the present claim of the same part.
        gone = self._store.run(lambda: lease.renew(bucket, held, self._worker))
        lost = {(*claim.key, claim.attempt) for claim in gone}
        for running in group:
            if (*running.claim.key, running.claim.attempt) not in lost:
                running.renewed = sent
            elif not running.said and not running.part.cancelled:  # its own report may have been faster
                self._stop(running, "the lease is lost")

    @staticmethod
    def _age(running: Running, now: float) -> float:
        return (now - running.renewed) / running.task.lease
