"""What is measured, in processes of its own: a program that submits, and a worker. Each says lines of JSON.

python -m bench.program submit URL PARTS
python -m bench.program work URL CONCURRENCY SLEEP
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from bench.processes import peak_megabytes
from fanin import App, Joined, Task
from fanin.runtime.worker import Worker

WARM_SLEEP = 0.01


class Tasks:
    """An application with the four handlers of the benchmark."""

    def __init__(self, url: str, sleep: float = 0.0) -> None:
        self.app = App(url)
        self.first: float | None = None
        """When the first measured part started here."""

        @self.app.task
        def warm(n: int) -> int:
            """Sleeps a little, so that no worker can take all of the warm-up."""
            time.sleep(WARM_SLEEP)
            return n

        @self.app.task
        def part(n: int) -> int:
            """The unit of work: nothing, or a sleep."""
            if self.first is None:
                self.first = time.time()
                say({"first": self.first})
            if sleep:
                time.sleep(sleep)
            return n

        @self.app.task
        def joined(parts: Joined[int]) -> dict[str, Any]:
            """The successor: reads all results and looks whether they are in order."""
            started = time.time()
            count, ordered = 0, True
            for n in parts:
                ordered = ordered and n == count
                count += 1
            return {"started": started, "done": time.time(), "count": count, "ordered": ordered}

        @self.app.task
        def now() -> float:
            """When it was picked up."""
            return time.time()

        self.warm: Task[..., Any] = warm
        self.part: Task[..., Any] = part
        self.joined: Task[..., Any] = joined
        self.now: Task[..., Any] = now


def submit(url: str, parts: int) -> None:
    tasks = Tasks(url)
    tasks.app.jobs()  # connected, as a web server would be
    started = time.time()
    job = tasks.app.map(tasks.part, range(parts), then=tasks.joined)
    done = time.time()
    say({"job": job.id, "started": started, "done": done, "peak": peak_megabytes(os.getpid())})


def work(url: str, concurrency: int, sleep: float) -> None:
    tasks = Tasks(url, sleep)
    warm: list[bool] = []

    def on_part(*_: object) -> None:
        if not warm:
            warm.append(True)
            say({"warm": True})

    worker = Worker(tasks.app, concurrency=concurrency, on_part=on_part)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        submit(sys.argv[2], int(sys.argv[3]))
    else:
        work(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
