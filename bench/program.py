"""What is measured, in processes of its own: a program that submits, and a worker. Each says lines of JSON.

python -m bench.program submit URL PARTS JOBS MODE
python -m bench.program work URL CONCURRENCY BATCH WORK
python -m bench.program flow URL SHAPE STEPS
"""

from __future__ import annotations

import os
import signal
import sys
import time

from bench import flows
from bench.counting import Counting, count
from bench.processes import peak_megabytes, written_bytes
from bench.settings import Work
from bench.tasks import Tasks, say
from fanin.domain.model import Report, Settled
from fanin.runtime.worker import Worker


def submit(url: str, parts: int, jobs: int, mode: str) -> None:
    tasks = Tasks(url, Work(mode=mode))
    tasks.app.jobs()  # connected, as a web server would be
    counting = count(tasks.app.store, Counting())
    started = time.time()
    ids = [tasks.app.map(tasks.part, range(parts), then=tasks.joined).id for _ in range(jobs)]
    done = time.time()
    own = os.getpid()
    say("submitted", {"jobs": ids, "started": started, "done": done, "peak": peak_megabytes(own),
                      "written": written_bytes(own), "counts": counting.counts})  # fmt: skip
    tasks.app.close()


def work(url: str, concurrency: int, batch: int, what: Work) -> None:
    tasks = Tasks(url, what)
    counting = count(tasks.app.store, Counting())
    warm: list[bool] = []

    def on_part(report: Report, settled: Settled) -> None:
        if not warm:
            warm.append(True)
            say("warm", True)

    def begin(*_: object) -> None:
        counting.counts.clear()
        say("begun", time.time())

    worker = Worker(tasks.app, concurrency=concurrency, batch=batch, on_part=on_part)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    signal.signal(signal.SIGUSR1, begin)
    worker.run()
    say("counts", counting.counts)
    tasks.app.close()


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        submit(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    elif sys.argv[1] == "flow":
        flows.run(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Work.parse(sys.argv[5]))
