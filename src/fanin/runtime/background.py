"""What a worker does beside its handlers: in a thread of its own, again and again, whatever it meets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from fanin.domain.errors import Unavailable

log = logging.getLogger("fanin")

CLOSE_SECONDS = 5.0


class Background:
    """Calls ``step`` after ``first`` seconds, then after what it returns, or ``every`` if that is None or it fails.

    A database that is away is worth a line, any other failure a traceback; neither ends the thread, on which the leases
    of running handlers may depend.
    """

    def __init__(self, name: str, step: Callable[[], float | None], *, every: float, first: float) -> None:
        self._name = name
        self._step = step
        self._every = every
        self._first = first
        self.closing = threading.Event()
        """Set when it is to end: a step that takes long looks at it."""
        self._stirring = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"fanin-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stir(self) -> None:
        """Step when ``every`` has passed from now, however long it was to be waited."""
        self._stirring.set()

    @property
    def stirred(self) -> bool:
        return self._stirring.is_set()

    def close(self) -> None:
        """Stop; waits for a step under way, but not for ever."""
        self.closing.set()
        self._stirring.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        pause = self._first
        while True:
            if self._stirring.wait(pause):
                self._stirring.clear()
                self.closing.wait(self._every)
            if self.closing.is_set():
                return
            pause = self._every
            try:
                wanted = self._step()
            except Unavailable as problem:
                log.warning("%s: %s; trying again", self._name, problem)
            except Exception:
                log.exception("%s failed; trying again", self._name)
            else:
                pause = self._every if wanted is None else wanted
