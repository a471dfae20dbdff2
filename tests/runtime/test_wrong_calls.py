"""What cannot be meant is refused before anything is written, in fanin's words: an option is not left out silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.runtime.fanout import FanOut
from fanin.runtime.worker import Worker

NOWHERE = "sqlite:///never-opened.db"


@pytest.fixture
def declared() -> tuple[fanin.App, fanin.Task[..., Any]]:
    app = fanin.App(NOWHERE)

    @app.task
    def work(number: int = 0) -> int:
        return number

    return app, work


EMPTY: dict[str, Callable[[fanin.App, Any], Any]] = {
    "step attempts=0": lambda app, work: app.flow("f").step(work, 1, attempts=0),
    "step queue=''": lambda app, work: app.flow("f").step(work, 1, queue=""),
    "map attempts=0": lambda app, work: app.flow("f").map(work, [1], attempts=0),
    "map queue=''": lambda app, work: app.flow("f").map(work, [1], queue=""),
    "flow fail_fast='no'": lambda app, work: app.flow("f", fail_fast="no"),  # type: ignore[arg-type]
    "Events failures='no'": lambda app, work: fanin.Events(failures="no"),  # type: ignore[arg-type]
    "Successor attempts=0": lambda app, work: fanin.Successor(work, attempts=0),
    "App url=''": lambda app, work: fanin.App(""),
    "App url=3": lambda app, work: fanin.App(3),  # type: ignore[arg-type]
    "AsyncApp url=''": lambda app, work: fanin.AsyncApp(""),
    "task name=''": lambda app, work: app.task(name="")(print),
    "task mode=''": lambda app, work: app.task(mode="")(print),
    "task function=3": lambda app, work: app.task(3),  # type: ignore[call-overload]
    "on of=[]": lambda app, work: app.on("job.finished", of=[]),
    "on of='work'": lambda app, work: app.on("job.finished", of="work"),  # type: ignore[arg-type]
    "on of=3": lambda app, work: app.on("job.finished", of=3),  # type: ignore[arg-type]
    "worker queues=[]": lambda app, work: Worker(app, queues=[]),
    "worker queues=['']": lambda app, work: Worker(app, queues=[""]),
    "worker queues=3": lambda app, work: Worker(app, queues=3),  # type: ignore[arg-type]
    "worker concurrency='4'": lambda app, work: Worker(app, concurrency="4"),  # type: ignore[arg-type]
    "worker concurrency=1.5": lambda app, work: Worker(app, concurrency=1.5),  # type: ignore[arg-type]
    "worker batch=1.5": lambda app, work: Worker(app, batch=1.5),  # type: ignore[arg-type]
    "worker name=''": lambda app, work: Worker(app, name=""),
    "job by=''": lambda app, work: fanin.Job(app, fanin_id(app)).cancel(by=""),
    "job by=3": lambda app, work: fanin.Job(app, fanin_id(app)).pause(by=3),  # type: ignore[arg-type]
    "job reason=3": lambda app, work: fanin.Job(app, fanin_id(app)).finish(3),  # type: ignore[arg-type]
    "job parts=0": lambda app, work: fanin.Job(app, fanin_id(app)).redrive(0),  # type: ignore[arg-type]
    "manual manual(3": lambda app, work: fanin.manual(3),  # type: ignore[arg-type]
    "resolve note=3": lambda app, work: fanin.FlowRun(app, fanin_id(app)).resolve("a", 3),  # type: ignore[arg-type]
    "open quorum=6 grows=5": lambda app, work: app.open(work, quorum=6, grows=5),
}


def fanin_id(app: fanin.App) -> str:
    from fanin.domain import identity

    return identity.new_job_id()


def test_an_age_below_zero_is_refused_for_what_it_is(declared: tuple[fanin.App, fanin.Task[..., Any]]) -> None:
    app, work = declared
    for call in (app.flow("f").step, fanin.Successor):
        with pytest.raises(fanin.BadOption, match="stale_after=-1: must be zero or more"):
            call(work, stale_after=-1)


@pytest.mark.parametrize("call", EMPTY)
def test_an_option_that_cannot_be_meant_is_refused_and_not_left_out(
    declared: tuple[fanin.App, fanin.Task[..., Any]], call: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app, work = declared
    made = EMPTY[call]
    with pytest.raises(fanin.BadOption) as refused:
        made(app, work)
    said = call.split(" ")[1].partition("=")[0]
    assert said in str(refused.value)
    assert "use" in str(refused.value) or "give" in str(refused.value) or "say" in str(refused.value)
    assert list(tmp_path.iterdir()) == []


SINGLE: list[Any] = ["abc", b"abc", bytearray(b"abc"), {"a": 1}, None, 3]
"""What is no list of items, though some of it can be read like one."""

GIVEN: dict[str, Callable[[fanin.App, Any, Any], Any]] = {
    "map": lambda app, work, items: app.map(work, items),
    "map that grows": lambda app, work, items: app.map(work, items, grows=True),
    "map stream": lambda app, work, items: app.map(work, items, stream=True),
    "flow.map": lambda app, work, items: app.flow("f").map(work, items),
    "fan_out": lambda app, work, items: FanOut.of(work, items),
    "submit_with args": lambda app, work, items: app.submit_with(work, items),
}


@pytest.mark.parametrize("call", GIVEN)
def test_a_single_value_is_not_taken_for_a_list_of_items(
    declared: tuple[fanin.App, fanin.Task[..., Any]], call: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app, _ = declared
    anything = app.task(name="anything")(lambda item: 1)
    for items in SINGLE:
        with pytest.raises(fanin.BadPayload, match=r"(items|args)=.*: give .*list"):
            GIVEN[call](app, anything, items)
    with pytest.raises(fanin.BadPayload, match=r"='abc' .* characters: give it in a list, \['abc'\], .* list\(…\)"):
        GIVEN[call](app, anything, "abc")
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_takes_no_single_value_for_a_list_of_items(
    declared: tuple[fanin.App, fanin.Task[..., Any]],
) -> None:
    app, _ = declared
    anything = app.task(name="anything")(lambda item: 1)
    for items in SINGLE[:4]:
        with pytest.raises(fanin.BadPayload, match=r"items=.*: give it in a list"):
            app.schedule("listed", "@daily", anything, items)
        made = app.schedule(f"called {items}", "@daily", anything, lambda slot, given=items: given)
        with pytest.raises(fanin.BadPayload, match=r"items=.*: give it in a list"):
            made._spool(0.0)


def test_an_open_job_takes_no_single_value_for_a_list_of_items(app: fanin.App) -> None:
    anything = app.task(name="anything")(lambda item: 1)
    with app.open(anything) as job:
        for items in SINGLE:
            with pytest.raises(fanin.BadPayload, match=r"items=.*: give .*list"):
                job.extend(items)
        job.extend(["abc"])
    assert job.progress().total == 1


async def _refused_async(url: str) -> int:
    async with fanin.AsyncApp(url) as app:
        anything = app.task(name="anything")(lambda item: 1)
        async with app.open(anything) as job:
            for items in SINGLE:
                for call in (job.extend(items), app.map(anything, items, stream=True), app.map(anything, items)):
                    with pytest.raises(fanin.BadPayload, match=r"items=.*: give .*list"):
                        await call
        return len(await app.jobs())


def test_an_async_application_takes_no_single_value_for_a_list_of_items(migrated_url: str) -> None:
    assert asyncio.run(_refused_async(migrated_url)) == 1


@pytest.mark.parametrize("now", [False, True])
def test_a_part_takes_no_single_value_for_the_items_that_it_spawns(app: fanin.App, now: bool) -> None:
    @app.task(attempts=1)
    def work(item: Any) -> int:
        for items in SINGLE:
            with pytest.raises(fanin.BadPayload, match=r"items=.*: give .*list"):
                fanin.current().spawn(items, now=now)
        return 1

    job = app.map(work, [1], grows=True, run=True)
    assert job.result(90) == [1]
