"""Programs under measurement: started, heard, stopped; and what /proc says of them (None where there is no /proc)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STOP_SECONDS = 30.0


class Program:
    """``python -m bench.program`` with arguments. Each line that it says is a JSON object with one key."""

    def __init__(self, *words: object, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "bench.program", *map(str, words)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self.pid = self._process.pid
        self._lines: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._listener = threading.Thread(target=self._listen, name=f"bench-listener-{self.pid}", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def heard(self, key: str) -> list[Any]:
        """What was said under ``key`` so far."""
        with self._changed:
            return [line[key] for line in self._lines if key in line]

    def said(self, key: str) -> Any:
        """The first thing said under ``key``; waits for it. Raises RuntimeError if the program has ended instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(key in line for line in self._lines))
            for line in self._lines:
                if key in line:
                    return line[key]
        raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended with {self._process.wait()}")  # type: ignore[arg-type]

    def begin(self) -> None:
        """Tell it that what it counts begins now, and wait until it has heard that."""
        self._process.send_signal(signal.SIGUSR1)
        self.said("begun")

    def stop(self) -> None:
        """SIGTERM, as an operator would; SIGKILL if that is not heard. What it said last can be asked for after."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(STOP_SECONDS)


def cpu_seconds(pid: int | None) -> float | None:
    """CPU time of a process and of all of its children, the ended ones too: user and system."""
    if pid is None or (own := _stat(pid)) is None:
        return None
    return own + sum(_stat(child) or 0.0 for child in _descendants(pid))


def peak_megabytes(pid: int | None) -> float | None:
    """The largest resident size that a process or one of its living children has had."""
    if pid is None:
        return None
    peaks = [peak for process in (pid, *_descendants(pid)) if (peak := _peak(process)) is not None]
    return max(peaks, default=None)


def written_bytes(pid: int) -> int | None:
    """Bytes that a process and its living children have given to the system to write."""
    counts = [_written(process) for process in (pid, *_descendants(pid))]
    return None if counts[0] is None else sum(count or 0 for count in counts)


def _descendants(pid: int) -> Iterator[int]:
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)


def _stat(pid: int) -> float | None:
    """utime, stime, and those of the children that were waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float | None:
    value = _field(f"/proc/{pid}/status", "VmHWM:")
    return None if value is None else value / 1024


def _written(pid: int) -> int | None:
    return _field(f"/proc/{pid}/io", "wchar:")


def _field(file: str, name: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path(file).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return None
