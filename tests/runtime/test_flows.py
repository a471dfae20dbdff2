"""Flows: steps that follow one another, are skipped, fail, are run again, and are undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.domain import identity
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.testing.invariants import violations


class Book:
    """What handlers did, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failing: set[str] = set()
        self.meanwhile: dict[str, Callable[[], object]] = {}

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if (call := self.meanwhile.pop(line, None)) is not None:
            call()
        if line in self.failing:
            raise fanin.Permanent(f"{line} fails")


@pytest.fixture
def book() -> Book:
    return Book()


@pytest.fixture
def t(app: fanin.App, book: Book) -> Any:
    class Tasks:
        @app.task(attempts=1)
        def urls(count: int) -> list[str]:
            book("urls")
            return [f"u{n}" for n in range(count)]

        @app.task(attempts=1)
        def fetch(url: str) -> str:
            book(f"fetch {url}")
            return url + "!"

        @app.task(attempts=1)
        def parse(page: str) -> int:
            book(f"parse {page}")
            return len(page)

        @app.task(attempts=1)
        def total(sizes: fanin.Joined[int]) -> int:
            book("total")
            return sum(sizes)

        @app.task(attempts=1)
        def both(left: fanin.Joined[int], right: fanin.Joined[int], factor: int) -> int:
            book("both")
            return factor * ((sum(left) if left else 0) + (sum(right) if right else 0))

        @app.task(attempts=1)
        def note(text: str) -> str:
            book(f"note {text}")
            return text

        @app.task(attempts=1)
        def take_back(what: Any) -> None:
            book(f"take back {what}")

    return Tasks


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def states(run: fanin.FlowRun) -> dict[str, str]:
    return {step.name: step.status for step in run.steps()}


def test_a_split_is_mapped_and_joined(app: fanin.App, t: Any, book: Book) -> None:
    flow = app.flow("pages")
    found = flow.step(t.urls, 3)
    pages = flow.map(t.fetch, found)
    sizes = flow.map(t.parse, pages)
    flow.step(t.total, after=sizes)
    run = flow.start()
    work(app)
    assert run.status == "completed"
    assert run.result() == 9
    assert list(run.job("fetch").results())
    assert book.lines.count("total") == 1


@pytest.mark.parametrize("then", [False, True])
def test_what_a_single_call_fans_out_is_the_list_that_is_mapped_over(app: fanin.App, t: Any, then: bool) -> None:
    @app.task
    def again(found: fanin.Joined[str]) -> fanin.FanOut:
        return fanin.current().fan_out(t.fetch, [page + "?" for page in found])

    @app.task
    def site(count: int) -> fanin.FanOut:
        return fanin.current().fan_out(t.fetch, ["a", "bb", "ccc"][:count], then=again if then else None)

    flow = app.flow("pages")
    flow.step(t.total, after=flow.map(t.parse, flow.step(site, 3)))
    run = flow.start()
    work(app)
    assert list(run.job("parse").results()) == ([4, 5, 6] if then else [2, 3, 4])
    assert run.result() == sum(run.job("parse").results())


def test_several_steps_before_one_start_it_once_when_the_last_of_them_ends(app: fanin.App, t: Any, book: Book) -> None:
    flow = app.flow("diamond")
    top = flow.step(t.urls, 2)
    left = flow.map(t.parse, ["a"], name="left", after=top)
    right = flow.map(t.parse, top, name="right")
    flow.step(t.both, 10, after=[left, right])
    run = flow.start()
    work(app)
    assert run.result() == 10 * (1 + 2 + 2)
    assert book.lines.count("both") == 1


def test_conditions_decide_what_follows_a_failure(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"note bad"}
    flow = app.flow("conditions")
    bad = flow.step(t.note, "bad", name="bad")
    flow.step(t.note, "if ok", name="ok", after=bad)
    flow.step(t.note, "if failed", name="failed", after=bad, on="failed")
    flow.step(t.note, "always", name="any", after=bad, on="any")
    flow.step(t.note, "behind", name="behind", after=["ok"])
    run = flow.start()
    work(app)
    assert states(run) == {"bad": "failed", "ok": "skipped", "failed": "done", "any": "done", "behind": "skipped"}
    assert run.status == "completed"


@pytest.mark.parametrize("fail_fast", [True, False])
def test_a_failure_that_nobody_provides_for_fails_the_flow(app: fanin.App, t: Any, book: Book, fail_fast: bool) -> None:
    book.failing = {"note bad"}
    flow = app.flow("failing", fail_fast=fail_fast)
    bad = flow.step(t.note, "bad", name="bad", priority=100)
    flow.step(t.note, "behind", name="behind", after=bad)
    beside = flow.step(t.note, "beside", name="beside", after=flow.step(t.note, "first", name="first"))
    assert beside.after
    run = flow.start()
    work(app)
    row = run.row()
    assert (row.status, row.cause) == ("failed", "failed")
    assert f"step 'bad': job {run.job('bad').id} failed" in str(row.reason)
    with pytest.raises(fanin.JobFailed, match=r"step 'bad': .*: part 0 failed at attempt 1: Permanent: note bad fails"):
        run.result()
    assert states(run)["behind"] == "skipped"
    assert (states(run)["beside"] == "done") is (not fail_fast)


def test_a_failed_flow_is_run_again_from_the_failed_step(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"fetch u1"}
    flow = app.flow("again")
    pages = flow.map(t.fetch, flow.step(t.urls, 3))
    flow.step(t.total, after=flow.map(t.parse, pages))
    run = flow.start()
    work(app)
    assert run.status == "failed"
    book.failing = set()
    assert run.redrive() == 2
    work(app)
    assert run.result() == 9
    assert book.lines.count("fetch u0") == 1
    assert book.lines.count("fetch u1") == 2
    assert book.lines.count("urls") == 1


def test_what_was_done_is_undone_in_the_reverse_order(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"note third"}
    flow = app.flow("saga")
    first = flow.step(t.note, "first", name="first", undo=t.take_back)
    second = flow.map(t.fetch, ["a", "b"], name="second", after=first, undo=t.take_back)
    without = flow.step(t.note, "without", name="without", after=second)
    flow.step(t.note, "third", name="third", after=without, undo=t.take_back)
    run = flow.start()
    work(app)
    assert run.status == "compensated"
    assert states(run) == {
        "first": "undone", "second": "undone", "without": "nothing_to_undo", "third": "nothing_to_undo",
    }  # fmt: skip
    undone = [line for line in book.lines if line.startswith("take back")]
    assert sorted(undone[:2]) == ["take back a!", "take back b!"]
    assert undone[2:] == ["take back first"]


def test_a_person_is_asked_for_what_no_program_can_undo(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"note last", "take back first"}
    flow = app.flow("manual")
    first = flow.step(t.note, "first", name="first", undo=t.take_back)
    second = flow.step(t.note, "second", name="second", after=first, undo=fanin.manual("call the bank"))
    flow.step(t.note, "last", name="last", after=second)
    run = flow.start()
    work(app)
    assert run.status == "needs_attention"
    assert states(run) == {"first": "done", "second": "manual", "last": "nothing_to_undo"}
    run.resolve("second", "called them")
    work(app)
    assert run.status == "needs_attention"
    assert states(run) == {"first": "undo_failed", "second": "undone", "last": "nothing_to_undo"}
    book.failing = set()
    run.undo_again("first")
    work(app)
    assert run.status == "compensated"
    assert states(run)["first"] == "undone"


def test_a_cancelled_flow_starts_nothing_more_and_undoes_what_it_did(app: fanin.App, t: Any, book: Book) -> None:
    flow = app.flow("cancelled")
    first = flow.step(t.note, "first", name="first", undo=t.take_back)
    flow.step(t.note, "second", name="second", after=first, queue="nobody serves it")
    flow.step(t.note, "third", name="third", after="second")
    run = flow.start()
    Worker(app).run(until=lambda: states(run)["first"] == "done")
    assert run.cancel("enough")
    assert (run.row().status, run.row().cause, run.row().reason) == ("compensating", "cancelled", "enough")
    work(app)
    assert run.status == "compensated"
    assert states(run) == {"first": "undone", "second": "nothing_to_undo", "third": "skipped"}
    assert book.lines == ["note first", "take back first"]


def test_a_flow_without_undo_is_cancelled_at_once(app: fanin.App, t: Any) -> None:
    flow = app.flow("cancelled")
    flow.step(t.total, after=flow.map(t.parse, ["a", "b"]))
    run = flow.start()
    assert run.cancel("enough")
    assert not run.cancel("again")
    assert (run.status, run.row().cause) == ("cancelled", "cancelled")
    assert states(run) == {"total": "skipped", "parse": "failed"}
    assert run.redrive() == 2
    work(app)
    assert run.result() == 2


def test_a_flow_gives_up_at_its_deadline(app: fanin.App, t: Any) -> None:
    for give_up, status in (("abandon", "failed"), ("proceed", "completed")):
        flow = app.flow("late", give_up_after=0, give_up=give_up)
        flow.map(t.parse, ["a"], queue="nobody serves it")
        run = flow.start()
        for bucket in range(app.store.buckets):
            while upkeep.once(app.store, bucket):
                pass
        assert violations(app.store) == []
        assert run.status == status
        assert run.row().cause == "gave_up"


def test_the_same_request_is_the_same_flow(app: fanin.App, t: Any, book: Book) -> None:
    def start(count: int) -> fanin.FlowRun:
        flow = app.flow("same", key="k")
        flow.map(t.parse, map(str, range(count)))
        return flow.start()

    run = start(2)
    assert start(2) == run
    with pytest.raises(fanin.KeyConflict, match="another flow"):
        start(3)
    work(app)
    assert len(book.lines) == 2


def test_a_plan_is_checked_before_anything_is_written(app: fanin.App, t: Any) -> None:
    flow = app.flow("bad")
    with pytest.raises(fanin.BadOption, match="has no steps"):
        flow.start()
    one = flow.step(t.note, "x", name="one", after=["two"])
    flow.step(t.note, "y", name="two", after=one)
    with pytest.raises(fanin.BadOption, match=r"wait for one another: .*one.*two"):
        flow.start()
    with pytest.raises(fanin.BadOption, match="joins 1 steps, but after= names 2"):
        flow.step(t.total, after=["one", "two"])
    with pytest.raises(fanin.BadOption, match="returns int, and task"):
        flow.map(t.fetch, flow.map(t.parse, ["a"]))
    with pytest.raises(fanin.BadOption, match="already"):
        flow.step(t.note, "z", name="one")
    other = app.flow("other")
    other.step(t.note, "x", after="nowhere")
    with pytest.raises(fanin.BadOption, match="no step of flow"):
        other.start()
    assert app.flows() == []


def test_an_empty_list_goes_through_the_flow(app: fanin.App, t: Any) -> None:
    flow = app.flow("empty")
    flow.step(t.total, after=flow.map(t.parse, flow.map(t.fetch, [])))
    run = flow.start()
    work(app)
    assert run.result() == 0


def test_a_stopped_step_is_undone_when_nothing_of_it_goes_on_any_more(app: fanin.App, t: Any, book: Book) -> None:
    """What hangs below a step that was cancelled is undone too, also what succeeded before it heard of that."""
    flow = app.flow("deep")
    flow.map(t.fetch, flow.step(t.urls, 3), undo=t.take_back, name="fetch")
    run = flow.start()
    book.meanwhile["fetch u1"] = run.cancel
    Worker(app, concurrency=1, batch=1).run(until_idle=True)
    assert violations(app.store) == []
    assert run.status == "compensated"
    results = list(run.job("fetch").results())
    undone = [line.removeprefix("take back ") for line in book.lines if line.startswith("take back")]
    assert sorted(results) == sorted(undone)
    assert "u0!" in undone


def test_what_a_skipped_part_had_left_to_a_job_below_is_undone_too(app: fanin.App, t: Any, book: Book) -> None:
    """Its result is the operator's word, and what the job below had done stands all the same."""
    book.failing = {"note bad"}
    flow = app.flow("skipped")
    fetched = flow.map(t.fetch, flow.step(t.urls, 3), undo=t.take_back, name="fetch")
    flow.step(t.note, "bad", after=fetched)
    run = flow.start()

    def skips() -> None:
        (own,) = [step.job_id for step in run.steps() if step.name == "fetch"]
        assert own is not None
        app.job(own).skip(0, by="kim")

    book.meanwhile["fetch u1"] = skips
    Worker(app, concurrency=1, batch=1).run(until_idle=True)
    assert violations(app.store) == []
    assert run.status == "compensated"
    undone = [line.removeprefix("take back ") for line in book.lines if line.startswith("take back")]
    results = list(run.job("fetch").results())
    assert "u0!" in results
    assert sorted(undone) == sorted([*results, "None"])


@pytest.mark.parametrize("deed", ["finish", "cancel", "skip"])
def test_what_follows_a_mapping_step_that_a_person_has_ended_is_told_how_it_stood(
    app: fanin.App, t: Any, book: Book, deed: str
) -> None:
    told: list[fanin.Joined[str]] = []

    @app.task(attempts=1)
    def gather(pages: fanin.Joined[str]) -> None:
        told.append(pages)

    flow = app.flow("ended", fail_fast=False)
    fetched = flow.map(t.fetch, flow.step(t.urls, 3), name="fetch")
    flow.step(gather, after=fetched, on="any")
    run = flow.start()
    (own,) = [identity.step_id(run.id, step.n) for step in run.steps() if step.name == "fetch"]
    book.meanwhile["fetch u1"] = lambda: getattr(app.job(own), deed)(*([0] if deed == "skip" else []))
    Worker(app, concurrency=1, batch=1).run(until_idle=True)
    assert violations(app.store) == []
    (pages,) = told
    assert len(pages) + pages.abandoned == 3
    assert pages.outcome == {"finish": "partial", "cancel": "cancelled", "skip": "all_ok"}[deed]


def test_a_step_is_not_redriven_by_itself(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"note bad"}
    flow = app.flow("step")
    flow.step(t.note, "bad")
    run = flow.start()
    work(app)
    with pytest.raises(fanin.NotAllowedNow, match=f"redrive flow {run.id}"):
        run.job("note").redrive()


def test_a_step_maps_over_its_source_alone_whatever_else_it_stands_after(app: fanin.App, t: Any, book: Book) -> None:
    flow = app.flow("beside")
    other = flow.step(t.note, "other")
    flow.map(t.fetch, flow.step(t.urls, 2), after=other)
    run = flow.start()
    work(app)
    assert run.status == "completed"
    assert list(run.job("fetch").results()) == ["u0!", "u1!"]


def test_a_step_that_is_named_twice_is_refused(app: fanin.App, t: Any) -> None:
    flow = app.flow("twice")
    one = flow.step(t.note, "x", name="one")
    flow.step(t.note, "y", name="two", after=[one, "one"])
    with pytest.raises(fanin.BadOption, match="name each step once"):
        flow.start()


def test_the_async_flow_does_what_the_other_does(migrated_url: str) -> None:
    app = fanin.AsyncApp(migrated_url)

    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.task
    def total(numbers: fanin.Joined[int]) -> int:
        return sum(numbers)

    @app.task
    def fails(number: int) -> None:
        raise fanin.Permanent("no")

    async def all_of_it() -> None:
        flow = app.flow("numbers", key="n")
        flow.step(total, after=flow.map(double, [1, 2, 3]))
        run = await flow.start(run=True)
        assert await run.result(timeout=90) == 12
        assert await run.status == "completed"
        assert [step.status for step in await run.steps()] == ["done", "done"]
        assert (await app.flow_run("n")) == run
        assert [row.id for row in await app.flows()] == [run.id]
        assert sorted([result async for result in (await run.job("double")).results()]) == [2, 4, 6]
        assert len([job async for job in run.jobs()]) == 2
        assert not await run.cancel()
        other = app.flow("bad")
        done = other.map(double, [1], name="done", undo=fanin.manual("take it back"))
        other.step(fails, 1, after=done, attempts=1)
        bad = await (await other.start(run=True)).wait(90)
        assert await bad.status == "needs_attention"
        with pytest.raises(fanin.NotAllowedNow):
            await bad.undo_again("done")
        with pytest.raises(fanin.NotAllowedNow):
            await bad.redrive()
        await bad.resolve("done", "taken back")
        assert await bad.status == "compensated"
        await app.close()

    asyncio.run(all_of_it())


def test_the_error_of_a_flow_keeps_what_failed_apart_from_what_was_not_undone(
    app: fanin.App, t: Any, book: Book
) -> None:
    book.failing = {"note last", "take back second"}
    flow = app.flow("two errors")
    first = flow.step(t.note, "first", name="first", undo=fanin.manual("call the bank"))
    second = flow.step(t.note, "second", name="second", after=first, undo=t.take_back)
    flow.step(t.note, "last", name="last", after=second)
    run = flow.start()
    work(app)

    def told() -> list[str]:
        with pytest.raises(fanin.JobFailed) as problem:
            run.result()
        return str(problem.value).split("; ")

    why, undo = told()
    assert why.startswith(f"flow {run.id} needs_attention: step 'last': job {run.job('last').id} failed")
    assert why.endswith(": part 0 failed at attempt 1: Permanent: note last fails")
    undoing = identity.nested_id(str(run.steps()[1].undo_job_id), 0)
    assert undo.startswith(f"the undo of step 'second' failed: job {undoing} failed")
    assert undo.endswith(": part 0 failed at attempt 1: Permanent: take back second fails")
    assert "step 'last'" in str(run.row().reason)
    run.resolve("second", "by hand", by="kim")
    assert told() == [why, "step 'first' is to be undone by a person: call the bank"]
    run.resolve("first", "by hand", by="kim")
    assert told() == [why.replace("needs_attention", "compensated")]
    with pytest.raises(fanin.BadOption, match="by="):
        run.undo_again("second", by="k" * 1_000)


def test_the_error_of_a_flow_that_was_stopped_names_no_failure(app: fanin.App, t: Any, book: Book) -> None:
    book.failing = {"note one"}
    flow = app.flow("stopped", fail_fast=False)
    flow.step(t.note, "one", name="one")
    flow.step(t.note, "two", name="two", queue="nobody serves it")
    run = flow.start()
    app.run_worker(until_idle=True)
    assert run.cancel("the customer called")
    with pytest.raises(fanin.JobFailed, match=f"flow {run.id} cancelled: the customer called$"):
        run.result()
    with pytest.raises(fanin.BadOption, match="reason="):
        run.cancel("x" * 5_000)


def test_the_result_of_a_step_that_was_skipped_is_refused_as_such(app: fanin.App, t: Any) -> None:
    flow = app.flow("skips")
    flow.step(t.note, "never", name="never", after=flow.step(t.note, "a", name="a"), on="failed")
    run = flow.start()
    with pytest.raises(fanin.UnknownJob, match=r"step 'never' of flow .* is waiting: it has no job yet$"):
        run.job("never")
    work(app)
    assert (run.status, states(run)) == ("completed", {"a": "done", "never": "skipped"})
    for step in (None, "never"):
        with pytest.raises(fanin.JobFailed, match=f"flow {run.id} completed, and its step 'never' was skipped: it has"):
            run.result(step)
    with pytest.raises(fanin.UnknownJob, match=r"step 'never' of flow .* is skipped: it has no job$"):
        run.job("never")
    with pytest.raises(fanin.UnknownJob, match="has no step 'nowhere'"):
        run.result("nowhere")
    assert run.result("a") == "a"
