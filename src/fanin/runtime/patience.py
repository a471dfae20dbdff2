"""The pauses of somebody who waits for an end: short at first, then longer, never past the time that was given."""

from __future__ import annotations

import time

from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import WaitTimeout

SOONEST_SECONDS = 0.005
LATEST_SECONDS = 0.25


class Patience:
    """``what`` is waited for, at most for ``timeout`` from now on. Raises `BadOption`."""

    def __init__(self, what: str, timeout: Duration | None) -> None:
        self._what = what
        self._until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
        self._pause = SOONEST_SECONDS

    def pause(self, status: str) -> float:
        """Seconds until it is looked at again. ``status``: as it was found now. Raises `WaitTimeout`."""
        pause, self._pause = self._pause, min(self._pause * 1.3, LATEST_SECONDS)
        if self._until is None:
            return pause
        left = self._until - time.monotonic()
        if left <= 0:
            raise WaitTimeout(f"{self._what} is {status} after the time given; it goes on")
        return min(pause, left)
