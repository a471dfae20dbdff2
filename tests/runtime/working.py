"""Workers in threads of the test, and waiting for a state instead of for a time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.protocol import lease
from fanin.runtime.part import Part
from fanin.runtime.task import Application
from fanin.runtime.worker import Worker

PATIENCE_SECONDS = 90.0
"""A hang guard: no test may depend on how long something takes."""


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS, pause: float = 0.005) -> Any:
    """Ask again and again until the answer is true; return it. Fails naming ``what`` when it takes too long.

    pause: seconds between the questions; 0 keeps the processor busy.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        if pause:
            time.sleep(pause)
    return found


def is_gone(pid: int, seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether a process ends within so many seconds (a zombie has ended)."""

    def state() -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "gone"

    return bool(until(lambda: state() in ("gone", "Z", "X"), f"process {pid} ended", seconds))


class Working(Worker):
    """A worker that runs in a thread of its own."""

    def __init__(self, app: Application, **options: Any) -> None:
        super().__init__(app, **options)
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name=f"test-{self.name}", daemon=True)

    def _work(self) -> None:
        try:
            self.run()
        except BaseException as problem:
            self.problem = problem

    def join(self, seconds: float = PATIENCE_SECONDS) -> None:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"the worker had not stopped after {seconds:g} s"
        if self.problem is not None:
            raise self.problem


@contextmanager
def working(app: Application, **options: Any) -> Iterator[Working]:
    """A worker of ``app`` for the time of the block; it is stopped at once afterwards, and what it raised is raised."""
    worker = Working(app, **options)
    worker.thread.start()
    try:
        yield worker
    finally:
        worker.stop(now=True)
        worker.join()


class Renewals:
    """How often each lease was renewed: so a handler can outlast its lease without a test that counts seconds."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, int]] = Counter()

    def count(self, job_id: str, idx: int) -> None:
        self._times[job_id, idx] += 1

    def of(self, job_id: str, idx: int) -> int:
        return self._times[job_id, idx]

    def enough(self, part: Part) -> bool:
        return self.of(part.job_id, part.idx) >= 3

    def clear(self) -> None:
        self._times.clear()


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    """Hearts renew at every beat instead of after a third of the lease, and what they renew is counted."""
    found = Renewals()
    renew = lease.renew

    def noted(bucket: int, held: Any, worker: str | None = None) -> Any:
        lost = yield from renew(bucket, held, worker)
        for claim, _ in held:
            if claim not in lost:
                found.count(claim.job_id, claim.idx)
        return lost

    monkeypatch.setattr(lease, "renew", noted)
    monkeypatch.setattr("fanin.runtime.heart.RENEW_SHARE", 0.0)
    return found


def take_over(app: fanin.App, job: fanin.Job, idx: int = 0) -> None:
    """Make another attempt the holder of a running part, as a second worker does after the lease ran out."""
    from tests.runtime.rows import execute

    execute(
        app.store,
        "UPDATE {part} SET attempt = attempt + 1, attempts_allowed = attempts_allowed + 1, worker = 'the rival', "
        "claim_id = '11111111-2222-3333-4444-555555555555', ready = false, due_at = due_at + 3600 "
        f"WHERE bucket = {app.store.bucket(job.id)} AND job_id = '{job.id}' AND idx = {idx} AND status = 'running'",
    )


def finish_for_rival(app: fanin.App, job: fanin.Job, idx: int, attempt: int, result: str) -> None:
    """The rival of `take_over` reports its result."""
    from fanin.domain.model import Claim, Report
    from fanin.protocol import finish

    bucket = app.store.bucket(job.id)
    claim = Claim(bucket, job.id, idx, "t", attempt, "11111111-2222-3333-4444-555555555555", attempt, "[1]", None)
    app.store.run(lambda: finish.settle(bucket, [Report(claim, "succeed", result)], "the rival"))
