"""Parts that end with a job of their own."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

import fanin
from fanin.cli import main
from fanin.domain.model import Below
from fanin.protocol import read
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.testing.invariants import violations
from tests.runtime.working import until


@pytest.fixture
def tasks(app: fanin.App) -> dict[str, fanin.Task[..., Any]]:
    @app.task(attempts=1)
    def leaf(number: int) -> int:
        if number < 0:
            raise fanin.Permanent("below zero")
        return number * 10

    @app.task
    def total(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task
    def split(count: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, range(count))

    @app.task
    def summed(count: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, range(count), then=total)

    @app.task
    async def split_async(count: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, range(count), then=total)

    @app.task
    def failing(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, [1, number], then=total)

    @app.task
    def tree(levels: int) -> Any:
        if levels == 0:
            return 1
        return fanin.current().fan_out(tree, [levels - 1] * 3, then=total)

    return dict(app.tasks)


def named(tasks: dict[str, Any], name: str) -> Any:
    return next(task for full, task in tasks.items() if full.endswith(f".{name}"))


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def test_a_part_ends_with_the_results_of_its_own_job(app: fanin.App, tasks: Any) -> None:
    job = app.map(named(tasks, "split"), [2, 0, 3])
    work(app)
    assert [list(joined) for joined in job.result()] == [[0, 10], [], [0, 10, 20]]
    assert job.progress().outcome == "all_ok"


@pytest.mark.parametrize("name", ["summed", "split_async"])
def test_a_part_ends_with_the_result_of_the_successor_of_its_own_job(app: fanin.App, tasks: Any, name: str) -> None:
    job = app.map(named(tasks, name), [2, 0, 3], then=named(tasks, "total"))
    work(app)
    assert job.result() == [10, 0, 30]
    assert job.successor is not None
    assert job.successor.result() == 40


def test_a_part_whose_own_job_fails_has_failed(app: fanin.App, tasks: Any) -> None:
    job = app.map(named(tasks, "failing"), [5, -1], tolerate=1)
    work(app)
    assert job.progress().outcome == "with_failures"
    (failure,) = job.failures()
    assert (failure.idx, failure.type) == (1, "NestedFailed")
    assert "failed (too_many_failures)" in failure.message


def test_a_tree_of_parts_is_joined_level_by_level(app: fanin.App, tasks: Any) -> None:
    job = app.map(named(tasks, "tree"), [4], then=named(tasks, "total"))
    work(app)
    assert job.result() == 81


def test_the_end_of_a_job_ends_all_that_stands_below_its_parts(app: fanin.App, tasks: Any) -> None:
    job = app.map(named(tasks, "tree"), [3, 3])
    done = 0

    def some() -> bool:
        nonlocal done
        done += 1
        return done > 3

    Worker(app, concurrency=1, batch=1).run(until=some)
    job.cancel("enough")
    work(app)
    assert {row.status for row in app.jobs(limit=1000)} <= {"cancelled", "completed"}
    assert until(lambda: all(row.ended for row in app.jobs(limit=1000)), "all have ended")


def test_a_redrive_runs_only_what_has_failed_below(app: fanin.App, tasks: Any) -> None:
    ran: list[int] = []

    @app.task(attempts=1)
    def sometimes(number: int) -> int:
        ran.append(number)
        if number == 1 and ran.count(1) == 1:
            raise fanin.Permanent("the first time")
        return number

    @app.task
    def over(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(sometimes, range(3))

    job = app.map(over, [0])
    work(app)
    assert job.status == "failed"
    job.redrive()
    work(app)
    assert list(job.result()) == [0, 1, 2]
    assert sorted(ran) == [0, 1, 1, 2]


def test_a_job_that_another_waits_for_is_not_redriven_by_itself(app: fanin.App, tasks: Any) -> None:
    job = app.map(named(tasks, "failing"), [-1])
    work(app)
    (nested,) = job.children()
    assert nested.status == "failed"
    with pytest.raises(fanin.NotAllowedNow, match=f"redrive job {job.id}"):
        nested.redrive()


def test_a_waiting_part_that_is_skipped_leaves_nothing_going_on(app: fanin.App, tasks: Any) -> None:
    @app.task
    def over(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(named(tasks, "leaf"), [number], queue="nobody serves it", then=None)

    job = app.map(over, [0])
    Worker(app).run(until=lambda: bool(job.children()))
    job.skip(0, result=7, reason="known")
    assert job.result() == 7
    (nested,) = job.children()
    while upkeep.once(app.store, app.store.bucket(job.id)):
        pass
    assert nested.status == "cancelled"
    assert violations(app.store) == []


def test_a_waiting_part_is_shown_with_its_job(app: fanin.App, tasks: Any, capsys: pytest.CaptureFixture[str]) -> None:
    @app.task
    def above(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(named(tasks, "leaf"), range(number), queue="nobody serves it")

    job = app.map(above, [3])
    Worker(app).run(until=lambda: bool(job.children()))
    (nested,) = job.children()
    (held,) = app.store.read(lambda: read.running(app.store.bucket(job.id), job.id))
    assert (held["lease_seconds"], held["waits_for"]) == (None, nested.id)
    assert main(["show", job.id, "--url", app.url]) == 0
    assert f"waits for job {nested.id[:13]}" in capsys.readouterr().out.replace("…", "")
    explained = job.explain(part=0)
    assert any("waits for a job of its own" in moment.text for moment in explained.timeline)


@pytest.fixture
def deep(app: fanin.App) -> fanin.Job:
    """Part 1 fails, because part 2 of a job two levels down did."""

    @app.task(attempts=1)
    def down(place: list[int]) -> Any:
        levels, way = place
        if levels:
            return fanin.current().fan_out(down, [[levels - 1, n] for n in range(2, 6)], fail_fast=False)
        if way == 4:
            raise ValueError("not a page\nand more")
        return way

    @app.task(attempts=1)
    def top(number: int) -> Any:
        return number and fanin.current().fan_out(down, [[1, 0], [0, 3]])

    job = app.map(top, [0, 1], key="deep", fail_fast=False)
    work(app)
    return job


def bottom(job: fanin.Job) -> fanin.Job:
    (middle,) = job.children()
    (lowest,) = middle.children()
    return lowest


def test_a_failure_at_the_bottom_of_a_tree_is_named_at_its_top(app: fanin.App, deep: fanin.Job, capsys: Any) -> None:
    named = f"; below it, job {bottom(deep).id} part 2: ValueError: not a page"
    (top,) = deep.children()
    assert main(["show", deep.id, "--url", app.url]) == 0
    failed = next(line for line in capsys.readouterr().out.splitlines() if "NestedFailed" in line)
    assert f"NestedFailed: job {top.id} failed" in failed
    assert failed.endswith(named)
    assert main(["explain", deep.id, "--url", app.url]) == 0
    assert any(line.endswith(named + ")") for line in capsys.readouterr().out.splitlines())
    assert any(named in moment.text for moment in deep.explain(part=1).timeline)
    told = {"job_id": bottom(deep).id, "part": 2, "type": "ValueError", "message": "not a page\nand more"}
    assert main(["show", deep.id, "--json", "--url", app.url]) == 0
    assert [one["below"] for one in msgspec.json.decode(capsys.readouterr().out)["failures"]] == [told]
    assert main(["show", deep.id, "--part", "1", "--json", "--url", app.url]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["below"] == told
    assert main(["show", bottom(deep).id, "--json", "--url", app.url]) == 0
    assert [one["below"] for one in msgspec.json.decode(capsys.readouterr().out)["failures"]] == [None]


def test_who_asks_for_a_result_is_told_what_failed_at_the_bottom(app: fanin.App, deep: fanin.Job) -> None:
    named = f"; below it, job {re.escape(bottom(deep).id)} part 2: ValueError: not a page"
    with pytest.raises(fanin.JobFailed, match=rf"part 1 failed at attempt 1: NestedFailed: job .*{named}"):
        deep.result()

    async def ask() -> None:
        async with fanin.AsyncApp(app.url) as other:
            await (await other.job(deep.id)).result()

    with pytest.raises(fanin.JobFailed, match=named):
        asyncio.run(ask())


def test_who_asks_for_the_result_of_a_flow_is_told_what_failed_at_the_bottom(app: fanin.App, tasks: Any) -> None:
    flow = app.flow("deep")
    flow.step(named(tasks, "failing"), -1, name="nested")
    run = flow.start()
    work(app)
    with pytest.raises(fanin.JobFailed, match=r"step 'nested': .*; below it, job .* part 1: Permanent: below zero"):
        run.result()


def test_a_level_of_a_tree_costs_one_statement(app: fanin.App, deep: fanin.Job) -> None:
    asked = []

    def counted() -> Any:
        told, rows = read.below(app.store.bucket(deep.id), deep.id, 1), None
        while True:
            try:
                statement = told.send(rows)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value
            asked.append(statement)
            rows = yield statement

    found = app.store.read(counted)
    assert (found.job_id, found.part, len(asked)) == (bottom(deep).id, 2, 2)


def test_what_failed_below_is_the_job_after_a_nested_one_too(app: fanin.App, tasks: Any) -> None:
    @app.task(attempts=1)
    def joined(parts: fanin.Joined[int]) -> int:
        raise ValueError("too much")

    @app.task(attempts=1)
    def above(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(named(tasks, "leaf"), [1], then=joined)

    job = app.map(above, [1])
    work(app)
    below = app.store.read(lambda: read.below(app.store.bucket(job.id), job.id, 0))
    (nested,) = job.children()
    assert nested.successor is not None
    assert below == Below(nested.successor.id, 0, "ValueError", "too much")


def test_a_successor_below_that_is_run_again_has_its_own_deadline_and_not_that_of_the_job_before_it(
    app: fanin.App, tasks: Any
) -> None:
    @app.task(attempts=1)
    def joined(parts: fanin.Joined[int]) -> int:
        raise ValueError("too much")

    @app.task(attempts=1)
    def above(hours: int) -> fanin.FanOut:
        then = fanin.Successor(joined, give_up_after=f"{hours}h") if hours else joined
        return fanin.current().fan_out(named(tasks, "leaf"), [1], then=then, give_up_after="5h")

    job = app.map(above, [2, 0], tolerate=2)
    for run in (1, 2):
        work(app)
        ended = job.row().finished_at or 0.0
        found = []
        for nested in job.children():
            assert nested.successor is not None
            row = nested.successor.row()
            assert row.run == run
            found.append(row.give_up_at and round((row.give_up_at - ended) / 3600, 1))
        assert sorted(found, key=bool) == [None, 2.0]
        if run == 1:
            job.redrive()


def test_a_nested_job_that_was_cancelled_says_all_at_the_part(app: fanin.App, tasks: Any, capsys: Any) -> None:
    @app.task(attempts=1)
    def above(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(named(tasks, "leaf"), range(number), queue="nobody serves it")

    job = app.map(above, [3])
    Worker(app).run(until=lambda: bool(job.children()))
    job.children()[0].cancel("enough")
    assert main(["show", job.id, "--url", app.url]) == 0
    said = capsys.readouterr().out
    assert "(cancelled): enough" in said
    assert "below it" not in said


def test_a_step_of_a_flow_names_the_failure_at_the_bottom(app: fanin.App, tasks: Any, capsys: Any) -> None:
    flow = app.flow("deep")
    flow.step(named(tasks, "failing"), -1, name="nested")
    run = flow.start()
    work(app)
    assert main(["show", run.id, "--url", app.url]) == 0
    (nested,) = run.job("nested").children()
    assert f"; below it, job {nested.id} part 1: Permanent: below zero" in capsys.readouterr().out
