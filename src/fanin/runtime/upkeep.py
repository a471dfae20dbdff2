"""What any worker does for all: due parts become claimable, spent ones fail, deadlines fire, closed jobs are swept.

Every step is safe however many workers do it at once; the guards of the protocol decide.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from fanin.domain.errors import Unavailable
from fanin.protocol import close, lease
from fanin.stores.base import Store

log = logging.getLogger("fanin")

PERIOD_SECONDS = 1.0
SOONEST_SECONDS = 0.02


def once(store: Store, bucket: int) -> bool:
    """One round over one bucket. True if anything was found to do."""
    return tend(store, bucket, store.read(lambda: lease.look(bucket)))


def tend(store: Store, bucket: int, look: lease.Look) -> bool:
    """Do what a look has shown to be due. True if there was anything."""
    busy = False
    if look.due_in is not None and look.due_in <= 0:
        while store.run(lambda: lease.wake(bucket)):
            busy = True
        while store.run(lambda: lease.reap(bucket)):
            busy = True
    if look.give_up_in is not None and look.give_up_in <= 0:
        for job_id in store.read(lambda: close.overdue(bucket)):
            busy = store.run(lambda: close.give_up(bucket, job_id)) or busy
    if look.unswept:
        for job_id, stripe in store.read(lambda: close.unswept(bucket)):
            while store.run(lambda: close.sweep(bucket, job_id, stripe)):
                busy = True
    return busy


class Upkeep:
    """`once`, about every second in a thread, and exactly when the next part comes due. ``found`` wakes the worker."""

    def __init__(self, store: Store, found: Callable[[], None]) -> None:
        self._store = store
        self._found = found
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fanin-upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        pause = random.uniform(0, 0.2)
        while not self._closing.wait(pause):
            pause = PERIOD_SECONDS * random.uniform(0.7, 1.0)
            try:
                for bucket in range(self._store.buckets):
                    look = self._store.read(lambda: lease.look(bucket))
                    if tend(self._store, bucket, look):
                        self._found()
                        look = self._store.read(lambda: lease.look(bucket))
                    if look.soonest is not None:
                        pause = min(pause, max(look.soonest, SOONEST_SECONDS))
            except Unavailable as problem:
                log.warning("upkeep: %s; trying again", problem)
            except Exception:
                log.exception("upkeep failed; trying again")
