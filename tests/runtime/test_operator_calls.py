"""What an operator asks of a job through the application."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import fanin
from fanin.cli import main
from fanin.protocol import close
from fanin.runtime.worker import Worker
from fanin.stores.base import Store
from tests.protocol.helpers import Clock, claim, retried, settle


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


@pytest.mark.parametrize("reason", ["a\0b", "\ud800", "x" * 1_001], ids=["nul", "surrogate", "long"])
def test_a_reason_that_cannot_be_stored_is_refused_before_the_job_is_touched(
    job: fanin.Job, store: Store, reason: str
) -> None:
    with pytest.raises(fanin.BadOption, match="at most 1000 characters"):
        job.cancel(reason)
    assert job.status == "running"
    assert store.read(lambda: close.unswept(0)) == []


@pytest.mark.parametrize(
    ("parts", "attempts"),
    [(None, 0), (None, -1), (None, 1.5), (None, True), (None, 1_001), ([-1], None), ([1.0], None), ([True], None),
     ([2**40], None), ("01", None)],
)  # fmt: skip
def test_a_redrive_that_cannot_be_meant_is_refused_before_anything_is_written(
    job: fanin.Job, store: Store, parts: Any, attempts: Any
) -> None:
    """An allowance that is no whole number would stop every claim of the queue once it is used up."""
    job.cancel()
    with pytest.raises(fanin.BadOption):
        job.redrive(parts, attempts=attempts)
    assert (job.row().run, len(store.read(lambda: close.unswept(0)))) == (1, 1)


def test_an_empty_name_is_no_job_even_where_there_is_one_only(app: fanin.App, job: fanin.Job) -> None:
    assert [row.id for row in app.jobs()] == [job.id]
    for name in ("", "\0", "\ud800"):
        with pytest.raises(fanin.UnknownJob, match="names no job"):
            app.job(name)


def test_the_successor_is_that_of_the_latest_run(app: fanin.App) -> None:
    broken = {1}

    @app.task(attempts=1)
    def work(number: int) -> int:
        if number in broken:
            raise ValueError(number)
        return number

    @app.task
    def after(found: fanin.Joined[int]) -> int:
        return len(found)

    job = app.map(work, [0, 1], then=after, tolerate=1)
    app.run_worker(until_idle=True)
    first = job.successor
    assert first is not None
    assert first.result() == 1
    broken.clear()
    assert job.redrive() == 2
    assert app.job(job.id).successor is None, "the new run has none yet"
    app.run_worker(until_idle=True)
    second = app.job(job.id).successor
    assert second is not None
    assert (second.result(), second == first) == (2, False)


@pytest.mark.parametrize(
    "options",
    [{"quorum": 1.5}, {"quorum": True}, {"sample": 1.5, "tolerate": "1%"}, {"fail_fast": "no"}, {"stripes": 2.0},
     {"delay": -(10**400)}],
    ids=str,
)  # fmt: skip
def test_an_option_of_the_wrong_kind_is_refused_before_anything_is_written(
    app: fanin.App, options: dict[str, Any]
) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    with pytest.raises(fanin.BadOption, match=next(iter(options))):
        app.map(work, [1, 2], **options)
    for meta in (object(), float("nan"), "\ud800"):
        with pytest.raises(fanin.BadPayload, match="meta"):
            app.map(work, [1, 2], meta=meta)
    assert app.jobs() == []


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


DAY = 86_400.0


def now(job: fanin.Job) -> str:
    moment = job.explain().timeline[-1]
    assert moment.what == "now"
    return moment.text


def test_explain_says_how_the_live_parts_stand(app: fanin.App) -> None:
    clock = Clock(app.store)

    @app.task(name="part of it")
    def work(number: int) -> int:
        return number

    job = app.map(work, range(5), queue="slow ones")
    assert now(job).startswith("now running: 5 parts ready, the first of them for ")
    clock.advance(2 * DAY)
    assert now(job) == (
        "now running: 5 parts ready, the first of them for 2 d; "
        "it seems that no worker of queue slow ones has time and knows the task part of it"
    )
    held = claim(app.store, 2, queue="slow ones", tasks=["part of it"])
    assert now(job) == "now running: 2 parts in hand, 3 parts ready, the first of them for 2 d"
    settle(app.store, retried(held[0], delay=3 * DAY + 1_800))
    in_hand, ready = "1 part in hand", "3 parts ready, the first of them for 2 d"
    assert now(job) == f"now running: {in_hand}, {ready}, 1 part due later, the first of them in 3 d"
    job.pause()
    assert now(job) == "now running: 1 part in hand, 4 parts held back: the job is paused"
    job.cancel()
    assert all(moment.what != "now" for moment in job.explain().timeline)


def test_explain_says_that_more_may_come(app: fanin.App) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    with app.open(work) as job:
        assert now(app.job(job.id)) == "now open: no part is live; parts may still be added"
