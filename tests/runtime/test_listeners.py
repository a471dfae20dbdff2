"""``@app.on("job.finished")``: an ordinary job for each end of the jobs that the application submits."""

from __future__ import annotations

import asyncio

import pytest

import fanin
from fanin import JobFinished
from fanin.domain import limits
from fanin.domain.errors import BadOption, BadPayload
from fanin.runtime.worker import Worker


def work(app: fanin.App) -> None:
    Worker(app).run(until_idle=True)


def test_a_listener_is_called_once_for_each_end_with_its_outcome(app: fanin.App) -> None:
    heard: list[JobFinished] = []

    @app.task(attempts=1)
    def odd(number: int) -> int:
        if number % 2 == 0:
            raise ValueError(number)
        return number

    @app.on("job.finished")
    def tell(event: JobFinished) -> None:
        heard.append(event)

    good = app.map(odd, [1, 3], key="good")
    bad = app.map(odd, [1, 2])
    cancelled = app.map(odd, [1], delay=1_000)
    cancelled.cancel("not needed")
    work(app)
    assert {(e.job_id, e.key, e.outcome) for e in heard} == {
        (good.id, "good", "all_ok"), (bad.id, None, "too_many_failures"), (cancelled.id, None, "cancelled"),
    }  # fmt: skip
    assert len(heard) == 3
    assert heard[0].task == odd.name


def test_a_listener_that_fails_is_tried_again_like_any_task(app: fanin.App) -> None:
    calls: list[int] = []

    @app.task
    def quick(number: int) -> int:
        return number

    @app.on("job.finished", attempts=3, backoff=0)
    def tell(event: JobFinished) -> None:
        calls.append(fanin.current().attempt)
        if len(calls) < 3:
            raise ConnectionError

    job = app.submit(quick, 1)
    work(app)
    assert calls == [1, 2, 3]
    assert job.row().status == "completed"


def test_a_listener_may_choose_its_tasks(app: fanin.App) -> None:
    heard: list[str] = []

    @app.task
    def one(number: int) -> int:
        return number

    @app.task
    def two(number: int) -> int:
        return number

    @app.on("job.finished", of=one, name="of one")
    def tell(event: JobFinished) -> None:
        heard.append(event.task)

    app.submit(one, 1)
    app.submit(two, 1)
    work(app)
    assert heard == [one.name]


def test_successors_and_what_listeners_submit_are_not_heard(app: fanin.App) -> None:
    heard: list[str] = []

    @app.task
    def quick(number: int) -> int:
        return number

    @app.task
    def join(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.on("job.finished")
    def tell(event: JobFinished) -> None:
        heard.append(event.job_id)
        app.submit(quick, 2)

    job = app.map(quick, [1, 2], then=join)
    work(app)
    assert heard == [job.id]


def test_what_was_submitted_before_is_not_heard(app: fanin.App) -> None:
    heard: list[str] = []

    @app.task
    def quick(number: int) -> int:
        return number

    app.submit(quick, 1)

    @app.on("job.finished")
    def tell(event: JobFinished) -> None:
        heard.append(event.job_id)

    later = app.submit(quick, 2)
    work(app)
    assert heard == [later.id]


def test_a_listener_may_take_plain_json_or_be_async(app: fanin.App) -> None:
    heard: list[str] = []

    @app.task
    def quick(number: int) -> int:
        return number

    @app.on("job.finished")
    def plain(event: dict) -> None:  # type: ignore[type-arg]
        heard.append(event["outcome"])

    @app.on("job.finished")
    async def waiting(event: JobFinished) -> None:
        await asyncio.sleep(0)
        heard.append(event.outcome)

    app.submit(quick, 1)
    work(app)
    assert heard == ["all_ok", "all_ok"]


def test_a_listener_that_cannot_be_called_is_refused(app: fanin.App) -> None:
    with pytest.raises(BadOption, match=r"'job.began' is no event that can be listened to: there is job.finished"):
        app.on("job.began")

    def nothing() -> None: ...

    def number(event: int) -> None: ...

    def fine(event: JobFinished) -> None: ...

    with pytest.raises(BadPayload, match="does not take exactly one argument, the event"):
        app.on("job.finished")(nothing)
    with pytest.raises(BadPayload, match="does not fit"):
        app.on("job.finished")(number)
    app.on("job.finished", name="twice")(fine)
    with pytest.raises(BadOption, match="is taken"):
        app.on("job.finished", name="twice")(fine)


def test_there_is_a_limit_on_listeners(app: fanin.App) -> None:
    for number in range(limits.JOB_LISTENERS):
        app.on("job.finished", name=f"listener {number}")(lambda event: None)
    with pytest.raises(BadOption, match="which is the limit"):
        app.on("job.finished", name="one more")
