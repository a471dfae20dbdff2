"""What is the same flow: that of an object, of a handler that is run again, of a transaction that was taken back."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import fanin
from fanin.protocol import purge as purging
from fanin.testing.invariants import violations
from tests.protocol.test_within import Stop, theirs


@pytest.fixture
def note(app: fanin.App) -> fanin.Task[Any, Any]:
    @app.task
    def note(text: str) -> str:
        return text

    return note


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def declared(app: fanin.App, note: fanin.Task[Any, Any], *texts: str, key: str | None = None) -> fanin.Flow:
    flow = app.flow("notes", key=key)
    for text in texts or ("a",):
        flow.step(note, text)
    return flow


def test_a_flow_that_is_started_again_is_the_same(app: fanin.App, note: Any) -> None:
    flow = declared(app, note)
    run = flow.start()
    assert flow.start() == run
    work(app)
    assert flow.start(run=True).result() == "a"
    assert [row.id for row in app.flows()] == [run.id]
    assert declared(app, note).start() != run


def test_a_start_whose_answer_was_lost_is_said_again(
    app: fanin.App, note: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = declared(app, note)
    run = app.store.run

    def lost(transaction: Any) -> None:
        run(transaction)
        raise fanin.Unavailable("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr(app.store, "run", lost)
        with pytest.raises(fanin.Unavailable):
            flow.start()
    again = flow.start()
    assert [row.id for row in app.flows()] == [again.id]


def test_a_start_that_was_taken_back_with_its_transaction_is_said_again(app: fanin.App, note: Any) -> None:
    flow = declared(app, note)
    taken_back = []
    for _ in range(2):
        with suppress(Stop), theirs(app.store) as connection:
            taken_back.append(flow.start(within=connection))
            raise Stop
        assert app.flows() == []
    run = flow.start()
    assert taken_back == [run, run]
    work(app)
    assert run.status == "completed"


@pytest.mark.parametrize("key", [None, "k"])
def test_what_is_declared_after_the_start_is_refused(app: fanin.App, note: Any, key: str | None) -> None:
    flow = declared(app, note, key=key)
    run = flow.start()
    for late in (lambda: flow.step(note, "b"), lambda: flow.map(note, ["b"])):
        with pytest.raises(fanin.NotAllowedNow, match=r"'notes' has been started, and its steps with it: .* before"):
            late()
    assert flow.start() == run
    assert [step.name for step in run.steps()] == ["note"]


def test_what_was_refused_is_set_right_and_started(app: fanin.App, note: Any) -> None:
    flow = app.flow("notes")
    with pytest.raises(fanin.BadOption, match="no steps"):
        flow.start()
    flow.step(note, "a", after="first")
    with pytest.raises(fanin.BadOption, match="no step of flow"):
        flow.start()
    flow.step(note, "b", name="first")
    run = flow.start(run=True)
    assert run.result() == "a"


def test_a_handler_that_is_run_again_finds_its_flows(app: fanin.App, note: Any) -> None:
    attempts: list[list[str]] = []

    @app.task(attempts=3, backoff=0)
    def asks(number: int) -> None:
        part = fanin.current()
        first, job, second = declared(app, note), app.map(note, ["x"]), declared(app, note, "b")
        attempts.append([first.start().id, second.start().id, job.id, declared(app, note, key="k").start().id])
        if part.attempt < 3 and number == 0:
            raise RuntimeError("once more")

    app.map(asks, [0, 1])
    work(app)
    assert len(attempts) == 4
    made = {tuple(ids) for ids in attempts}
    assert len(made) == 2, "the same in every attempt, others in another part"
    assert {row.id for row in app.flows()} == {one for ids in made for n, one in enumerate(ids) if n != 2}
    assert len(app.flows()) == 5
    assert {row.status for row in app.flows()} == {"completed"}


def test_a_handler_that_asks_for_another_flow_when_it_is_run_again_is_told_so(app: fanin.App, note: Any) -> None:
    seen: list[str] = []

    @app.task(attempts=2, backoff=0)
    def asks(number: int) -> None:
        try:
            declared(app, note, f"in attempt {fanin.current().attempt}").start()
        except fanin.KeyConflict as problem:
            seen.append(str(problem))
            return
        raise RuntimeError("once more")

    app.map(asks, [0])
    work(app)
    (row,) = app.flows()
    (said,) = seen
    assert f"flow {row.id} was started before with other steps, items or options" in said
    assert "in every attempt" in said


def test_a_handler_starts_no_keyless_flow_that_others_have_declared(app: fanin.App, note: Any) -> None:
    outside, keyed = declared(app, note), declared(app, note, key="k")
    left: list[fanin.Flow] = []
    seen: list[str] = []

    @app.task(attempts=1)
    def asks(number: int) -> None:
        for one in (outside, *left):
            try:
                one.start()
            except fanin.BadOption as problem:
                seen.append(str(problem))
        left.append(declared(app, note))
        keyed.start()

    for number in range(2):
        app.map(asks, [number])
        work(app)
    assert len(seen) == 3
    for said in seen:
        assert "'notes' has no key and was not declared in the handler that starts it" in said
        assert "declare it there, or give it a key" in said
    assert [row.key for row in app.flows()] == ["k"]


def test_a_thread_of_the_handler_may_start_the_flow_that_the_handler_declared(app: fanin.App, note: Any) -> None:
    @app.task(attempts=2, backoff=0)
    def asks(number: int) -> None:
        flow = declared(app, note)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(flow.start).result()
        if fanin.current().attempt == 1:
            raise RuntimeError("once more")

    app.map(asks, [0])
    work(app)
    assert [row.status for row in app.flows()] == ["completed"]


def test_a_flow_that_was_purged_is_not_started_among_its_rows(app: fanin.App, note: Any) -> None:
    flow = declared(app, note)
    run = flow.start()
    work(app)
    home = (app.store.bucket(run.id), run.id)
    buckets = range(app.store.buckets)
    members = app.store.read(lambda: purging.flow_tree(buckets, home))
    assert app.store.run(lambda: purging.purge(buckets, members, 0.0, True, flow=home)).kept is None
    with pytest.raises(fanin.NotAllowedNow, match=f"'{run.id}' was purged, and its rows are still being removed"):
        flow.start()
    app.purge(0, unsent=True)
    assert flow.start() == run
    work(app)
    assert run.status == "completed"


def test_flows_of_an_async_application_are_the_same_when_they_are_started_again(migrated_url: str) -> None:
    app = fanin.AsyncApp(migrated_url)
    seen: list[str] = []

    @app.task
    async def note(text: str) -> str:
        return text

    @app.task(attempts=2, backoff=0)
    async def asks(number: int) -> None:
        flow = app.flow("notes")
        flow.step(note, "a")
        seen.append((await flow.start()).id)
        if fanin.current().attempt == 1:
            raise RuntimeError("once more")

    async def all_of_it() -> None:
        flow = app.flow("notes")
        flow.step(note, "a")
        run = await flow.start()
        assert await flow.start() == run
        with pytest.raises(fanin.NotAllowedNow, match="has been started"):
            flow.step(note, "b")
        assert await (await flow.start(run=True)).result(timeout=90) == "a"
        await (await app.map(asks, [0], run=True)).wait(90)
        assert (len(seen), len(set(seen))) == (2, 1)
        assert {row.id for row in await app.flows()} == {run.id, seen[0]}
        await app.close()

    asyncio.run(all_of_it())
