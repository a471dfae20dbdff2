"""What an operator asks of a job through the application."""

from __future__ import annotations

import threading

import pytest

import fanin
from fanin.cli import main
from fanin.protocol import close
from fanin.runtime.worker import Worker
from fanin.stores.base import Store


@pytest.fixture
def job(app: fanin.App) -> fanin.Job:
    @app.task
    def work(number: int) -> int:
        return number

    return app.map(work, range(5))


def test_parts_that_an_end_left_behind_can_be_chosen_before_any_worker_has_swept_them(job: fanin.Job) -> None:
    assert job.cancel("wrong prices")
    assert job.redrive([1, 3]) == 2
    progress = job.progress()
    assert (progress.status, progress.remaining, progress.abandoned) == ("running", 2, 3)


def test_a_redrive_of_a_running_job_is_refused_and_sweeps_nothing(job: fanin.Job) -> None:
    with pytest.raises(fanin.NotAllowedNow, match="can be redriven when it has ended"):
        job.redrive()
    assert job.progress().remaining == 5


@pytest.mark.parametrize("reason", ["a\0b", "x" * 1_001], ids=["nul", "long"])
def test_a_reason_that_cannot_be_stored_is_refused_before_the_job_is_touched(
    job: fanin.Job, store: Store, reason: str
) -> None:
    with pytest.raises(fanin.BadOption, match="at most 1000 characters"):
        job.cancel(reason)
    assert job.status == "running"
    assert store.read(lambda: close.unswept(0)) == []


def test_a_quorum_that_no_run_could_reach_is_refused_before_anything_is_written(app: fanin.App) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    with pytest.raises(fanin.BadOption, match="quorum=3 of 2 parts"):
        app.map(work, [1, 2], quorum=3)
    assert app.jobs() == []


def test_a_successor_is_found_in_the_bucket_of_its_job_however_many_there_are(pg_url: str) -> None:
    assert main(["migrate", "--url", pg_url, "--buckets", "16"]) == 0
    app = fanin.App(pg_url)

    @app.task
    def work(number: int) -> int:
        return number

    @app.task
    def total(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    jobs = [app.map(work, range(3), then=total, key=f"job {n}", run=True) for n in range(8)]
    assert len({app.store.bucket(job.id) for job in jobs}) > 2
    for job in jobs:
        job.wait(timeout=60)
        assert job.successor is not None
        assert app.store.bucket(job.successor.id) == app.store.bucket(job.id)
        assert job.successor.result(timeout=60) == 3
        assert app.job(job.successor.id[:13]) == job.successor
    app.close()


def test_a_worker_whose_handler_thread_breaks_ends_instead_of_holding_its_parts_for_ever(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    app.map(work, [1])
    worker = Worker(app, grace=0.0)
    monkeypatch.setattr(worker, "_note", lambda running, found: 1 / 0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with pytest.raises(RuntimeError, match="a handler's thread has ended"):
        worker.run(until_idle=True)
