"""What one run is asked to do."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from fanin.domain.limits import CLAIM_PARTS

MODES = ("sync", "async", "process")


@dataclass(frozen=True)
class Work:
    """What each handler does: nothing, sleep for so many seconds, or compute for so many seconds of CPU time."""

    sleep: float = 0.0
    cpu: float = 0.0
    mode: str = "sync"

    def spell(self) -> str:
        """As `parse` reads it: how it travels to the worker."""
        return f"{self.sleep}:{self.cpu}:{self.mode}"

    @classmethod
    def parse(cls, text: str) -> Work:
        sleep, cpu, mode = text.split(":")
        return cls(float(sleep), float(cpu), mode)

    def compute(self) -> None:
        until = time.thread_time() + self.cpu
        while time.thread_time() < until:
            pass

    @property
    def name(self) -> str:
        """For people: ``nothing``, ``50 ms sleep``, ``5 ms CPU``."""
        for seconds, what in ((self.sleep, "sleep"), (self.cpu, "CPU")):
            if seconds:
                return f"{seconds * 1000:g} ms {what}"
        return "nothing"


@dataclass(frozen=True)
class Setting:
    """``jobs`` jobs of ``parts`` parts each; ``concurrency`` handlers at once in each worker; at most ``batch`` parts
    in one commit."""

    parts: int
    workers: int
    concurrency: int = 4
    work: Work = Work()
    jobs: int = 1
    batch: int = CLAIM_PARTS

    @property
    def total(self) -> int:
        return self.parts * self.jobs

    @property
    def ideal_seconds(self) -> float:
        """How long the handlers alone take: sleeps in full waves, computations on the cores that they can use."""
        slots = self.workers * self.concurrency
        lanes = slots if self.work.mode == "process" else self.workers  # threads share one interpreter
        cores = min(lanes, os.cpu_count() or 1)
        return -(-self.total // slots) * self.work.sleep + self.total * self.work.cpu / cores
