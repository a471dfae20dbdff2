"""Handlers add parts to their own job: each item once, with the commit or at once, whatever runs the handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.runtime.worker import Worker
from fanin.testing.inline import Inline
from tests.runtime import process_tasks

LINKS = {0: [1, 2], 1: [0, 2, 3], 2: [3, 4], 3: [0], 4: []}


def crawl(app: fanin.App, **spawn: Any) -> Any:
    @app.task(name="visit")
    def visit(page: int) -> int:
        fanin.current().spawn(LINKS[page], **spawn)
        return page

    return visit


@pytest.mark.parametrize("now", [False, True])
def test_a_crawl_visits_each_page_once(app: fanin.App, now: bool) -> None:
    visit = crawl(app, now=now)
    job = app.map(visit, [0], grows=True)
    app.run_worker(until_idle=True)
    assert sorted(job.result()) == [0, 1, 2, 3, 4]
    assert (job.account()["parts"], job.account()["attempts"]) == (5, 5)
    assert job.progress().total == 5


def test_what_a_failing_attempt_wanted_is_added_by_the_one_that_succeeds(app: fanin.App) -> None:
    @app.task(name="visit", backoff=0)
    def visit(page: int) -> int:
        part = fanin.current()
        if page == 0:
            part.spawn([part.attempt])
            if part.attempt == 1:
                raise ValueError("no")
        return page

    job = app.map(visit, [0], grows=True)
    Inline(app).run_until_idle()
    assert job.result() == [0, 2]


def test_handlers_delivered_twice_add_each_item_once(app: fanin.App) -> None:
    visit = crawl(app, now=True)
    job = app.map(visit, [0], grows=True)
    inline = Inline(app)
    inline.run_until_idle(deliver_twice=True)
    inline.close()
    assert sorted(job.result()) == [0, 1, 2, 3, 4]


def test_keys_are_those_of_the_task_or_of_the_call(app: fanin.App) -> None:
    @app.task(name="visit", item_key=lambda page: page["url"])
    def visit(page: dict[str, Any]) -> str:
        part = fanin.current()
        if page["url"] == "/":
            part.spawn([{"url": "/", "n": 1}, {"url": "/a", "n": 1}, {"url": "/a", "n": 2}])
            part.spawn([{"url": "/b", "n": 1}, {"url": "/c", "n": 1}], key=lambda page: "one")
            part.spawn([{"url": "/d"}], key="/a")
        return f"{page['url']}{page['n']}"

    job = app.map(visit, [{"url": "/", "n": 0}], grows=True)
    Inline(app).run_until_idle()
    assert job.result() == ["/0", "/a1", "/b1"]


def test_a_text_is_the_key_of_the_item_that_it_would_be(app: fanin.App) -> None:
    @app.task(name="visit")
    def visit(url: str) -> str:
        if url == "/":
            fanin.current().spawn(["x", "y", "z"], key=lambda item: {"x": "/", "y": "/a", "z": "z"}[item])
            fanin.current().spawn(["/a", "z"])
        return url

    job = app.map(visit, ["/"], grows=True)
    Inline(app).run_until_idle()
    assert job.result() == ["/", "y", "z"]


@pytest.mark.parametrize(
    ("items", "key", "said"),
    [
        (["a", "b"], "one", "for 2 items"),
        (["a"], lambda item: 5, "is 5: a text"),
        (["a"], lambda item: "", "a text"),
    ],
)
def test_a_key_that_can_be_none_fails_the_part_at_once(app: fanin.App, items: Any, key: Any, said: str) -> None:
    @app.task(name="visit")
    def visit(page: str) -> None:
        fanin.current().spawn(items, key=key)

    job = app.map(visit, ["x"], grows=True)
    Inline(app).run_until_idle()
    (failure,) = job.failures()
    assert failure.type == "BadOption"
    assert said in failure.message
    assert failure.attempt == 1


@pytest.mark.parametrize("now", [False, True])
def test_a_job_that_does_not_grow_says_so_in_the_handler(app: fanin.App, now: bool) -> None:
    visit = crawl(app, now=now)
    job = app.map(visit, [0])
    Inline(app).run_until_idle()
    (failure,) = job.failures()
    assert (failure.type, failure.attempt) == ("BadOption", 1)
    assert "grows=True" in failure.message


def test_more_than_one_commit_can_carry_is_for_spawning_at_once(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SPAWN_PARTS", 3)
    monkeypatch.setattr(limits, "CHUNK_PARTS", 2)
    added: list[int | None] = []

    @app.task(name="visit", attempts=1)
    def visit(page: int) -> int:
        if page in (0, 1):
            added.append(fanin.current().spawn(range(10, 15), now=page == 1))
        return page

    job = app.map(visit, [0, 1], grows=True, tolerate=1, fail_fast=False)
    Inline(app).run_until_idle()
    (failure,) = job.failures()
    assert failure.type == "LimitExceeded"
    assert "now=True" in failure.message
    assert added == [5]
    assert job.progress().total == 7


def test_a_part_that_passes_the_width_fails_and_the_others_of_its_batch_do_not(
    app: fanin.App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="visit")
    def visit(page: int) -> int:
        if page < 2:
            fanin.current().spawn([10 * (page + 1), 11 * (page + 1)])
        return page

    job = app.map(visit, [0, 1, 2], grows=5, tolerate=1, fail_fast=False)
    Worker(app, concurrency=1).run(until_idle=True)
    assert job.status == "completed"
    (failure,) = job.failures()
    assert (failure.type, failure.attempt) == ("LimitExceeded", 1)
    assert "may have 5 parts" in failure.message
    assert "failed for good at attempt 1: the parts that it adds are too many for its job" in caplog.text
    assert job.progress().total == 5


@pytest.mark.parametrize("grows", [0, -1, 11, "yes", 2.0])
def test_a_width_that_cannot_be_is_refused(grows: Any) -> None:
    app = fanin.App("sqlite:///never-opened.db", max_parts=10)
    with pytest.raises(fanin.BadOption, match="grows="):
        app.map(crawl(app), [0], grows=grows)


def test_two_first_items_with_one_key_are_refused(app: fanin.App) -> None:
    visit = crawl(app)
    with pytest.raises(fanin.KeyConflict, match="two items have one key"):
        app.map(visit, [1, 2, 1], grows=True)
    assert app.jobs() == []


def test_a_key_with_another_width_is_another_request(app: fanin.App) -> None:
    visit = crawl(app)
    job = app.map(visit, [0], grows=10, key="k")
    assert app.map(visit, [0], grows=10, key="k").id == job.id
    with pytest.raises(fanin.KeyConflict):
        app.map(visit, [0], grows=11, key="k")
    with pytest.raises(fanin.KeyConflict):
        app.map(visit, [0], key="k")


def test_a_stream_that_grows_leaves_out_what_its_parts_have_found(app: fanin.App) -> None:
    visit = crawl(app)
    job = app.map(visit, [0, 1, 0, 2, 1], grows=True, stream=True)
    app.run_worker(until_idle=True)
    assert job.row().sealed_parts == 3
    assert sorted(job.result()) == [0, 1, 2, 3, 4]


def test_results_come_in_order_and_a_grown_job_gives_a_list(app: fanin.App) -> None:
    @app.task(name="visit")
    def visit(page: int) -> int:
        return page

    job = app.map(visit, [7], grows=True)
    app.run_worker(until_idle=True)
    assert job.result() == [7]


def test_a_part_that_was_lost_meanwhile_adds_nothing_at_once(app: fanin.App) -> None:
    lost: list[bool] = []

    @app.task(name="visit")
    def visit(page: int) -> int:
        if page == 0:
            app.job("crawl").cancel()
            try:
                fanin.current().spawn([1], now=True)
            except fanin.LeaseLost:
                lost.append(True)
                raise
        return page

    job = app.map(visit, [0], grows=True, key="crawl")
    Inline(app).run_until_idle()
    assert lost == [True]
    assert job.progress().total == 1


def test_async_handlers_and_callers_grow_jobs_too(migrated_url: str) -> None:
    async def main() -> None:
        async with fanin.AsyncApp(migrated_url) as app:

            @app.task(name="visit")
            async def visit(page: int) -> int:
                fanin.current().spawn(LINKS[page])
                return page

            job = await app.map(visit, [0], grows=True)
            await app.run_worker(until_idle=True)
            assert sorted(await job.result()) == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_handlers_in_processes_grow_jobs_too(app: fanin.App) -> None:
    app.tasks.update(process_tasks.app.tasks)
    job = app.map(process_tasks.grow, [3], grows=True)
    Worker(app, concurrency=1).run(until_idle=True)
    assert sorted(job.result()) == [0, 1, 2, 3]
