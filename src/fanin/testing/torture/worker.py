"""One worker process of the torture."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec

from fanin.domain.model import Report, Settled
from fanin.runtime.worker import Worker
from fanin.testing.torture.app import open_app, open_points
from fanin.testing.torture.journal import Journal, digest
from fanin.testing.torture.outside import Delivering


class WorkerSpec(msgspec.Struct, frozen=True):
    url: str
    folder: str
    name: str
    clock_file: str | None = None
    crash: str = ""
    """Crash points of this worker, as `fanin.testing.crashpoints` reads them."""
    concurrency: int = 4
    batch: int = 16
    grace: float = 0.5
    relay: bool = False
    """It delivers events beside its work."""
    now: bool = False
    """A SIGTERM gives everything back at once instead of waiting for the handlers."""


def work(spec: WorkerSpec, ready: Callable[[], None]) -> None:
    """Work until SIGTERM, or until something worse. ``ready`` is called when that may come."""
    journal = Journal(spec.folder, f"worker-{spec.name}")
    points = open_points(spec.folder, spec.crash)
    app, _ = open_app(spec.url, spec.folder, journal, spec.name, spec.clock_file, points)

    def acknowledged(report: Report, answer: Settled) -> None:
        claim = report.claim
        journal.write(
            e="ack", j=claim.job_id, i=claim.idx, a=claim.attempt, c=claim.claim_id, v=report.verb,
            r=answer.verdict.value, s=answer.status, h=answer.attempt, d=digest(report.result),
        )  # fmt: skip

    worker = Worker(
        app, concurrency=spec.concurrency, name=spec.name, batch=spec.batch, grace=spec.grace, on_part=acknowledged
    )
    signal.signal(signal.SIGTERM, lambda *_: worker.stop(now=spec.now))
    delivering = Delivering(app.store, spec.folder, journal, spec.name) if spec.relay else None
    journal.write(e="born", pid=os.getpid(), crash=spec.crash)
    ready()
    worker.run()
    if delivering is not None:
        delivering.close()
    app.close()
    journal.write(e="drained", pid=os.getpid())
