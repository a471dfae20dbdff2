"""Worker processes to stop, kill and continue. The handlers wait for files, so that a test decides every order.

``python -m tests.faults.crew URL FOLDER NAME SKEW CONCURRENCY TENDS`` is one worker; `Crew` starts them, `build` makes
the same tasks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fanin
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.testing import clock, crashpoints
from tests.runtime.rows import end_leases
from tests.runtime.working import until
from tests.support.freezing import freeze

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 4
LEASE_SECONDS = 60.0
"""No holder loses it by being slow; `Crew.expire` ends it."""


def build(url: str, folder: Path, lease: float = LEASE_SECONDS) -> fanin.App:
    """The application of a crew.

    ``quick`` returns its argument. ``gated`` waits for the file ``go-ATTEMPT`` and returns [argument, attempt].
    ``careful`` does the same, and asks whether it still holds before its effect. ``aborts`` kills its process at 3.
    Every call and every effect is a line in ``calls``: task, index, attempt.
    """
    app = fanin.App(url)
    options: Any = {"lease": lease, "attempts": ATTEMPTS, "backoff": 0}

    def note(what: str) -> None:
        own = fanin.current()
        line = f"{what} {own.idx} {own.attempt}\n".encode()
        log = os.open(folder / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.write(log, line)
        os.close(log)

    def gate() -> None:
        while not (folder / f"go-{fanin.current().attempt}").exists():
            time.sleep(0.005)

    @app.task(name="quick", **options)
    def quick(x: int) -> int:
        note("quick")
        return x

    @app.task(name="gated", **options)
    def gated(x: int) -> list[int]:
        note("gated")
        gate()
        return [x, fanin.current().attempt]

    @app.task(name="careful", **options)
    def careful(x: int) -> list[int]:
        note("careful")
        gate()
        fanin.current().heartbeat()
        note("effect")
        return [x, fanin.current().attempt]

    @app.task(name="aborts", **options)
    def aborts(x: int) -> int:
        note("aborts")
        if x == 3:
            os.abort()
        return x

    @app.task(name="after", **options)
    def after(found: fanin.Joined[Any]) -> list[Any]:
        note("after")
        return list(found)

    return app


class Crew:
    """The workers of one test, and the folder through which they are told what to do."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.app = build(url, folder)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(
        self, name: str = "pod-0", *, points: str = "", skew: float = 0.0, concurrency: int = 1, tends: bool = True
    ) -> int:
        """Start a worker; its process id.

        points: crash points in it. skew: how far its own clock is ahead. tends: whether it looks for ended leases.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.crew", self.url, str(self.folder), name,
             str(skew), str(concurrency), str(int(tends))],
            cwd=ROOT, env=os.environ | {crashpoints.VARIABLE: points},
        )  # fmt: skip
        self._started.append(process)
        return process.pid

    def ended(self, pid: int) -> int:
        """Wait for the end of a worker; how it ended, as `subprocess` says it."""
        (process,) = [process for process in self._started if process.pid == pid]
        return process.wait(90)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.ended(pid)

    @contextmanager
    def paused(self, pid: int) -> Iterator[None]:
        freeze(pid, self.app.store)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def expire(self) -> None:
        """Let every lease that is held now end, as if its time had passed."""
        end_leases(self.app.store)

    def go(self, attempt: int) -> None:
        """Let the handlers of this attempt go on."""
        (self.folder / f"go-{attempt}").touch()

    def calls(self, what: str) -> list[tuple[int, int]]:
        """(index, attempt) of every call of a task, or of every ``effect``, in their order."""
        try:
            lines = (self.folder / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [line.split() for line in lines]
        return [(int(idx), int(attempt)) for said, idx, attempt in found if said == what]

    def until_called(self, what: str, idx: int, attempt: int) -> None:
        until(lambda: (idx, attempt) in self.calls(what), f"{what} {idx} is in attempt {attempt}")

    def map(self, task: str, items: Any, **options: Any) -> fanin.Job:
        return self.app.map(self.app.tasks[task], items, **options)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(90)
        self.app.close()


def main(url: str, folder: str, name: str, skew: str, concurrency: str, tends: str) -> None:
    if not int(tends):
        upkeep.PERIOD_SECONDS = upkeep.REST_SECONDS = 3600.0
    if float(skew):
        true_time = time.time
        time.time = lambda: true_time() + float(skew)
    app = build(url, Path(folder))
    crashpoints.install(app.store)
    clock.follow(app.store)
    worker = Worker(app, name=name, concurrency=int(concurrency), grace=1.0)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
    app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
