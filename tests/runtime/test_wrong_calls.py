"""What cannot be meant is refused before anything is written, in fanin's words: an option is not left out silently."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, time
from typing import Any

import pytest

import fanin
from fanin.runtime.fanout import FanOut
from fanin.runtime.names import find_flow, find_job
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
    "backfill since=0": lambda app, work: app.schedule("s", "@daily", work).backfill(0, 1),  # type: ignore[arg-type]
    "schedule start=1": lambda app, work: app.schedule("s", "@daily", work, start=time(1, tzinfo=UTC)),  # type: ignore[arg-type]
    "pause note=3": lambda app, work: app.schedule("s", "@daily", work).pause(3),  # type: ignore[arg-type]
    "next count=10**30": lambda app, work: app.schedule("s", "@daily", work).next(10**30),
    "firings limit=10**30": lambda app, work: app.schedule("s", "@daily", work).firings(10**30),
    "schedule name=[]": lambda app, work: app.schedule([], "@daily", work),  # type: ignore[arg-type]
    "schedule tz=[]": lambda app, work: app.schedule("s", "@daily", work, tz=[]),  # type: ignore[arg-type]
    "step name=[]": lambda app, work: app.flow("f").step(work, name=[]),  # type: ignore[arg-type]
    "map name=[]": lambda app, work: app.flow("f").map(work, [1], name=[]),  # type: ignore[arg-type]
    "fan_out key='k'": lambda app, work: FanOut.of(work, [1], key="k"),
    "explain part='x'": lambda app, work: fanin.Job(app, fanin_id(app)).explain("x"),  # type: ignore[arg-type]
    "undo_again step=()": lambda app, work: fanin.FlowRun(app, fanin_id(app)).undo_again(()),  # type: ignore[arg-type]
    "resolve step=3": lambda app, work: fanin.FlowRun(app, fanin_id(app)).resolve(3, "n"),  # type: ignore[arg-type]
    "abandon_undo step=3": lambda app, work: fanin.FlowRun(app, fanin_id(app)).abandon_undo(3, "n"),  # type: ignore[arg-type]
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


LONG = "k" * 5_000

LONG_CALLS: dict[str, Callable[[fanin.App, Any], Any]] = {
    "key": lambda app, work: app.map(work, [1], key=LONG),
    "delay": lambda app, work: app.map(work, [1], delay=LONG),
    "give_up_at": lambda app, work: app.map(work, [1], give_up_at=LONG),  # type: ignore[arg-type]
    "both deadlines": lambda app, work: app.map(work, [1], give_up_at=1, give_up_after=LONG),
    "tolerate": lambda app, work: app.map(work, [1], tolerate=LONG),
    "fail_fast": lambda app, work: app.map(work, [1], fail_fast=LONG),  # type: ignore[arg-type]
    "quorum": lambda app, work: app.map(work, [1], quorum=LONG),  # type: ignore[arg-type]
    "sample": lambda app, work: app.map(work, [1], sample=LONG),  # type: ignore[arg-type]
    "give_up": lambda app, work: app.map(work, [1], give_up=LONG),
    "stripes": lambda app, work: app.map(work, [1], stripes=LONG),  # type: ignore[arg-type]
    "grows": lambda app, work: app.map(work, [1], grows=LONG),  # type: ignore[arg-type]
    "overflow": lambda app, work: app.map(work, [1], overflow=LONG),
    "events": lambda app, work: app.map(work, [1], events=LONG),  # type: ignore[arg-type]
    "meta": lambda app, work: app.map(work, [1], meta={(LONG,): 1}),
    "own": lambda app, work: app.map(LONG, [1]),  # type: ignore[arg-type]
    "then": lambda app, work: app.map(work, [1], then=LONG),  # type: ignore[arg-type]
    "items": lambda app, work: app.map(work, LONG),
    "job": lambda app, work: find(find_job(LONG + "\n", 1)),
    "flow_run": lambda app, work: find(find_flow(LONG + "\n", 1)),
    "on": lambda app, work: app.on(LONG),
    "flow on": lambda app, work: app.flow("f").step(work, on=LONG),
    "flow after": lambda app, work: app.flow("f").step(work, after=[1] * 5_000),  # type: ignore[list-item]
    "flow give_up": lambda app, work: app.flow("f", give_up=LONG),
    "stale": lambda app, work: app.flow("f").step(work, stale=LONG),
    "stale_after": lambda app, work: app.flow("f").step(work, stale_after=" " * 5_000 + "3s"),
    "cron": lambda app, work: app.schedule("s", LONG, work),
    "tz": lambda app, work: app.schedule("s", "@daily", work, tz=LONG),
    "misfire": lambda app, work: app.schedule("s", "@daily", work, misfire=LONG),
    "overlap": lambda app, work: app.schedule("s", "@daily", work, overlap=LONG),
    "catch_up": lambda app, work: app.schedule("s", "@daily", work, catch_up=LONG),  # type: ignore[arg-type]
    "mode": lambda app, work: app.task(mode=LONG)(print),
    "effect mode": lambda app, work: app.effect("e", mode=LONG)(print),
    "max_parts": lambda app, work: fanin.App(NOWHERE, max_parts=LONG),  # type: ignore[arg-type]
    "Backoff": lambda app, work: fanin.Backoff(first=LONG),  # type: ignore[arg-type]
}


def find(steps: Any) -> Any:
    """A name that cannot be is refused before anything is asked of the database."""
    return next(steps)


@pytest.mark.parametrize("call", LONG_CALLS)
def test_a_long_value_is_shown_by_its_beginning(declared: tuple[fanin.App, fanin.Task[..., Any]], call: str) -> None:
    app, work = declared
    with pytest.raises(fanin.Refused) as refused:
        LONG_CALLS[call](app, work)
    assert len(str(refused.value)) < 700


def test_a_name_of_another_kind_names_nothing(app: fanin.App) -> None:
    for name in (3, None, b"x", [1], object()):
        for call in (app.job, app.flow_run, app.repair):
            if (name, call) != (None, app.repair):
                with pytest.raises(fanin.UnknownJob, match="give an id, the beginning of one, or a key"):
                    call(name)  # type: ignore[arg-type]
    for look in (app.jobs, app.flows):
        with pytest.raises(fanin.BadOption, match=r"limit=10{30}: give a whole number from 1 to"):
            look(limit=10**30)


def test_what_is_no_task_cannot_be_fanned_out() -> None:
    with pytest.raises(fanin.UnknownTask, match="'nope' is not a task: decorate"):
        FanOut.of("nope", [1])  # type: ignore[arg-type]


def test_a_list_of_fan_outs_is_refused_for_what_it_is(app: fanin.App) -> None:
    @app.task
    def work(number: int) -> Any:
        return [fanin.current().fan_out(work, [1])]

    failure = app.map(work, [1], run=True).wait(90).failures()[0]
    assert failure.type == "BadPayload"
    assert "return one fan_out of all the items" in failure.message


def test_a_part_that_is_not_there_is_named_whatever_its_result(app: fanin.App) -> None:
    @app.task(attempts=1)
    def work(number: int) -> int:
        if number:
            raise ValueError("no")
        return number

    job = app.map(work, [0, 1])
    with pytest.raises(fanin.UnknownPart, match=f"job {job.id} has no part 9"):
        job.skip(9)
    with pytest.raises(fanin.UnknownPart, match="has no part 9"):
        job.skip(9, failed=True)
    with pytest.raises(fanin.BadPayload, match="the result of part 1 does not fit int"):
        job.skip(1)
    app.run_worker(until_idle=True)
    for parts in ([9], [0, 9], [1, 9]):
        with pytest.raises(fanin.UnknownPart, match=f"job {job.id} has no part 9"):
            job.redrive(parts)
    with pytest.raises(fanin.NotAllowedNow, match=r"parts \[0\] are neither failed nor abandoned"):
        job.redrive([0, 1])
    assert (job.row().run, job.redrive([1])) == (1, 2)


async def _part_not_there(url: str) -> None:
    async with fanin.AsyncApp(url) as app:
        work = app.task(name="work")(lambda number: 1)
        job = await app.map(work, [0, 1])
        with pytest.raises(fanin.UnknownPart, match="has no part 9"):
            await job.skip(9)
        with pytest.raises(fanin.BadOption, match="part='x'"):
            await job.explain("x")  # type: ignore[arg-type]
        await job.cancel()
        with pytest.raises(fanin.UnknownPart, match="has no part 9"):
            await job.redrive([0, 9])


def test_an_async_application_names_a_part_that_is_not_there(migrated_url: str) -> None:
    asyncio.run(_part_not_there(migrated_url))


@pytest.mark.parametrize("value", [{1, 2}, b"x", {"a": {1: 2}}, [object()], UTC])
def test_meta_and_a_checkpoint_come_back_as_they_went_or_are_refused(app: fanin.App, value: Any) -> None:
    @app.task(attempts=1)
    def work(number: int) -> int:
        with pytest.raises(fanin.BadPayload, match=r"the checkpoint of part 0 "):
            fanin.current().checkpoint(value)
        fanin.current().checkpoint({"a": [1, None, "x", 1.5]})
        return number

    calls: list[Callable[[], Any]] = [
        lambda: app.map(work, [1], meta=value),
        lambda: app.submit_with(work, [1], meta=value),
        lambda: app.flow("f", meta=value),
        lambda: app.schedule("s", "@daily", work, [1], meta=value),
    ]
    for call in calls:
        with pytest.raises(fanin.BadPayload, match=r"meta (holds|has the key|cannot be stored)"):
            call()
    job = app.map(work, [1], meta={"a": [1, None]}, run=True)
    assert (job.result(90), job.meta()) == (1, {"a": [1, None]})
