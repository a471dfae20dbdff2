"""Run the command of one part in a process group of its own, and end that group whenever it must end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import IO

import msgspec

LOOK_SECONDS = 0.2
"""How often a running command's part is asked whether it is still wanted."""
GRACE_SECONDS = 2.0
"""Between SIGTERM and SIGKILL."""

_GUARDIAN = """
trap "" INT TERM HUP QUIT
alive=" "
while read -r what group; do
  case $what in
    +) alive="$alive$group ";;
    -) case $alive in *" $group "*) alive="${alive%%" $group "*} ${alive#*" $group "}";; esac;;
  esac
done
for group in $alive; do kill -KILL -- "-$group" 2>/dev/null; done
"""


class Exit(msgspec.Struct, frozen=True):
    """How a command ended. ``code`` is negative for a signal, as in subprocess."""

    code: int
    seconds: float
    timed_out: float | None = None
    unwanted: bool = False

    @property
    def ok(self) -> bool:
        return self.code == 0 and self.timed_out is None and not self.unwanted

    def __str__(self) -> str:
        if self.timed_out is not None:
            return f"timed out after {self.timed_out:g} s"
        if self.unwanted:
            return "stopped"
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else "unknown"
            return f"killed by signal {-self.code} ({name})"
        return f"exit {self.code}"


class Guardian:
    """A small shell that ends the commands' process groups when this process dies, also by kill -9.

    It reads the groups from a pipe; the end of the pipe is our death.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True,
        )  # fmt: skip

    def add(self, group: int) -> None:
        self._tell("+", group)

    def remove(self, group: int) -> None:
        self._tell("-", group)

    def close(self) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()

    def _tell(self, what: str, group: int) -> None:
        assert self._shell.stdin is not None
        # Without its guardian a command runs on after a kill -9 of ours; its commit is refused all the same.
        with self._lock, contextlib.suppress(BrokenPipeError, ValueError):
            self._shell.stdin.write(f"{what} {group}\n".encode())
            self._shell.stdin.flush()


def run(
    command: str | list[str],
    environment: dict[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    guardian: Guardian,
    *,
    timeout: float | None = None,
    unwanted: Callable[[], bool] = lambda: False,
    stdin: IO[bytes] | None = None,
) -> Exit:
    """Run a command to its end: a text by ``sh -c``, or words as they are. Raises OSError if it cannot be started.

    It is ended, with all that it started, after ``timeout`` seconds or when ``unwanted`` says so.
    """
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    started = time.monotonic()
    process = subprocess.Popen(
        words,
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=environment,
        start_new_session=True,
    )
    guardian.add(process.pid)
    try:
        deadline = None if timeout is None else started + timeout
        while not _ended(process, _pause(deadline)):
            if unwanted():
                _end_group(process)
                return Exit(process.returncode, time.monotonic() - started, unwanted=True)
            if deadline is not None and time.monotonic() >= deadline:
                _end_group(process)
                return Exit(process.returncode, time.monotonic() - started, timed_out=timeout)
        return Exit(process.returncode, time.monotonic() - started)
    except BaseException:
        _end_group(process)
        raise
    finally:
        guardian.remove(process.pid)


def _pause(deadline: float | None) -> float:
    return LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the process. With a pidfd that takes no polling, so a short command costs no extra time."""
    if process.poll() is not None:
        return True
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not Linux, or an old kernel
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return process.returncode is not None
    try:
        waiter = select.poll()
        waiter.register(handle, select.POLLIN)
        waiter.poll(seconds * 1000)
    finally:
        os.close(handle)
    return process.poll() is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole group, SIGKILL to what is left of it after the grace."""
    _signal(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
