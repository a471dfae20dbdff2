"""A service outside: it honours keys or not, loses answers, stalls and refuses as the test says, and counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any


class Cut(Exception):
    """The answer was lost: the caller cannot know whether it has happened."""


class Receiver:
    """``fate(key, n)`` says what becomes of the n-th call of a key: ``ok``, ``lost`` (done, the answer is not heard),
    ``cut`` (not done, no answer), ``stall`` (waits for `go`, then done), or an exception to raise, undone.
    """

    def __init__(self, fate: Callable[[str, int], Any] = lambda *_: "ok", *, honours_keys: bool = True) -> None:
        self.fate = fate
        self.honours_keys = honours_keys
        self.calls: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.requests: dict[str, Any] = {}
        self.probes: Counter[str] = Counter()
        self.go = threading.Event()
        self.stalled = threading.Event()
        self._lock = threading.Lock()

    def call(self, request: Any, key: str) -> str:
        with self._lock:
            self.calls[key] += 1
            fate = self.fate(key, self.calls[key])
        if isinstance(fate, BaseException):
            raise fate
        if fate == "cut":
            raise Cut(key)
        if fate == "stall":
            self.stalled.set()
            assert self.go.wait(90)
        with self._lock:
            if not self.honours_keys or not self.applied[key]:
                self.applied[key] += 1
                self.requests[key] = request
        if fate == "lost":
            raise Cut(key)
        return f"receipt of {key.rpartition('/')[2]}"

    def probe(self, request: Any, key: str) -> str | None:
        with self._lock:
            self.probes[key] += 1
            return f"found {key.rpartition('/')[2]}" if self.applied[key] else None
