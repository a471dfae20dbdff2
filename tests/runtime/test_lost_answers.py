"""What a person says by a `Job` or a `FlowRun` has one id, however often the store has to say it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.protocol.steps import TxnFactory
from fanin.testing.state import select


def said_twice(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first answer of each transaction is lost."""
    run = app.store.run

    def again(factory: TxnFactory[Any]) -> Any:
        run(factory)
        return run(factory)

    monkeypatch.setattr(app.store, "run", again)


def deeds(app: fanin.App) -> list[str]:
    return [str(row["what"]) for row in select(app.store, "SELECT what FROM fanin.job_log ORDER BY at")]


@pytest.fixture
def jobs(app: fanin.App) -> list[fanin.Job]:
    @app.task
    def work(x: int) -> int:
        return x

    return [app.map(work, range(2)) for _ in range(5)]


def test_what_is_done_to_a_job_is_answered_as_it_was(
    app: fanin.App, jobs: list[fanin.Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three, four, _ = jobs
    said_twice(app, monkeypatch)
    assert one.cancel("no") is True
    assert two.finish() is True
    assert three.pause() is True
    assert three.resume() is True
    assert four.skip(0, failed=True) is False
    assert four.skip(1, failed=True) is True
    assert deeds(app) == ["cancelled", "finished", "paused", "resumed", "skipped", "skipped"]


def test_what_is_done_to_a_flow_is_answered_as_it_was(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task(attempts=1)
    def work(x: int) -> int:
        return x

    @app.task(attempts=1)
    def back(x: int) -> None:
        raise fanin.Permanent("not now")

    @app.task(attempts=1)
    def fails(x: int) -> None:
        raise fanin.Permanent("no")

    flow = app.flow("saga")
    first = flow.step(work, 1, name="first", undo=back)
    flow.step(fails, 1, after=flow.step(work, 2, name="second", after=first, undo=fanin.manual("call them")))
    run = flow.start()
    other = app.flow("other")
    other.step(work, 1)
    app.run_worker(until_idle=True)
    stopped = other.start()
    said_twice(app, monkeypatch)
    assert stopped.cancel("no") is True
    run.resolve("second", "called them")
    monkeypatch.undo()
    app.run_worker(until_idle=True)
    said_twice(app, monkeypatch)
    run.undo_again("first")
    assert run.status == "compensating"
    monkeypatch.undo()
    app.run_worker(until_idle=True)
    said_twice(app, monkeypatch)
    run.abandon_undo("first", "too late")
    assert run.status == "compensated"
    assert sorted(deeds(app)) == ["cancelled", "cancelled", "not_undone", "redriven", "undo_again", "undone"]


def test_what_is_done_on_an_event_loop_is_answered_as_it_was(migrated_url: str) -> None:
    async def story() -> None:
        async with fanin.AsyncApp(migrated_url) as app:

            @app.task
            async def work(x: int) -> int:
                return x

            run: Callable[[TxnFactory[Any]], Any] = app._runner.run

            async def again(factory: TxnFactory[Any]) -> Any:
                await run(factory)
                return await run(factory)

            one, two, three = [await app.map(work, range(2)) for _ in range(3)]
            app._runner.run = again  # type: ignore[method-assign]
            assert await one.cancel() is True
            assert await two.finish() is True
            assert await three.pause() is True
            assert await three.resume() is True
            assert await three.skip(0, failed=True) is False

    asyncio.run(story())
