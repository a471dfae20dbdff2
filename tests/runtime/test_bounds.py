"""A job that a part may not end with: it is there, refused, with its event, and the part says why it has failed."""

from __future__ import annotations

from typing import Any

import pytest

import fanin
from fanin.domain import identity, limits
from fanin.protocol import read
from fanin.testing.inline import Inline
from fanin.testing.invariants import violations
from tests.runtime import process_tasks


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def refused(app: fanin.App, job: fanin.Job, said: str) -> fanin.Job:
    """The job that a part of ``job`` was refused, which says so."""
    child = next(child for child in job.children() if child.row().outcome == "refused")
    row = child.row()
    assert (row.status, row.depth, row.succeeded_parts, row.failed_parts) == ("failed", job.row().depth + 1, 0, 0)
    assert row.reason is not None
    assert said in row.reason
    ((key, _, kind, _, _, _),) = child.events()
    assert (key, kind) == (f"job/{child.id}/finished/1", "job.finished")
    (failure,) = job.failures()
    assert (failure.type, failure.attempt) == ("NestedFailed", 1), "not tried again"
    assert failure.message == f"job {child.id} was refused: {row.reason}"
    return child


def splitter(app: fanin.App, items: Any, **options: Any) -> fanin.Task[..., Any]:
    @app.task
    def leaf(item: Any) -> Any:
        return item

    @app.task
    def split(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, items() if callable(items) else items, **options)

    return split


CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "width": (range(4), {}, "more than 3 parts, which is the limit: put several items in one part"),
    "payload": (["ok", "x" * 1_000_100], {}, "put it in a file or object store"),
    "kind": ([object()], {}, "object is not a type that fanin can store"),
    "quorum": (range(2), {"quorum": 3}, "quorum=3 of 2 parts can never be reached"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_breach_is_a_refused_job_and_a_failed_part(migrated_url: str, name: str) -> None:
    items, options, said = CASES[name]
    with fanin.App(migrated_url, max_parts=3) as app:
        job = app.map(splitter(app, items, **options), [0, 1], tolerate=1, fail_fast=False)
        work(app)
        assert job.progress().outcome == "too_many_failures"
        assert len(job.failures()) == 2
        one = app.map(splitter_of(app), [0])
        work(app)
        child = refused(app, one, said)
        with pytest.raises(fanin.NotAllowedNow, match=f"redrive job {one.id}"):
            child.redrive()


def splitter_of(app: fanin.App) -> fanin.Task[..., Any]:
    return next(task for name, task in app.tasks.items() if name.endswith(".split"))


OVER_A_STEP: dict[str, tuple[int, dict[str, Any], str]] = {
    "width": (4, {}, "more than 3 parts, which is the limit: put several items in one part"),
    "quorum": (2, {"quorum": 3}, "quorum=3 of 2 parts can never be reached"),
}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("name", OVER_A_STEP)
def test_what_a_step_returns_is_mapped_over_within_the_bounds_of_the_application(
    migrated_url: str, name: str, inline: bool
) -> None:
    items, options, said = OVER_A_STEP[name]
    with fanin.App(migrated_url, max_parts=3) as app:

        @app.task
        def numbers(count: int) -> list[int]:
            return list(range(count))

        @app.task
        def keep(number: int) -> int:
            return number

        flow = app.flow("bounds", fail_fast=False)
        flow.map(keep, flow.step(numbers, items, name="some"), name="too many", **options)
        flow.map(keep, flow.step(numbers, 3, name="three"), name="enough")
        run = flow.start()
        if inline:
            Inline(app).run_until_idle()
        else:
            work(app)
        states = {step.name: step.status for step in run.steps()}
        assert states == {"some": "done", "too many": "failed", "three": "done", "enough": "done"}
        (job_id,) = (step.job_id for step in run.steps() if step.name == "too many")
        assert job_id is not None
        refused(app, app.job(job_id), said)
        assert list(run.job("enough").results()) == [0, 1, 2]


def test_what_was_done_is_undone_however_narrow_the_application_has_become(migrated_url: str) -> None:
    def declare(app: fanin.App) -> tuple[fanin.Task[..., Any], fanin.Task[..., Any]]:
        @app.task(name="keep")
        def keep(number: int) -> int:
            if number < 0:
                raise fanin.Permanent("no")
            return number

        @app.task(name="take back")
        def take_back(number: int) -> None:
            pass

        return keep, take_back

    with fanin.App(migrated_url) as app:
        keep, take_back = declare(app)
        flow = app.flow("wide")
        flow.step(keep, -1, name="bad", after=flow.map(keep, range(5), name="wide", undo=take_back))
        run_id = flow.start().id
    with fanin.App(migrated_url, max_parts=3) as narrow:
        declare(narrow)
        work(narrow)
        run = narrow.flow_run(run_id)
        assert {step.name: step.status for step in run.steps()} == {"wide": "undone", "bad": "nothing_to_undo"}


@pytest.mark.parametrize("then", [False, True])
def test_a_tree_that_is_too_deep_ends_with_a_refused_job(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch, then: bool
) -> None:
    monkeypatch.setattr(limits, "JOB_DEPTH_LEVELS", 2)

    @app.task
    def add(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task
    def endless(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(endless, [number + 1], then=add if then else None)

    job = app.map(endless, [0])
    work(app)
    for _ in range(1 if then else 2):
        (job,) = job.children()
    refused(app, job, "would stand 3 levels deep, the limit is 2")


def test_a_redrive_may_find_that_the_job_is_allowed_now(app: fanin.App) -> None:
    wide = {"items": ["x" * 1_000_100]}
    split = splitter(app, lambda: wide["items"])
    job = app.map(split, [0])
    work(app)
    assert job.status == "failed"
    wide["items"] = ["short"]
    job.redrive()
    work(app)
    assert [list(joined) for joined in job.results()] == [["short"]]
    assert sorted(child.row().outcome or "" for child in job.children()) == ["all_ok", "refused"]


def test_a_breach_counts_like_any_failure(app: fanin.App) -> None:
    @app.task
    def leaf(item: int) -> int:
        return item

    @app.task
    def split(count: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, ["x" * 1_000_100] if count == 0 else range(count))

    job = app.map(split, [2, 0, 1], tolerate=1)
    work(app)
    assert job.progress().outcome == "with_failures"
    assert [list(joined) for joined in job.results()] == [[0, 1], [0]]
    row = app.store.read(lambda: read.job(app.store.bucket(job.id), job.id))
    assert row is not None
    assert row.failed_parts == 1


def test_a_process_hands_over_to_a_job_and_is_refused_one(app: fanin.App) -> None:
    app.tasks.update(process_tasks.app.tasks)
    job = app.map(process_tasks.doubles, [3, -1, 0], tolerate=1, fail_fast=False)
    app.run_worker(until_idle=True, concurrency=2)
    assert [list(joined) for joined in job.results()] == [[0, 2, 4], []]
    (failure,) = job.failures()
    assert (failure.idx, failure.type) == (1, "NestedFailed")
    assert "was refused" in failure.message
    assert violations(app.store) == []


def test_nested_jobs_run_inline(app: fanin.App) -> None:
    @app.task
    def leaf(number: int) -> int:
        return number * 10

    @app.task
    def total(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task
    def split(count: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, ["x" * 1_000_100] if count < 0 else range(count), then=total)

    inline = Inline(app)
    job = app.map(split, [3, 0], then=total)
    assert inline.run_until_idle() == 2 + 3 + 2 + 1
    assert job.successor is not None
    assert (job.result(), job.successor.result()) == ([30, 0], 30)
    bad = app.map(split, [-1])
    inline.run_until_idle()
    refused(app, bad, "put it in a file")
    inline.close()
    assert violations(app.store) == []


# The size of a tree.


@pytest.fixture
def small_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted exactly."""
    monkeypatch.setattr(limits, "TREE_PARTS", 20)
    monkeypatch.setattr(limits, "TREE_UNIT_PARTS", 1)


@pytest.mark.usefixtures("small_trees")
def test_a_tree_that_grows_too_large_is_refused_its_next_jobs(app: fanin.App) -> None:
    @app.task
    def endless(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(endless, range(3))

    job = app.map(endless, [0])
    app.run_worker(until_idle=True, concurrency=1)  # several could each see the room that is left
    assert violations(app.store) == []
    assert job.status == "failed"
    below = [row for row in app.jobs(limit=1000) if row.parent_id is not None]
    made = [row for row in below if row.outcome != "refused"]
    assert sum(1 + (row.sealed_parts or 0) for row in made) <= 20
    reasons = {row.reason for row in below if row.outcome == "refused"}
    (reason,) = reasons
    assert reason is not None
    assert f"the tree below job {job.id} would have more than about 20 parts" in reason


@pytest.mark.usefixtures("small_trees")
def test_trees_are_counted_apart_and_so_is_what_stands_above(app: fanin.App) -> None:
    split = splitter(app, range(18))
    jobs = [app.map(split, [0]) for _ in range(3)]
    wide = app.map(app.tasks[split.name.removesuffix("split") + "leaf"], range(40))
    work(app)
    assert {job.status for job in [*jobs, wide]} == {"completed"}


@pytest.mark.usefixtures("small_trees")
def test_a_job_that_stands_in_a_full_tree_is_found_by_the_next_attempt(app: fanin.App) -> None:
    """Not refused for the room that it takes itself."""
    made: list[str] = []

    @app.task
    def leaf(number: int) -> int:
        return number

    @app.task(backoff=0)
    def mapping(number: int) -> int:
        made.append(app.map(leaf, range(19)).id)
        if len(made) == 1:
            raise ValueError("lost, so to speak")
        app.map(leaf, range(19))
        return number

    job = app.map(mapping, [0])
    work(app)
    assert len(set(made)) == 1
    (failure,) = job.failures()
    assert (failure.type, failure.attempt) == ("LimitExceeded", 2)


def test_jobs_are_counted_exactly_on_average() -> None:
    """1 000 jobs of 50 parts, counted in units of 1 000."""
    ids = [identity.nested_id(identity.keyed_job_id("root"), idx) for idx in range(1_000)]
    units = [identity.tree_weight(job_id, 50, 1_000) for job_id in ids]
    assert set(units) == {0, 1}
    assert 35 <= sum(units) <= 67
    assert identity.tree_weight(ids[0], 5_000_000, 1_000) in (5_000, 5_001)
