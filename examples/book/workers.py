"""Worker processes for the demo, and the accidents that happen to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Draft:
    """An attempt at a part. Its file is `.IDX-ATTEMPT.pdf.PID` while it is being printed, then `IDX-ATTEMPT.pdf`."""

    idx: int
    attempt: int

    @classmethod
    def of(cls, file: Path) -> Draft:
        idx, attempt = file.name.removeprefix(".").split(".")[0].split("-")
        return cls(int(idx), int(attempt))

    def overtaken(self, directory: Path) -> bool:
        """Whether a later attempt at the same part has begun."""
        files = directory.glob(f"pages/*{self.idx:04}-*.pdf*")
        return any(draft.idx == self.idx and draft.attempt > self.attempt for draft in map(Draft.of, files))


class Worker:
    """One process: `python -m fanin work`. Its output goes to a file in `directory`."""

    def __init__(self, number: int, directory: Path) -> None:
        self.name = f"worker {number}"
        self.directory = directory
        self.log = directory / f"worker-{number}.log"
        self.killed = False
        command = [sys.executable, "-m", "fanin", "work", "examples.book.tasks:app"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--processes", "1", "--concurrency", "1"], stdout=log, stderr=log
            )

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def in_hand(self) -> Draft | None:
        """What this worker is printing now."""
        found = next(self.directory.glob(f"pages/.*.pdf.{self.process.pid}"), None)
        return Draft.of(found) if found else None

    def freeze(self) -> Draft | None:
        """Stop the process (SIGSTOP). If it was not in the middle of a part, let it go on and return None."""
        self.signal(signal.SIGSTOP)
        # The signal is not instant; what is on the disk counts only when the process stands still.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        draft = self.in_hand()
        if draft is None:
            self.thaw()
        return draft

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)
        self.process.wait()


class Workers:
    """Several workers; at the end of the `with` block they are asked to stop, and waited for."""

    def __init__(self, count: int, directory: Path) -> None:
        self.all = [Worker(number, directory) for number in range(1, count + 1)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.alive():
            worker.signal(signal.SIGTERM)
            worker.thaw()
        for worker in self.alive():
            try:
                worker.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                worker.kill()

    def alive(self) -> Iterator[Worker]:
        return (worker for worker in self.all if worker.process.poll() is None)

    def complain(self) -> None:
        """Raise if a worker has ended that nobody killed."""
        for worker in self.all:
            if worker.process.poll() is not None and not worker.killed:
                raise SystemExit(f"{worker.name} ended by itself; its last words are in {worker.log}")

    def freeze_one(self) -> tuple[Worker, Draft]:
        """Stop a worker that is in the middle of a part."""
        while True:
            for worker in self.alive():
                if worker.in_hand() and (draft := worker.freeze()):
                    return worker, draft
            time.sleep(0.002)
