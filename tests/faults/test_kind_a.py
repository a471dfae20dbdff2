"""Kind A: the last part finishes and the job must move on exactly once."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from tests.faults.crew import Crew
from tests.faults.scale import scaled
from tests.runtime.working import until, working


def ended_once(job: fanin.Job, successors: int = 1) -> None:
    account = job.account()
    assert (account["ends"], account["successors"]) == (1, successors)


def test_F002_fast_parts_finish_before_the_fan_out_has_ended(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """the parts of a stream run while it is read; the job waits for its end"""
    monkeypatch.setattr(limits, "CHUNK_PARTS", 50)

    @app.task
    def echo(x: int) -> int:
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[int]:
        return list(found)

    seen: list[fanin.Job] = []

    def items() -> Any:
        yield from range(200)
        job = seen[0] = app.job("held")
        until(lambda: job.progress().succeeded >= 150, "the parts that stand have ended")
        until(lambda: job.progress().remaining == 0, "nothing is left of them")
        assert job.status == "open"
        assert job.account()["ends"] == 0
        yield from range(200, 230)

    seen.append(None)  # type: ignore[arg-type]
    with working(app, concurrency=4):
        job = app.map(echo, items(), then=after, key="held", stream=True).wait(90)
        assert list(job.results()) == list(range(230))
        assert job.successor is not None
        assert job.successor.result(90) == list(range(230))
    ended_once(job)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_F003_a_job_with_zero_parts_is_completed_by_its_submit(app: fanin.App, stream: bool) -> None:
    """no worker is alive; the successor can tell it from one part that returned nothing"""

    @app.task
    def nothing(x: int) -> None:
        return None

    @app.task
    def after(found: fanin.Joined[Any]) -> list[Any]:
        return [found.succeeded, *found]

    empty = app.map(nothing, iter([]), then=after, stream=stream)
    assert (empty.status, empty.progress().total) == ("completed", 0)
    ended_once(empty)
    one = app.map(nothing, [1], then=after, run=True).wait(90)
    for job, expected in ((empty, [0]), (one, [1, None])):
        assert job.successor is not None
        assert job.successor.wait(90, run=True).result() == expected


def test_F003_a_splitter_that_finds_nothing_to_split_makes_a_job_that_has_ended(app: fanin.App) -> None:
    @app.task
    def echo(x: int) -> int:
        return x

    @app.task
    def split(x: int) -> str:
        return app.map(echo, []).id

    job = app.submit(split, 1).wait(90, run=True)
    (child,) = job.children()
    assert child.id == job.result()
    assert child.status == "completed"
    ended_once(child, successors=0)


@pytest.mark.parametrize("good", [True, False], ids=["success", "failure"])
def test_F004_a_job_with_exactly_one_part_ends_once(app: fanin.App, good: bool) -> None:
    """also when the part ends before its creator hears of the commit"""

    @app.task
    def one(x: int) -> int:
        if not good:
            raise fanin.Permanent("no")
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[int]:
        return list(found)

    ended = threading.Event()
    said: list[str] = []

    def on_part(report: Any, answer: Any) -> None:
        said.append(answer.verdict.value)
        ended.set()

    create = app.store.run

    def slow_to_hear(factory: Any) -> Any:
        value = create(factory)
        if threading.current_thread() is threading.main_thread():
            assert ended.wait(90)
        return value

    with working(app, on_part=on_part, queues=["default"]):
        app.store.run = slow_to_hear  # type: ignore[method-assign]
        job = app.map(one, [1], then=after)
        app.store.run = create  # type: ignore[method-assign]
        job.wait(90)
    assert said[0] == "last"
    assert job.status == ("completed" if good else "failed")
    ended_once(job, successors=int(good))


@pytest.mark.parametrize("point", ["complete.part", "complete.before_commit", "complete.after_commit"])
def test_F005_a_process_dies_between_the_last_part_and_the_completion(crew: Crew, point: str) -> None:
    """both or nothing: a fresh worker finds the job ended with its successor, or runs the part again"""
    job = crew.map("quick", [1], then=crew.app.tasks["after"])
    assert crew.ended(crew.start(points=f"{point}=kill")) == -signal.SIGKILL
    committed = point == "complete.after_commit"
    progress = job.progress()
    assert (progress.status, progress.succeeded) == (("completed", 1) if committed else ("running", 0))
    assert (job.successor is not None) is committed
    crew.expire()
    with working(crew.app):
        job.wait(90)
        assert job.successor is not None
        assert job.successor.result(90) == [1]
    assert crew.calls("quick") == ([(0, 1)] if committed else [(0, 1), (0, 2)])
    ended_once(job)


def test_F007_the_counters_of_a_wide_job_fall_to_zero_under_many_workers_and_a_reader(app: fanin.App) -> None:
    """scaled down: no error reaches a handler, what remains only falls, one end"""

    @app.task
    def quiet(x: int) -> None:
        return None

    parts = scaled(3_000)
    job = app.map(quiet, range(parts), stripes=4 if app.store.dialect == "pg" else 1)
    seen = [parts]
    with working(app), working(app), working(app):

        def look() -> bool:
            seen.append(job.progress().remaining)
            return seen[-1] == 0

        until(look, "all parts have ended", scaled(60))
        job.wait(90)
    assert seen == sorted(seen, reverse=True)
    assert job.history() == []
    assert job.progress().succeeded == parts
    ended_once(job, successors=0)


def test_F009_jobs_that_look_alike_get_a_successor_each(app: fanin.App) -> None:
    """parts, successors and other jobs with the same task and payload are not taken for each other"""

    @app.task
    def same(x: Any) -> int:
        return 1

    @app.task
    def after(found: fanin.Joined[int]) -> list[int]:
        return list(found)

    jobs = [app.map(same, [7, 7, 7], then=after) for _ in range(2)]
    alone = app.submit(same, 7)
    with working(app, concurrency=4):
        for job in (*jobs, alone):
            job.wait(90)
        followers = [job.successor for job in jobs]
        assert all(followers)
        assert [follower.result(90) for follower in followers if follower] == [[1, 1, 1]] * 2
    assert len({follower.id for follower in followers if follower}) == 2
    for job in jobs:
        ended_once(job)
