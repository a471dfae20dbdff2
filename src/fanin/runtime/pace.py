"""How far ahead of its handlers a worker claims, and when it commits what they have done."""

from __future__ import annotations

import time

AHEAD_SECONDS = 0.02
"""So much work is claimed ahead of the handlers: enough to hide a commit, little enough to share a small job."""
AHEAD_BATCHES = 2
"""But never more than this: one that runs while the other is committed."""
LINGER_SECONDS = 0.01
"""A report waits at most so long for company, so that one commit carries many."""
HOARD_SECONDS = 1.0
"""What was claimed ahead and has not begun by then is given back: the handlers turned out slower than they were."""


class Pace:
    """``ahead``: whether parts may wait in hand for a free handler."""

    def __init__(self, concurrency: int, batch: int, ahead: bool) -> None:
        self._concurrency = concurrency
        self._batch = batch
        self._may_wait = ahead
        self._average = 0.0
        self.oldest = 0.0
        """Monotonic time of the oldest report that is not committed."""
        self.dry = False
        """Whether the last claim found less than it asked for."""

    def took(self, seconds: float) -> None:
        """A handler has run so long."""
        self._average = seconds if self._average == 0 else self._average * 0.9 + seconds * 0.1

    def slow(self) -> None:
        """The handlers are slower than they were: claim no further ahead until some are done."""
        self._average = max(self._average, HOARD_SECONDS)

    def room(self, waiting: int) -> int:
        """How many parts to claim, with so many in hand: what the free handlers can start, and a little ahead."""
        return min(self._concurrency + self._ahead() - waiting, self._batch)

    def ripe(self, waiting: int, done: int) -> bool:
        """Whether to commit the reports now: the handlers need parts soon, or no more reports will come soon."""
        enough = 0 if self.dry else self._concurrency + self._ahead() // 2
        return waiting <= enough or done >= self._batch or time.monotonic() - self.oldest >= LINGER_SECONDS

    def _ahead(self) -> int:
        """How many parts to hold that no handler is free for."""
        if self._average == 0 or not self._may_wait:
            return 0
        return min(int(self._concurrency * AHEAD_SECONDS / self._average), AHEAD_BATCHES * self._batch)
