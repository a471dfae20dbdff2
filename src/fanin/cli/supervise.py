"""Several worker processes under one: dead ones come back, signals are passed on, the end of all is the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from fanin.cli import exits
from fanin.cli.logs import configure

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
"""What a child is sent for our first, second and third signal."""
HEALTHY_SECONDS = 10.0
"""A child that lived longer is restarted soon again, whatever happened before."""


class Child:
    """One place for a worker process, and the process that fills it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.restart_at: float | None = 0.0
        """Monotonic time of the next start; None when this place is to stay empty."""
        self.deaths = 0


class Supervisor:
    """Runs ``count`` children. ``command`` gives the arguments of a child, by its number, after the interpreter.

    A child that exits with 0 was idle or asked to stop; with 2 its call is wrong, and all end; any other end is a
    crash, and it is started again after a pause that grows while it crashes at once.
    """

    def __init__(
        self, count: int, command: Callable[[int, int], Sequence[str]], *, until_idle: bool, json: bool
    ) -> None:
        self.children = [Child(number + 1) for number in range(count)]
        self.command = command
        self.until_idle = until_idle
        self.log = configure(json=json)
        self.signals = 0
        self.code = exits.OK
        # The children hold the reading end. Its end of file is our death, however we die.
        self._life, self._ours = os.pipe()
        self._wake, self._woken = os.pipe()

    def run(self) -> int:
        """Until all children have ended for good. Returns the exit code."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        before = signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            while True:
                self._reap()
                self._start()
                if all(child.process is None and child.restart_at is None for child in self.children):
                    return self.code
                self._rest()
        finally:
            signal.set_wakeup_fd(before)
            self._kill()

    def _on_signal(self, number: int, frame: Any) -> None:
        """First: the children drain. Second: they stop at once. Third: they are killed."""
        self.signals += 1
        for child in self.children:
            child.restart_at = None
            if child.process is not None and child.process.poll() is None:
                # Two different ones: two equal signals that arrive together are one for the child.
                child.process.send_signal(SIGNALS[min(self.signals, len(SIGNALS)) - 1])
        if self.signals > 1:
            self.code = exits.INTERRUPTED

    def _start(self) -> None:
        for child in self.children:
            if child.process is None and child.restart_at is not None and child.restart_at <= time.monotonic():
                words = [sys.executable, *self.command(child.number, self._life)]
                # A session of its own: Ctrl-C in the terminal reaches us alone, and the child hears it from us once.
                child.process = subprocess.Popen(words, pass_fds=[self._life], start_new_session=True)
                child.started = time.monotonic()
                if self.signals:  # the signal came while we were starting it
                    child.restart_at = None
                    child.process.terminate()

    def _reap(self) -> None:
        for child in self.children:
            if child.process is None or (code := child.process.poll()) is None:
                continue
            pid, child.process = child.process.pid, None
            if self.signals or (code == 0 and self.until_idle):
                child.restart_at = None
            elif code == exits.USAGE:
                self._end_all(exits.USAGE)
            else:
                lived = time.monotonic() - child.started
                child.deaths = 1 if lived > HEALTHY_SECONDS else child.deaths + 1
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (child.deaths - 1), LONGEST_PAUSE_SECONDS)
                child.restart_at = time.monotonic() + pause
                how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
                self.log.warning(
                    "worker process %d (pid %d) %s; starting it again in %.1f s", child.number, pid, how, pause
                )

    def _end_all(self, code: int) -> None:
        self.code = code
        for child in self.children:
            child.restart_at = None
            if child.process is not None:
                child.process.terminate()

    def _rest(self) -> None:
        due = [c.restart_at for c in self.children if c.process is None and c.restart_at is not None]
        pause = max(0.0, min(due) - time.monotonic()) if due else None
        select.select([self._wake], [], [], pause)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def _kill(self) -> None:
        for child in self.children:
            if child.process is not None and child.process.poll() is None:
                child.process.kill()
                child.process.wait()
        for end in (self._life, self._ours, self._wake, self._woken):
            os.close(end)
