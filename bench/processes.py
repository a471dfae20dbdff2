"""Programs under measurement: started, asked, stopped; and what /proc says of them (None where there is no /proc)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

STOP_SECONDS = 30.0


class Program:
    """``python -m bench.program`` with arguments. It says one line of JSON whenever something is to be known."""

    def __init__(self, *words: object) -> None:
        command = [sys.executable, "-m", "bench.program", *map(str, words)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.pid = self._process.pid

    @property
    def output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def said(self) -> Any:
        """The next line. Raises RuntimeError if the program has ended instead."""
        line = self.output.readline()
        if not line:
            raise RuntimeError(f"{' '.join(map(str, self._process.args))} ended with {self._process.wait()}")  # type: ignore[arg-type]
        return json.loads(line)

    def stop(self) -> None:
        """SIGTERM, as an operator would; SIGKILL if that is not heard."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()


def cpu_seconds(pid: int | None) -> float | None:
    """CPU time that a process has used, user and system."""
    fields = _stat(pid)
    return None if fields is None else sum(fields[:2])


def server_cpu_seconds(pid: int | None) -> float | None:
    """CPU time of a server and of all of its children, the ended ones too."""
    own = _stat(pid)
    if own is None:
        return None
    total = sum(own)
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            total += cpu_seconds(int(child)) or 0.0
    return total


def _stat(pid: int | None) -> list[float] | None:
    """utime, stime, and those of the children that were waited for."""
    if pid is None:
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]


def peak_megabytes(pid: int) -> float | None:
    """The largest resident size that a process has had."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None
