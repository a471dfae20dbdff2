"""What one handler returns and the next one takes is compared before anything is written."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import fanin
from fanin.domain.policy import Policy
from fanin.runtime.fanout import FanOut


class Page(msgspec.Struct):
    url: str


FITTING: list[tuple[Any, Any]] = [
    (int, int), (int, float), (int, Any), (Any, int), (object, str), (str, dt.date), (uuid.UUID, str), (str, Path),
    (int | None, int), (int, int | str), (list[int], list[float]), (set[int], list[int]), (tuple[int, str], tuple),
    (tuple[int, ...], list[int]), (dict[str, int], dict[str, float]), (dict[str, int], Page), (Page, dict),
    (Page, Page), (Literal["a"], str), (fanin.FanOut, int), (list[int | str], list[str]),
]  # fmt: skip
APART: list[tuple[Any, Any]] = [
    (int, str), (str, int), (float, int), (bool, int), (int, bool), (bytes, str), (None, int), (list[int], int),
    (int | None, str), (list[int], list[str]), (tuple[int, int], list[str]), (dict[str, int], dict[str, str]),
    (dict[str, int], list[str]), (Page, str), (list[list[int]], list[list[str]]),
]  # fmt: skip


@pytest.fixture
def app() -> fanin.App:
    return fanin.App("sqlite:///never-opened.db")


def task(app: fanin.App, name: str, takes: Any, returns: Any) -> fanin.Task[..., Any]:
    def work(x: Any) -> Any:
        return x

    work.__annotations__ = {"x": takes, "return": returns}
    return app.task(name=name)(work)


def said(annotation: Any) -> str:
    return str(annotation)


def plans(app: fanin.App, given: Any, taken: Any) -> list[Callable[[], object]]:
    """The places where one follows the other."""
    one = task(app, "one", int, given)
    joins = task(app, "joins", fanin.Joined[taken], int)
    takes = task(app, "takes", taken, int)
    lists = task(app, "lists", int, list[given])
    flow = app.flow("plan")
    step = flow.map(one, [1], name="step")
    flow.step(joins, after="step")
    return [
        lambda: app.flow("plan").map(one, [1], undo=takes),
        lambda: flow.map(takes, step),
        lambda: flow.map(takes, flow.step(lists, 1)),
        lambda: app._maker.new_job(
            one, Policy(), then=joins, key=None,
            give_up_after=None, attempts=None, queue=None, priority=None, delay=0, stripes=None, meta=None,
        ),
        lambda: FanOut.of(one, [1], then=joins),
        lambda: app.schedule("nightly", "0 2 * * *", one, [1], then=joins),
        flow._new,
    ]  # fmt: skip


@pytest.mark.parametrize(("given", "taken"), FITTING, ids=said)
def test_what_may_fit_is_let_through(app: fanin.App, given: Any, taken: Any) -> None:
    for plan in plans(app, given, taken):
        plan()


@pytest.mark.parametrize(("given", "taken"), APART, ids=said)
def test_what_can_never_fit_is_refused(app: fanin.App, given: Any, taken: Any) -> None:
    for plan in plans(app, given, taken):
        with pytest.raises(fanin.BadOption, match=r"(leaves|returns) .* and (task|undo=)"):
            plan()


@pytest.mark.parametrize("returns", [int, str, dict[str, int], None, int | None])
def test_a_step_that_returns_no_list_is_not_mapped_over(app: fanin.App, returns: Any) -> None:
    flow = app.flow("plan")
    step = flow.step(task(app, "one", int, returns), 1)
    with pytest.raises(fanin.BadOption, match="nothing in it to map task takes over: let it return a list"):
        flow.map(task(app, "takes", Any, int), step)


@pytest.mark.parametrize("returns", [list, list[int], tuple[int, int], set[int], Any, list[int] | None, fanin.FanOut])
def test_a_step_that_may_return_a_list_is_mapped_over(app: fanin.App, returns: Any) -> None:
    flow = app.flow("plan")
    flow.map(task(app, "takes", int, int), flow.step(task(app, "one", int, returns), 1))


def test_a_task_that_joins_is_neither_mapped_nor_an_undo(app: fanin.App) -> None:
    one, joins = task(app, "one", int, int), task(app, "joins", fanin.Joined[int], int)
    flow = app.flow("plan")
    for plan in (
        lambda: flow.map(joins, flow.map(one, [1])),
        lambda: flow.map(joins, [1]),
        lambda: flow.map(one, [1], undo=joins),
    ):
        with pytest.raises(fanin.BadPayload, match=r"joins\(x: fanin.Joined\[int\]\).* does not take exactly one"):
            plan()


def test_a_successor_takes_what_is_joined_and_nothing_else(app: fanin.App) -> None:
    @app.task
    def two(a: fanin.Joined[int], b: fanin.Joined[int]) -> int:
        return 0

    @app.task
    def second(x: int = 1, found: fanin.Joined[int] | None = None) -> int:
        return 0

    @app.task
    def nothing() -> int:
        return 0

    one = task(app, "one", int, int)
    for then in (task(app, "takes", int, int), two, second, nothing):
        with pytest.raises(fanin.BadOption, match=r"annotate its first parameter fanin.Joined\[int\]"):
            app.map(one, [1], then=then)


@pytest.mark.parametrize("items", [None, 5, object()])
def test_what_is_no_items_is_refused(app: fanin.App, items: Any) -> None:
    one = task(app, "one", int, int)
    with pytest.raises(fanin.BadPayload, match=r"items=.*: give a list or another iterable"):
        app.map(one, items)
    with pytest.raises(fanin.BadPayload, match=r"items=.*: give a list or another iterable"):
        app.flow("plan").map(one, items)


@pytest.mark.parametrize("after", [None, 5, [None], {"a"}])
def test_a_step_stands_after_steps_alone(app: fanin.App, after: Any) -> None:
    with pytest.raises(fanin.BadOption, match=r"after=.*: give a step of this flow, its name, or a list of them"):
        app.flow("plan").step(task(app, "one", int, int), 1, after=after)


@pytest.mark.parametrize("width", [0, -1, "5", True, 1.5, 10_000_001])
def test_a_width_that_cannot_be_is_refused(width: Any) -> None:
    with pytest.raises(fanin.BadOption, match="give a whole number from 1 to 10000000"):
        fanin.App("sqlite:///never-opened.db", max_parts=width)


def test_a_skipped_step_leaves_none_which_may_be_annotated(tmp_path: Path) -> None:
    with fanin.App(f"sqlite:///{tmp_path}/flow.db") as app:
        one = task(app, "one", int, int)

        @app.task
        def after(left: fanin.Joined[int] | None, right: fanin.Joined[int] | None) -> list[int | None]:
            return [None if found is None else sum(found) for found in (left, right)]

        flow = app.flow("plan")
        first = flow.step(one, 1, name="first")
        never = flow.step(one, 2, name="never", after=first, on="failed")
        flow.step(after, after=[never, first], on="any")
        assert flow.start(run=True).result() == [None, 1]


def test_a_state_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with fanin.App(f"sqlite:///{tmp_path}/flow.db") as app:
        for look in (app.jobs, app.flows):
            with pytest.raises(fanin.BadOption, match=r"status='odd': there are .*running"):
                look("odd")
            with pytest.raises(fanin.BadOption, match="limit=-1: give a whole number from 1 to 1000000"):
                look(limit=-1)


TEXTS = [5, b"x", "", "a\nb", "x" * 1001]


@pytest.mark.parametrize("value", TEXTS)
def test_names_and_keys_are_texts(app: fanin.App, value: Any) -> None:
    one = task(app, "one", int, int)
    wrong: Any = value or 5  # an empty queue, and no name, are the task's
    said = r"(key=|name |queue ).*: use a text of 1 to \d+ printable characters"
    asks: list[Callable[[], object]] = [
        lambda: app.map(one, [1], key=value),
        lambda: app.submit_with(one, (1,), key=value),
        lambda: app.flow("plan", key=value),
        lambda: app.flow(value),
        lambda: app.flow("plan").map(one, [1], queue=wrong),
        lambda: app.flow("plan").step(one, 1, name=value),
        lambda: app.schedule(value, "@daily", one, [1]),
        lambda: app.task(name=wrong)(lambda: None),
    ]
    for ask in asks:
        with pytest.raises(fanin.BadOption, match=said):
            ask()


def test_what_is_of_another_kind_is_refused(app: fanin.App) -> None:
    one = task(app, "one", int, int)
    wrong: Any = "default"
    asks: list[tuple[Callable[[], object], str]] = [
        (lambda: app.run_worker(queues=wrong, until_idle=True), r"queues='default': give a list of names"),
        (lambda: app.map(one, [1], events=wrong), r"events='default': give fanin.Events"),
        (lambda: app.task(item_key=wrong)(lambda x: x), r"item_key='default': give a function"),
        (lambda: app.schedule("s1", "@daily", one, lambda a, b: [1]), "takes the slot, or nothing"),
        (lambda: app.schedule("s2", "@daily", one, 5), r"items=5: give a list, or a function"),  # type: ignore[arg-type]
    ]
    for ask, said in asks:
        with pytest.raises(fanin.BadOption, match=said):
            ask()
