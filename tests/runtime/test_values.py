"""Arguments and results go there and back equal, or are refused before anything is written."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import fanin
from fanin.domain import limits
from fanin.runtime import codec
from fanin.runtime.codec import Signature
from tests.runtime.rows import execute


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    tags: set[str] = field(default_factory=set)
    about: dict[str, Any] = field(default_factory=dict)


class Box(msgspec.Struct):
    corner: Point
    when: dt.datetime | None = None


class Model(pydantic.BaseModel):
    name: str
    day: dt.date


@dataclass
class Base:
    a: int


@dataclass
class Derived(Base):
    b: int = 0


UTC = dt.UTC
TYPED: list[tuple[Any, Any]] = [
    (Point, Point(1, {"a", "b"}, {"k": [1, None, {"deep": 1.5}]})),
    (Box, Box(Point(2), dt.datetime(2024, 2, 29, 12, 30, 0, 123456, tzinfo=UTC))),
    (dt.datetime, dt.datetime(2024, 2, 29, 12, 30)),
    (dt.date, dt.date(1, 1, 1)),
    (dt.time, dt.time(23, 59, 59)),
    (dt.timedelta, dt.timedelta(days=3, microseconds=1)),
    (decimal.Decimal, decimal.Decimal("1.10000000000000000000000001")),
    (uuid.UUID, uuid.UUID(int=7)),
    (bytes, b"\x00\xff\x80"),
    (Colour, Colour.BLUE),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (list[tuple[dt.date, ...]], [(dt.date(2024, 1, 1), dt.date(2024, 1, 2))]),
    (dict[uuid.UUID, bytes], {uuid.UUID(int=1): b"x"}),
    (dict[int, str], {1: "one"}),
    (Path, Path("/a/b c")),
    (Model, Model(name="n", day=dt.date(2024, 1, 1))),
    (list[Model], [Model(name="n", day=dt.date(2024, 1, 1))]),
    (int | None, None),
    (str | None, ""),
    (float, 3),
    (dict[str, Any], {"a": [1, "x", None, True, {"b": 2.5}]}),
    (Any, {"a": (1, 2)}),
    (object, [1]),
    (str, "a\x00b\u2028\U0001f600"),
    (int, 2**80),
]


def handler(annotation: Any, function: Callable[[Any], Any] = lambda x: x) -> Callable[[Any], Any]:
    def work(x: Any) -> Any:
        return function(x)

    work.__annotations__ = {"x": annotation, "return": annotation}
    return work


@pytest.mark.parametrize(
    ("annotation", "value"), TYPED, ids=[f"{n}-{type(v).__name__}" for n, (_, v) in enumerate(TYPED)]
)
def test_a_typed_value_comes_back_equal(sqlite_url: str, annotation: Any, value: Any) -> None:
    """F085: as an argument, as a result, and both together"""
    seen: list[Any] = []

    def note(x: Any) -> Any:
        seen.append(x)
        return x

    with fanin.App(sqlite_url) as app:
        task = app.task(handler(annotation, note))
        job = app.map(task, [value], run=True)
        found = job.result(90)
    expected = {"a": [1, 2]} if annotation is Any else value  # plain JSON has lists only
    assert seen == [expected]
    assert type(seen[0]) is (float if annotation is float else type(expected))
    assert found == expected


def test_values_are_the_same_on_both_databases(app: fanin.App) -> None:
    """F082, F087: the empty ones, and what databases like to trip over"""
    values: list[Any] = [
        None,
        False,
        0,
        "",
        [],
        {},
        0.0,
        "a\x00b",
        {"\x00": "\\u0000"},
        "'; --",
        "\u2028",
        2**63,
        -(2**70),
        1e308,
    ]

    @app.task
    def echo(x: Any) -> Any:
        return x

    @app.task
    def after(found: fanin.Joined[Any]) -> Any:
        return list(found)

    job = app.map(echo, values, then=after, run=True).wait(90)
    assert list(job.results()) == values
    assert [type(v) for v in job.results()] == [type(v) for v in values]
    follower = job.successor
    assert follower is not None
    assert follower.result(90) == values


NOT_STORABLE: list[Any] = [
    math.nan, math.inf, [-math.inf], {"a": math.nan}, {"a": [Point(1, about={"x": math.nan})]}, "\ud800", ["\udfff"],
    {"\ud800": 1}, dt.date(2024, 1, 1), {"a": [dt.datetime.now()]}, b"x", {1, 2}, uuid.UUID(int=1), Colour.RED,
    decimal.Decimal(1), object(), lambda: None, {1: 2}, {None: 1}, {(1, 2): 3}, Path("/x"), Point(1), Base, 1j,
]  # fmt: skip


@pytest.mark.parametrize("value", NOT_STORABLE, ids=[f"{type(v).__name__}-{n}" for n, v in enumerate(NOT_STORABLE)])
def test_without_an_annotation_only_plain_json_is_taken(sqlite_url: str, value: Any) -> None:
    """F083, F084, F085: refused at submit, nothing written, the part named"""
    with fanin.App(sqlite_url) as app:

        @app.task
        def work(x):
            return x

        with pytest.raises(fanin.BadPayload, match=r"part 1: argument 'x' of task"):
            app.map(work, [1, value])
        with pytest.raises(fanin.BadPayload, match="argument 'x' of task"):
            app.submit(work, value)
        assert app.jobs() == []


@pytest.mark.parametrize("value", NOT_STORABLE, ids=[f"{type(v).__name__}-{n}" for n, v in enumerate(NOT_STORABLE)])
def test_a_result_that_cannot_be_stored_fails_its_part_at_once(sqlite_url: str, value: Any) -> None:
    """F082 to F085: not the worker, and not again and again"""
    with fanin.App(sqlite_url) as app:

        @app.task(attempts=5)
        def work(x):
            return value if x == 0 else x

        job = app.map(work, [0, 1], tolerate=1, run=True).wait(90)
        (failure,) = job.failures()
        assert (failure.idx, failure.attempt, failure.type) == (0, 1, "BadPayload")
        assert "the result of task" in failure.message
        assert list(job.results()) == [1]


WRONG: list[tuple[Any, Any]] = [
    (int, "1"), (int, 1.5), (int, None), (str, 1), (str, None), (str, b"x"), (str, dt.date(2024, 1, 1)),
    (str, uuid.UUID(int=1)), (str, Colour.RED), (str, decimal.Decimal(1)), (bytes, "ÿ"), (dt.date, "tomorrow"),
    (Point, {"x": "one"}), (Point, 3), (Colour, "green"), (list[int], ["a"]), (set[int], {"a"}), (Model, {"name": 1}),
    (tuple[int, int], (1,)), (float, "1"), (bool, 1), (Base, Derived(1, 2)),
    (dict[str, Any], {"when": dt.date(2024, 1, 1)}), (dict[str, Any], {"k": {1: 2}}), (list[Any], [b"x"]),
    (Point, Point(1, about={"x": {1, 2}})),
    (dict[str, object], {"x": b""}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value"), WRONG, ids=[f"{n}-{type(v).__name__}" for n, (_, v) in enumerate(WRONG)]
)
def test_a_wrong_type_is_an_error_at_submit(sqlite_url: str, annotation: Any, value: Any) -> None:
    with fanin.App(sqlite_url) as app:
        task = app.task(handler(annotation))
        with pytest.raises(fanin.BadPayload):
            app.map(task, [value])
        with pytest.raises(fanin.BadPayload):
            app.submit(task, value)
        assert app.jobs() == []


def test_arguments_that_do_not_fit_the_signature_are_refused(sqlite_url: str) -> None:
    with fanin.App(sqlite_url) as app:

        @app.task
        def two(a: int, b: int = 2, *more: int, c: int = 3, **rest: int) -> list[int]:
            return [a, b, *more, c, *rest.values()]

        @app.task
        def none() -> str:
            return "ran"

        for args, kwargs in [((), {}), ((1,), {"a": 1})]:
            with pytest.raises(fanin.BadPayload):
                app.submit_with(two, args, kwargs)
        with pytest.raises(fanin.BadPayload):
            app.submit(none, 1)
        with pytest.raises(fanin.BadPayload, match="does not take exactly one argument"):
            app.map(none, [1])
        assert app.jobs() == []
        assert app.submit_with(two, (1, 5, 6, 7), {"c": 8, "d": 9}, run=True).result(90) == [1, 5, 6, 7, 8, 9]
        assert app.submit_with(none, run=True).result(90) == "ran"


@pytest.mark.parametrize("value", [None, "null", [None, 1.5], {"a": None}])
def test_a_call_takes_nothing_and_the_word_for_it(sqlite_url: str, value: Any) -> None:
    with fanin.App(sqlite_url) as app:

        @app.task
        def back(x):
            return x

        assert app.submit_with(back, (value,), run=True).result(90) == value
        with pytest.raises(fanin.BadPayload, match="nan, which JSON cannot carry"):
            app.submit(back, [None, math.nan])


def test_an_annotation_that_cannot_be_resolved_is_refused_where_the_task_is_made(sqlite_url: str) -> None:
    app = fanin.App(sqlite_url)

    def unknown(x: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    def unreadable(x: int | Callable[[], int]) -> int:
        return 1

    for function in (unknown, unreadable):
        with pytest.raises(fanin.BadPayload, match=r"Nowhere|cannot be read from JSON"):
            app.task(function)
    assert app.tasks == {}


def test_a_payload_and_a_result_have_their_limits(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LARGE_RESULT_BYTES", 1_000_000)  # a larger one would lie outside

    @app.task(attempts=3)
    def grow(x: str) -> str:
        return x + "y" * 10

    fits = "x" * (1_000_000 - 2)
    with pytest.raises(fanin.BadPayload, match="1000001 bytes as JSON, the limit is 1000000"):
        app.map(grow, [fits + "x"])
    job = app.map(grow, [fits, "x"], tolerate=1, run=True).wait(90)
    (failure,) = job.failures()
    assert failure.attempt == 1
    assert "the limit is 1000000" in failure.message
    assert list(job.results()) == ["x" + "y" * 10]


def test_each_attempt_and_each_part_gets_its_own_copy_of_the_argument(app: fanin.App) -> None:
    """F088"""
    shared = [1]
    seen: list[list[int]] = []

    @app.task(attempts=3, backoff=0)
    def spoil(x: list[int]) -> int:
        seen.append(list(x))
        x.append(99)
        if fanin.current().attempt < 3:
            raise ValueError
        return len(x)

    assert app.map(spoil, [shared, shared], run=True).result(90) == [2, 2]
    assert seen == [[1]] * 6
    assert shared == [1]


@pytest.mark.parametrize("annotation", [Any, list[Any], dict[str, Any]])
@pytest.mark.parametrize("depth", [400, 900, 5_000, 200_000])
def test_a_deeply_nested_value_is_stored_or_refused(sqlite_url: str, annotation: Any, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if annotation == dict[str, Any] else [value]
    with fanin.App(sqlite_url) as app:
        task = app.task(handler(annotation))
        try:
            job = app.map(task, [value], tolerate=1)
        except fanin.BadPayload:
            return
        job.wait(90, run=True)
        assert list(job.results()) == [value] or job.failures()[0].type == "BadPayload"


def test_what_stands_in_the_database_is_json(app: fanin.App) -> None:
    """So that other programs can read it."""

    @app.task
    def work(x: Point) -> Point:
        return x

    job = app.map(work, [Point(1, {"a"})], run=True).wait(90)
    ((payload, result),) = execute(app.store, f"SELECT payload, result FROM {{part}} WHERE job_id = '{job.id}'")
    assert msgspec.json.decode(payload) == [{"x": 1, "tags": ["a"], "about": {}}]
    assert msgspec.json.decode(result) == {"x": 1, "tags": ["a"], "about": {}}


SEEN = [1, 2**63, -5, 1.5, True, None, "", "a\nb", 'a"\\\0é\u2028', "x" * 600, [1], {"a": [None]}, "after", 7]


@pytest.mark.parametrize("annotation", [Any, bool | int | float | str | list[int] | dict[str, Any] | None])
def test_many_items_are_written_as_each_of_them_would_be(annotation: Any) -> None:
    def take(item):
        return item

    take.__annotations__["item"] = annotation
    signature = Signature(take, "take")
    for items in (SEEN, SEEN * 200, [n for n in SEEN if not isinstance(n, list | dict)] * 300, []):
        together = list(signature.encode_items(iter(items)))
        assert together == [signature.encode_item(item, n) for n, item in enumerate(items)]


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, "\ud800", 1.5, "seven", True, None, {1}], ids=repr)
@pytest.mark.parametrize("place", [0, 3, 1234])
def test_the_one_of_many_items_that_cannot_be_sent_is_named(place: int, wrong: Any) -> None:
    def take(item: int) -> None: ...

    items = [*range(place), wrong, *range(1000)]
    with pytest.raises(fanin.BadPayload, match=f"^part {place}: argument 'item' of task take "):
        list(Signature(take, "take").encode_items(items))


def test_few_items_are_read_ahead_and_no_large_one() -> None:
    read: list[int] = []

    def items() -> Iterator[str]:
        for n in range(3000):
            read.append(n)
            yield "x" * (100_000 if n >= 1000 else 10)

    payloads = Signature(lambda text: text, "take").encode_items(items())
    for n, _ in enumerate(payloads):
        assert len(read) <= (n + 1 if n >= 1000 else n + 1 + codec.PLAIN_RUN)
