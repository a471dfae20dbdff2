"""A successor with options of its own, wherever ``then=`` stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fanin
from fanin.domain import limits


@pytest.fixture
def t(app: fanin.App) -> Any:
    class Tasks:
        @app.task
        def size(name: str) -> int:
            return len(name)

        @app.task(attempts=2, queue="sums")
        def add(sizes: fanin.Joined[int]) -> int:
            return sum(sizes)

        @app.task
        def both(name: str) -> fanin.FanOut:
            return fanin.current().fan_out(
                Tasks.size, [name], then=fanin.Successor(Tasks.add, attempts=7, queue="default")
            )

    return Tasks


def test_its_options_go_before_those_of_the_task(app: fanin.App, t: Any) -> None:
    plain = app.map(t.size, ["a"], then=t.add, priority=3)
    own = app.map(t.size, ["a"], then=fanin.Successor(t.add, attempts=5, queue="other", priority=40), priority=3)
    nested = app.map(t.both, ["a"])
    app.run_worker(until_idle=True, queues=["default"])
    found = {}
    for job in (plain, own):
        assert job.successor is not None
        row = job.successor.row()
        found[job] = (row.attempts, row.queue, row.priority)
    assert found == {plain: (2, "sums", 13), own: (5, "other", 50)}
    assert list(nested.results()) == [1]
    (below,) = nested.children()
    assert below.successor is not None
    assert below.successor.row().attempts == 7


def test_a_successor_is_never_behind_parts_of_its_job(app: fanin.App, t: Any) -> None:
    job = app.map(t.size, ["a"], then=fanin.Successor(t.add, priority=-limits.PRIORITY_MAX), priority=100)
    app.run_worker(until_idle=True, queues=["default"])
    assert job.successor is not None
    assert job.successor.row().priority == 110


def test_it_is_a_part_of_what_is_asked_for(app: fanin.App, t: Any) -> None:
    job = app.map(t.size, ["a"], then=fanin.Successor(t.add, attempts=5), key="k")
    assert app.map(t.size, ["a"], then=fanin.Successor(t.add, attempts=5), key="k") == job
    with pytest.raises(fanin.KeyConflict):
        app.map(t.size, ["a"], then=t.add, key="k")


def test_what_cannot_be_is_refused(app: fanin.App, t: Any) -> None:
    def plain(sizes: fanin.Joined[int]) -> None: ...

    stranger = fanin.Task(plain)
    with pytest.raises(fanin.UnknownTask, match=r"is not a task: decorate it with @app\.task"):
        fanin.Successor(plain)  # type: ignore[arg-type]
    asks: list[tuple[type[Exception], Callable[[], object]]] = [
        (fanin.UnknownTask, lambda: app.map(t.size, ["a"], then=fanin.Successor(stranger))),
        (fanin.UnknownTask, lambda: app.map(t.size, ["a"], then=plain)),  # type: ignore[arg-type]
        (fanin.UnknownTask, lambda: app.schedule("s", "@daily", t.size, ["a"], then=fanin.Successor(stranger))),
        (fanin.BadOption, lambda: fanin.Successor(t.add, attempts=0)),
        (fanin.BadOption, lambda: fanin.Successor(t.add, queue="")),
        (fanin.BadOption, lambda: fanin.Successor(t.add, priority=limits.PRIORITY_MAX + 1)),
    ]
    for error, ask in asks:
        with pytest.raises(error):
            ask()
    assert app.jobs() == []
