"""The heartbeat: a thread with a database connection of its own, so that no handler and no commit can hold it up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable

from fanin.domain.errors import Unavailable
from fanin.protocol import lease
from fanin.runtime.executors import Running
from fanin.stores.base import Store

log = logging.getLogger("fanin")

Stop = Callable[[Running, str], None]
TICK_SECONDS = 0.2


class Heart:
    """Renews what the worker holds, a third of the lease after the last renewal, and calls ``stop`` for what is lost.

    When the database cannot be reached it calls ``stop`` before the lease can have run out by its own reckoning.
    ``overdue`` is called for parts past their time-out.
    """

    def __init__(self, store: Store, held: Callable[[], Iterable[Running]], stop: Stop, overdue: Stop) -> None:
        self._store = store.reserve()
        self._held = held
        self._stop = stop
        self._overdue = overdue
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanin-heart", daemon=True)
        self.beats = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(5)
        self._store.close()

    def _run(self) -> None:
        while not self._closing.wait(TICK_SECONDS):
            try:
                self.beat()
            except Unavailable as problem:
                log.warning("heartbeat: %s; trying again", problem)
            except Exception:
                log.exception("heartbeat failed; trying again")

    def beat(self) -> None:
        """One round. Whatever is held is looked at, also parts that wait for a thread."""
        now = time.monotonic()
        due: dict[int, list[Running]] = {}
        for running in self._held():
            if running.deadline is not None and now >= running.deadline and not running.said:
                self._overdue(running, "timeout")
            elif running.part.cancelled or running.said:
                continue
            elif now - running.renewed >= running.task.lease * 0.9:
                self._stop(running, "the lease may have run out: the database could not be reached")
            elif now - running.renewed >= running.task.lease / 3:
                due.setdefault(running.claim.bucket, []).append(running)
        for bucket, group in due.items():
            self._renew(bucket, group)

    def _renew(self, bucket: int, group: list[Running]) -> None:
        before = time.monotonic()
        held = [(running.claim, running.task.lease) for running in group]
        lost = {claim.key for claim in self._store.run(lambda: lease.renew(bucket, held))}
        self.beats += 1
        for running in group:
            if running.claim.key not in lost:
                running.renewed = before
            elif not running.said:  # its own commit may have been faster than this renewal
                self._stop(running, "the lease is lost")
