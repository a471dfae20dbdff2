"""A producer feeds a job in a with block: parts run beside it, and the end of the block seals it."""

# ruff: noqa: PT012 - the whole block is what is tested
from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.domain.identity import keyed_job_id
from fanin.testing.clock import Clock
from fanin.testing.inline import Inline


def doubling(app: fanin.App | fanin.AsyncApp) -> Any:
    @app.task(name="double", attempts=1)
    def double(x: int) -> int:
        if x < 0:
            raise ValueError("no")
        return 2 * x

    return double


def test_parts_run_while_their_job_is_fed_and_it_ends_after_the_block(app: fanin.App) -> None:
    double = doubling(app)
    inline = Inline(app)
    with app.open(double) as job:
        assert job.add(1)
        job.flush()
        inline.run_until_idle()
        assert job.progress().succeeded == 1
        assert job.status == "open"
        assert job.extend([2, 3])
    assert job.status == "running"
    assert job.row().sealed_parts == 3
    inline.run_until_idle()
    assert job.result() == [2, 4, 6]
    inline.close()


def test_a_job_without_parts_ends_with_the_block(app: fanin.App) -> None:
    with app.open(doubling(app)) as job:
        pass
    assert (job.status, job.result()) == ("completed", [])


def test_items_that_come_quickly_are_written_together(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.opened.FLUSH_SECONDS", 3600.0)
    monkeypatch.setattr("fanin.opened.time.monotonic", lambda: 7200.0)
    monkeypatch.setattr(limits, "CHUNK_PARTS", 3)
    with app.open(doubling(app)) as job:
        totals = [job.add(n) and job.progress().total for n in range(8)]
    assert totals == [1, 1, 1, 4, 4, 4, 7, 7]
    assert job.progress().total == 8


def test_items_that_come_slowly_are_written_at_once(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fanin.opened.FLUSH_SECONDS", 0.0)
    with app.open(doubling(app)) as job:
        assert [job.add(n) and job.progress().total for n in range(3)] == [1, 2, 3]


def test_an_exception_in_the_block_cancels_the_job_and_says_why(app: fanin.App) -> None:
    with pytest.raises(ZeroDivisionError), app.open(doubling(app)) as job:
        job.add(1)
        job.flush()
        job.add(1 // 0)
    row = job.row()
    assert (row.status, row.outcome) == ("cancelled", "cancelled")
    assert row.reason is not None
    assert row.reason.startswith("its producer failed: ZeroDivisionError: ")


def test_a_reason_that_cannot_be_stored_as_it_is_does_not_hide_the_exception(app: fanin.App) -> None:
    with pytest.raises(ValueError, match="odd"), app.open(doubling(app)) as job:
        raise ValueError("odd \0 \ud800" + "x" * 5_000)
    assert job.status == "cancelled"


def test_with_a_key_the_same_call_goes_on_after_an_exception(app: fanin.App) -> None:
    double = doubling(app)
    with pytest.raises(KeyError), app.open(double, key="k") as job:
        job.extend([1, 2])
        job.flush()
        raise KeyError("broken")
    assert job.status == "open"
    inline = Inline(app)
    inline.run_until_idle()
    with app.open(double, key="k") as again:
        again.extend([1, 2, 3])
    assert again.id == job.id
    inline.run_until_idle()
    assert (again.result(), again.account()["attempts"]) == ([2, 4, 6], 3)
    with app.open(double, key="k") as third:
        third.extend([1, 2, 3])
    assert third.account()["attempts"] == 3
    with pytest.raises(fanin.KeyConflict), app.open(double, key="k") as fourth:
        fourth.extend([1, 2, 4])


def test_a_producer_that_says_other_items_again_is_refused(app: fanin.App) -> None:
    double = doubling(app)
    with pytest.raises(KeyError), app.open(double, key="k") as job:
        job.add(1)
        job.flush()
        raise KeyError
    with pytest.raises(fanin.KeyConflict, match="part 0"), app.open(double, key="k") as job:
        job.add(2)
        job.flush()
    with pytest.raises(fanin.KeyConflict, match="other options"), app.open(double, key="k", attempts=7) as job:
        pass


def test_the_next_attempt_of_a_handler_goes_on_with_its_open_job(app: fanin.App) -> None:
    double = doubling(app)

    @app.task(name="feed", backoff=0)
    def feed() -> str:
        with app.open(double) as job:
            job.add(1)
            job.flush()
            if fanin.current().attempt == 1:
                raise ValueError("not yet")
            job.add(2)
        return job.id

    outer = app.submit(feed)
    inline = Inline(app)
    inline.run_until_idle()
    assert app.job(outer.result()).result() == [2, 4]
    assert len(app.jobs()) == 2


def test_a_job_that_ends_early_takes_no_more_and_reads_no_further(app: fanin.App) -> None:
    double = doubling(app)
    read = []

    def items() -> Any:
        for n in range(10):
            read.append(n)
            yield -1 if n == 0 else n

    inline = Inline(app)
    with app.open(double, fail_fast=True) as job:
        assert job.add(-1)
        job.flush()
        inline.run_until_idle()
        assert job.status == "failed"
        job.add(5)
        job.flush()
        assert not job.extend(items())
        assert read == [0]
    assert (job.status, job.row().outcome) == ("failed", "too_many_failures")


def test_a_dead_producers_job_is_given_up_at_its_deadline(app: fanin.App) -> None:
    double = doubling(app)
    job = app.open(double, give_up_after="1h")
    job.__enter__().add(1)
    job.flush()
    clock = Clock(app.store)
    clock.advance(3_601)
    Inline(app).run_until_idle()
    row = app.job(job.id).row()
    assert (row.status, row.outcome) == ("failed", "gave_up")
    clock.reset()


def test_a_killed_producer_is_followed_by_one_that_goes_on(migrated_url: str, tmp_path: Any) -> None:
    script = (
        "import sys, time, fanin\n"
        "app = fanin.App(sys.argv[1])\n"
        "@app.task(name='double')\n"
        "def double(x: int) -> int: return 2 * x\n"
        "with app.open(double, key='k') as job:\n"
        "    for n in range(int(sys.argv[2])):\n"
        "        job.add(n); job.flush()\n"
        "    print('fed', flush=True)\n"
        "    while sys.argv[3] == 'hang': time.sleep(1)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, migrated_url, "3", "hang"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "fed\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    with fanin.App(migrated_url) as app:
        doubling(app)
        job = app.job(keyed_job_id("k"))
        app.run_worker(until_idle=True)
        assert (job.status, job.progress().succeeded) == ("open", 3)
        subprocess.run([sys.executable, "-c", script, migrated_url, "5", "end"], check=True, stdout=subprocess.DEVNULL)
        app.run_worker(until_idle=True)
        assert (job.result(), job.account()["attempts"]) == ([0, 2, 4, 6, 8], 5)


def test_an_open_job_is_fed_inside_of_its_block_alone(app: fanin.App) -> None:
    double = doubling(app)
    job = app.open(double)
    with pytest.raises(fanin.Refused, match="inside of the with block"):
        job.add(1)
    with job:
        job.add(1)
    with pytest.raises(fanin.Refused, match="inside of the with block"):
        job.add(1)
    with pytest.raises(fanin.Refused, match="once for each"), job:
        pass


def test_what_cannot_be_stored_is_refused_before_it_is_written(app: fanin.App) -> None:
    with pytest.raises(fanin.BadPayload, match="part 1"), app.open(doubling(app)) as job:
        job.add(1)
        job.add("x")
    assert job.status == "cancelled"


def test_an_open_job_may_grow_beside_its_producer(app: fanin.App) -> None:
    @app.task(name="visit")
    def visit(page: int) -> int:
        fanin.current().spawn([page + 1, page + 2] if page < 3 else [])
        return page

    inline = Inline(app)
    with app.open(visit, grows=True) as job:
        job.add(0)
        job.flush()
        inline.run_until_idle()
        assert job.progress().total == 5
        job.extend([3, 7, 7, 0])
    inline.run_until_idle()
    assert job.row().sealed_parts == 2
    assert sorted(job.result()) == [0, 1, 2, 3, 4, 7]
    inline.close()


def test_async_producers_feed_jobs_too(migrated_url: str) -> None:
    async def story() -> None:
        async with fanin.AsyncApp(migrated_url) as app:
            double = doubling(app)

            async def numbers() -> Any:
                for n in (2, 3):
                    yield n

            async with app.open(double, key="k") as job:
                assert await job.add(1)
                await job.flush()
                assert await job.extend(numbers())
                assert await job.extend([4])
                assert await job.status == "open"
            await app.run_worker(until_idle=True)
            assert await job.result() == [2, 4, 6, 8]
            with pytest.raises(ZeroDivisionError):
                async with app.open(double) as failed:
                    await failed.add(1)
                    await failed.add(1 // 0)
            assert await failed.status == "cancelled"
            task = asyncio.create_task(hang(app, double))
            while not (found := [row for row in await app.jobs() if row.status == "open"]):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await (await app.job(found[0].id)).status == "cancelled"

    async def hang(app: fanin.AsyncApp, double: Any) -> None:
        async with app.open(double) as job:
            await job.add(1)
            await asyncio.Event().wait()

    asyncio.run(story())


@pytest.mark.parametrize("grows", [False, True])
def test_a_producer_may_end_with_the_parts_that_fit(migrated_url: str, grows: bool) -> None:
    with fanin.App(migrated_url, max_parts=3) as app:
        double = doubling(app)

        def feed() -> fanin.Job:
            with app.open(double, key="feed", grows=grows) as job:
                for n in range(5):
                    try:
                        job.add(n)
                    except fanin.LimitExceeded:
                        break
            return job

        job = feed()
        assert (job.status, job.row().sealed_parts) == ("running", 3)
        assert feed().id == job.id
        inline = Inline(app)
        inline.run_until_idle()
        assert job.result() == [0, 2, 4]
        inline.close()
