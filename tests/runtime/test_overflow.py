"""More items than one job may have: several jobs, made together, ended together, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.testing.inline import Inline
from fanin.testing.invariants import violations
from tests.runtime.test_submitting import transaction

WIDTH = 4


@pytest.fixture
def narrow(migrated_url: str) -> Iterator[fanin.App]:
    """An application that allows a job four parts."""
    with fanin.App(migrated_url, max_parts=WIDTH) as app:

        @app.task(attempts=1)
        def leaf(number: int) -> int:
            if number < 0:
                raise fanin.Permanent("below zero")
            return number * 10

        @app.task
        def count(parts: fanin.Joined[int]) -> list[Any]:
            return [list(parts), parts.succeeded, parts.failed, [f.idx for f in parts.failures], len(parts)]

        @app.task
        def tree(items: list[int]) -> fanin.FanOut:
            return fanin.current().fan_out(leaf, items, overflow="split")

        @app.task
        def counted(items: list[int]) -> fanin.FanOut:
            return fanin.current().fan_out(leaf, items, then=count, overflow="split")

        yield app


def named(app: fanin.App, name: str) -> fanin.Task[..., Any]:
    return next(task for full, task in app.tasks.items() if full.endswith(f".{name}"))


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def split(app: fanin.App, items: Any, **options: Any) -> fanin.Job:
    return app.map(named(app, "leaf"), items, overflow="split", **options)


def test_the_results_stand_in_the_order_of_the_items(narrow: fanin.App) -> None:
    job = split(narrow, range(11), then=named(narrow, "count"))
    assert job.progress().total == 11
    assert [child.row().sealed_parts for child in job.children()] == [4, 4, 3]
    work(narrow)
    assert job.result() == [n * 10 for n in range(11)]
    found = job.progress()
    assert (found.outcome, found.succeeded, found.remaining, found.fraction) == ("all_ok", 11, 0, 1.0)
    assert job.successor is not None
    assert job.successor.result() == [[n * 10 for n in range(11)], 11, 0, [], 11]


@pytest.mark.parametrize("count", [0, 1, WIDTH])
def test_a_job_that_fits_is_not_split(narrow: fanin.App, count: int) -> None:
    job = split(narrow, range(count))
    assert (job.row().batch, job.children()) == (None, [])
    work(narrow)
    assert list(job.results()) == [n * 10 for n in range(count)]


def test_a_failure_anywhere_fails_the_whole_and_a_redrive_runs_what_has_failed(narrow: fanin.App) -> None:
    bad = [True]

    @narrow.task(attempts=1)
    def sometimes(number: int) -> int:
        ran.append(number)
        if number == 5 and bad[0]:
            raise fanin.Permanent("the first time")
        return number

    ran: list[int] = []
    job = narrow.map(sometimes, range(9), overflow="split")
    work(narrow)
    assert (job.status, [(f.idx, f.type) for f in job.failures()]) == ("failed", [(5, "Permanent")])
    with pytest.raises(fanin.JobFailed, match="part 5 failed"):
        job.result()
    bad[0] = False
    assert job.redrive() == 2
    work(narrow)
    assert job.result() == list(range(9))
    assert sorted(ran) == sorted([*range(9), 5])


def test_a_share_is_tolerated_in_each_batch(narrow: fanin.App) -> None:
    job = split(narrow, [0, -1, 2, 3, 4, 5, -6, 7, 8], tolerate="25%", then=named(narrow, "count"))
    work(narrow)
    assert job.status == "completed"
    assert job.successor is not None
    assert job.successor.result() == [[0, 20, 30, 40, 50, 70, 80], 7, 2, [1, 6], 7]
    worse = split(narrow, [-1, -2, *range(10)], tolerate="25%", fail_fast=False)
    work(narrow)
    assert worse.status == "failed", "half of the first batch, a sixth of all"


@pytest.mark.parametrize(
    "options",
    [{"quorum": 2}, {"tolerate": 1}, {"give_up": "proceed", "give_up_after": 9}, {"stream": True}, {"grows": True}],
)
def test_what_has_no_meaning_over_several_jobs_is_refused(narrow: fanin.App, options: dict[str, Any]) -> None:
    with pytest.raises(fanin.BadOption, match="overflow='split' cannot be combined with"):
        split(narrow, range(2), **options)
    with pytest.raises(fanin.BadOption, match="overflow='halve': 'refuse', or 'split'"):
        narrow.map(named(narrow, "leaf"), range(2), overflow="halve")
    assert narrow.jobs() == []


def test_the_same_key_is_the_same_job(narrow: fanin.App) -> None:
    job = split(narrow, range(9), key="nine")
    assert split(narrow, range(9), key="nine") == job
    with pytest.raises(fanin.KeyConflict):
        split(narrow, range(10), key="nine")
    assert len(narrow.jobs(limit=100)) == 1 + 3


def test_more_than_a_tree_may_have_is_refused(narrow: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TREE_PARTS", 9)
    with pytest.raises(fanin.LimitExceeded, match="more than 9 parts"):
        split(narrow, range(10))
    assert narrow.jobs() == []


def test_a_cancel_ends_every_batch_whether_it_has_begun_or_not(narrow: fanin.App) -> None:
    job = split(narrow, range(12), queue="nobody serves it")
    other = split(narrow, range(12))
    Worker(narrow, concurrency=1, batch=1).run(until=lambda: other.progress().succeeded > 1)
    for each in (job, other):
        each.cancel("enough")
    while upkeep.once(narrow.store, narrow.store.bucket(job.id)):
        pass
    for each in (job, other):
        assert {child.status for child in each.children()} <= {"cancelled", "completed"}
        assert each.progress().remaining == 0
        assert len(each.failures()) + each.progress().succeeded == 12
    assert violations(narrow.store) == []


def test_a_batch_that_has_failed_before_it_was_waited_for_is_not_run_again(narrow: fanin.App) -> None:
    """Its parts are run first, by a worker that never comes to the batches."""
    job = split(narrow, [-1, -2, 3, 4, 5])
    inline = Inline(narrow)
    later = []
    while (attempt := inline.claim()) is not None:
        if attempt.job_id == job.id:
            later.append(attempt)
        else:
            attempt.run().commit()
    assert [attempt.number for attempt in later] == [1, 1]
    for attempt in later:
        attempt.run().commit()
    assert job.status == "failed"
    assert {child.row().run for child in job.children()} == {1}
    assert [failure.idx for failure in job.failures()] == [0, 1]
    assert violations(narrow.store) == []


def test_a_part_can_end_with_a_job_that_is_split(narrow: fanin.App) -> None:
    items = [list(range(7)), [1], list(range(9))]
    for name in ("tree", "counted"):
        job = narrow.map(named(narrow, name), items)
        work(narrow)
        wanted = [[n * 10 for n in each] for each in items]
        found = [list(one) if name == "tree" else one[0] for one in job.result()]
        assert found == wanted


def test_parts_of_a_split_job_are_not_named_by_an_operator(narrow: fanin.App) -> None:
    job = split(narrow, range(5))
    with pytest.raises(fanin.NotAllowedNow, match="was split into jobs of 4 parts"):
        job.skip(0, result=1)
    work(narrow)
    with pytest.raises(fanin.NotAllowedNow, match="was split"):
        job.redrive([0])


def test_the_outputs_of_a_split_job_are_those_of_all_its_parts(
    narrow: fanin.App, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FANIN_OUTPUTS", str(tmp_path))

    @narrow.task
    def write(number: int) -> None:
        fanin.current().put("n.txt", str(number))

    job = narrow.map(write, range(6), overflow="split")
    work(narrow)
    assert [(output.idx, output.read()) for output in job.outputs()] == [(n, str(n).encode()) for n in range(6)]


@pytest.mark.parametrize("commit", [True, False])
def test_a_split_job_shares_the_fate_of_the_callers_transaction(
    narrow: fanin.App, migrated_url: str, commit: bool
) -> None:
    with transaction(narrow, migrated_url, commit) as connection:
        job = split(narrow, range(9), within=connection)
    assert len(narrow.jobs(limit=100)) == (4 if commit else 0)
    if commit:
        work(narrow)
        assert job.result() == [n * 10 for n in range(9)]


def test_a_pause_holds_all_items_and_a_resume_brings_them_back(narrow: fanin.App) -> None:
    job = split(narrow, range(9))
    assert [job.pause("wait"), job.pause()] == [True, False]
    work(narrow)
    assert job.progress().succeeded == 0
    assert [child.row().paused_at is None for child in job.children()] == [False] * 3
    assert [job.resume(), job.resume()] == [True, False]
    work(narrow)
    assert job.progress().succeeded == 9


def test_so_do_those_of_an_asynchronous_application(narrow: fanin.App) -> None:
    job = split(narrow, range(9))

    async def says(verb: str) -> list[bool]:
        async with fanin.AsyncApp(narrow.url) as app:
            mine = await app.job(job.id)
            return [await getattr(mine, verb)(), await getattr(mine, verb)()]

    assert asyncio.run(says("pause")) == [True, False]
    work(narrow)
    assert job.progress().succeeded == 0
    assert asyncio.run(says("resume")) == [True, False]
    work(narrow)
    assert job.progress().succeeded == 9


@pytest.mark.parametrize("verb", ["cancel", "finish"])
def test_no_item_starts_after_the_end_of_a_whole_that_was_paused_first(narrow: fanin.App, verb: str) -> None:
    job = split(narrow, range(9))
    job.pause()
    assert getattr(job, verb)()
    while upkeep.once(narrow.store, narrow.store.bucket(job.id)):
        pass
    work(narrow)
    assert job.progress().succeeded == 0
    assert {child.status for child in job.children()} == {"cancelled"}
