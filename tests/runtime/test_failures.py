"""What a handler raises becomes an outcome of its part: recorded, bounded, and never the end of the worker."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import pickle
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.runtime import outcome
from tests.runtime import process_tasks
from tests.runtime.rows import execute
from tests.runtime.working import until, working

YEAR = limits.DELAY_SECONDS_MAX


class Needy(Exception):
    def __init__(self, first: object, second: object) -> None:
        super().__init__()
        self.lock = threading.Lock()  # cannot be pickled


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Hostile(Exception):
    """Whose own methods raise what is no ``Exception``."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Giant(Exception):
    def __str__(self) -> str:
        return "\x00\U0001f600" * 5_000_000


class Own(BaseException):
    pass


def cycle() -> BaseException:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def deep() -> BaseException:
    found: BaseException = ValueError("the first")
    for n in range(3_000):
        outer = ValueError(n)
        outer.__cause__ = found
        found = outer
    return found


RAISED: list[tuple[str, Callable[[], BaseException]]] = [
    ("SystemExit", lambda: SystemExit(0)),
    ("SystemExit", lambda: SystemExit(1)),
    ("KeyboardInterrupt", KeyboardInterrupt),
    ("GeneratorExit", GeneratorExit),
    ("CancelledError", asyncio.CancelledError),
    ("Own", Own),
    ("Needy", lambda: Needy(1, 2)),
    ("Unprintable", Unprintable),
    ("Hostile", Hostile),
    ("NoText", NoText),
    ("Giant", Giant),
    ("ValueError", lambda: ValueError("\ud800 and \x00")),
    ("ValueError", cycle),
    ("ValueError", deep),
    ("ExceptionGroup", lambda: ExceptionGroup("many", [ValueError(n) for n in range(1_000)])),
    ("StopIteration", StopIteration),
]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_whatever_a_handler_raises_is_its_own_failure(app: fanin.App, kind: str) -> None:
    """F044, F045: recorded with its type, retried by the rule, and the worker serves the next part"""

    def body(x: int) -> int:
        if x < len(RAISED):
            raise RAISED[x][1]()
        return x

    async def coroutine(x: int) -> int:
        return body(x)

    function: Any = coroutine if kind == "async" else body
    task: Any = app.task(name="t", attempts=2, backoff=0)(function)
    job = app.map(task, range(len(RAISED) + 3), tolerate="100%", fail_fast=False)
    with working(app, concurrency=2):
        job.wait(60)
    assert list(job.results()) == [len(RAISED) + n for n in range(3)]
    failures = job.failures()
    expected = [name for name, _ in RAISED]
    if kind == "async":
        expected[-1] = "RuntimeError"  # Python itself turns StopIteration in a coroutine into this
    assert [f.type for f in failures] == expected
    told = f"SELECT error FROM {{attempt_log}} WHERE job_id = '{job.id}' AND what "
    assert len(execute(app.store, told + "= 'retried'")) == len(RAISED)
    errors = execute(app.store, told + "IN ('retried', 'failed')")
    assert len(errors) == 2 * len(RAISED)
    assert max(len(error.encode()) for (error,) in errors) <= limits.ERROR_BYTES


def test_a_recorded_failure_is_bounded_in_bytes_whatever_stands_in_it() -> None:
    for text in ("x", "\x00", "\U0001f600", "\ud800", '"', "\\", "\u2028", "\n"):
        error = outcome.error_json("T" * 10_000, text * 100_000, text * 100_000)
        assert len(error.encode()) <= limits.ERROR_BYTES, repr(text)
        assert set(json.loads(error)) == {"type", "message", "traceback"}


def test_both_ends_of_a_long_traceback_are_kept() -> None:
    def down(n: int) -> None:
        if n == 0:
            raise ValueError("the very bottom" + "-" * 20_000)
        down(n - 1) if n % 2 else sideways(n - 1)

    def sideways(n: int) -> None:
        down(n)

    try:
        down(150)
    except ValueError as problem:
        found = json.loads(outcome.describe(problem))
    assert "in test_both_ends" in found["traceback"]
    assert "characters cut" in found["traceback"]
    assert found["message"].startswith("the very bottom")


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_filter_may_be_one_class_or_a_tuple(app: fanin.App, kind: str) -> None:
    for n, give_up_on in enumerate((KeyError, (KeyError, OSError), ())):
        for retry_on in (LookupError, (LookupError,)):
            calls: list[int] = []

            def body(x: int, calls: list[int] = calls) -> int:
                calls.append(x)
                raise (KeyError, IndexError, ValueError)[x]

            async def coroutine(x: int) -> int:
                return body(x)

            function: Any = coroutine if kind == "async" else body
            options: Any = {"give_up_on": give_up_on, "retry_on": retry_on}
            task: Any = app.task(name=f"t{n}{retry_on}", attempts=3, backoff=0, **options)(function)
            job = app.map(task, range(3), tolerate=3, run=True).wait(90)
            attempts = [failure.attempt for failure in job.failures()]
            assert attempts == [1 if give_up_on else 3, 3, 1]
            assert sorted(calls) == sorted(n for n, many in enumerate(attempts) for _ in range(many))


@pytest.mark.parametrize("bad", [1, "ValueError", [ValueError], (1,), ValueError("x"), int])
def test_a_filter_that_is_no_exception_class_is_refused_where_the_task_is_made(sqlite_url: str, bad: Any) -> None:
    app = fanin.App(sqlite_url)
    for option in ("retry_on", "give_up_on"):
        with pytest.raises(fanin.BadOption, match=option):
            app.task(name="t", **{option: bad})(lambda x: x)


@pytest.mark.parametrize("field", ["first", "factor", "cap", "jitter"])
@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "1s", None])
def test_a_back_off_that_cannot_work_is_refused(field: str, bad: Any) -> None:
    with pytest.raises(fanin.BadOption, match=field):
        fanin.Backoff(**{field: bad})


def test_jitter_is_at_most_all_of_the_delay() -> None:
    with pytest.raises(fanin.BadOption, match="jitter"):
        fanin.Backoff(jitter=1.5)


def test_the_back_off_never_overflows_and_stays_in_its_bounds() -> None:
    """F050"""
    backoff = fanin.Backoff(first=5, factor=10, cap=3600, jitter=0.5)
    for attempt in [1, 2, 46, 47, 255, 256, 1_024, 32_767, 32_768, 10**6, sys.maxsize]:
        full = min(5 * 10.0 ** min(attempt - 1, 200), 3600)
        for draw in (None, 0.0, 0.5, 0.999999):
            found = backoff.delay(attempt, draw)
            assert full * 0.5 <= found <= full
    assert fanin.Backoff(cap=1e300, factor=1e300).delay(3) <= limits.DELAY_SECONDS_MAX
    assert fanin.Backoff(first=0, factor=0).delay(1) == 0
    assert fanin.Backoff(first=0).delay(5_000) == 0
    spread = {backoff.delay(10) for _ in range(50)}
    assert len(spread) > 40


def test_retry_later_names_its_own_delay_and_costs_an_attempt(app: fanin.App) -> None:
    @app.task(attempts=3, backoff=3600)
    def work(x: int) -> int:
        if fanin.current().attempt < 3:
            raise fanin.RetryLater(0, "not yet")
        return x

    job = app.map(work, [7], run=True)
    assert job.result(90) == 7
    assert [(entry["what"], entry["attempt"]) for entry in job.history()] == [("retried", 1), ("retried", 2)]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0), (1.5, 1.5), ("30s", 30.0), ("1h30m", 5400.0), (timedelta(minutes=1), 60.0), (10**400, YEAR),
        (math.inf, YEAR), (-1, 0.0), (math.nan, 0.0), ("soon", 0.0), (None, 0.0), (True, 0.0), ([], 0.0),
    ],
)  # fmt: skip
def test_retry_later_understands_a_time_as_other_options_do(given: Any, seconds: float) -> None:
    assert fanin.RetryLater(given).seconds == seconds
    assert pickle.loads(pickle.dumps(fanin.RetryLater(given, "quota"))).seconds == seconds


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1, "soon", None, 10**400])
def test_retry_later_with_a_senseless_time_still_counts(app: fanin.App, seconds: Any) -> None:
    @app.task(attempts=1)
    def work(x: int) -> int:
        raise fanin.RetryLater(seconds)

    assert app.map(work, [7], run=True).wait(90).failures()[0].type == "RetryLater"


@pytest.mark.parametrize(
    "problem",
    [
        fanin.Permanent("no"),
        fanin.LimitExceeded("no"),
        fanin.BadPayload("no"),
        fanin.KeyConflict("no"),
        fanin.BadOption("no"),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_what_another_attempt_would_meet_again_is_not_tried_again(app: fanin.App, problem: Exception) -> None:
    @app.task(attempts=5, backoff=0)
    def work(x: int) -> int:
        raise problem

    (failure,) = app.map(work, [7], run=True).wait(90).failures()
    assert (failure.attempt, failure.type, failure.message) == (1, type(problem).__name__, "no")


def test_a_database_that_is_away_is_never_a_failure_of_the_part(app: fanin.App) -> None:
    """F062, I11: also where a handler meets it"""
    calls: list[int] = []

    @app.task(attempts=1, backoff=0)
    def work(x: int) -> int:
        calls.append(fanin.current().attempt)
        if len(calls) < 3:
            raise fanin.StoreUnreachable("cannot reach it")
        return x

    job = app.map(work, [7], run=True)
    assert job.result(90) == 7
    assert calls == [1, 2, 3]
    assert [entry["what"] for entry in job.history()] == ["released", "released"]


def test_a_part_that_waits_for_its_retry_keeps_the_job_running(app: fanin.App) -> None:
    """F008"""
    fails = threading.Semaphore(3)

    @app.task(attempts=6, backoff=fanin.Backoff(first=1.0, factor=1, jitter=0))
    def work(x: int) -> int:
        if x == 2 and fails.acquire(blocking=False):
            raise ValueError(x)
        return x

    job = app.map(work, range(5))
    statuses = set()
    with working(app):

        def four_done() -> bool:
            progress = job.progress()
            statuses.add(progress.status if progress.remaining else "running")
            return progress.succeeded == 5

        until(four_done, "all parts have ended")
    assert statuses == {"running"}
    history = job.history()
    assert [(e["what"], e["idx"], e["attempt"]) for e in history] == [("retried", 2, n) for n in (1, 2, 3)]
    assert job.account()["events"] == 1
    gaps = [b["at"] - a["at"] for a, b in itertools.pairwise(history)]
    assert all(gap >= 0.2 for gap in gaps), "the wait of a second begins a little before the line of it is written"


def test_a_child_that_dies_costs_its_part_an_attempt_and_the_others_nothing(app: fanin.App) -> None:
    """F026, F046"""
    app.tasks.update(process_tasks.app.tasks)
    job = app.map(process_tasks.dies_on_three, range(6), tolerate=1, fail_fast=False)
    with working(app, concurrency=2):
        job.wait(60)
    (failure,) = job.failures()
    assert (failure.idx, failure.attempt, failure.type) == (3, 2, "WorkerLost")
    assert list(job.results()) == [0, 1, 2, 4, 5]
    assert job.account()["attempts"] == 7


def test_a_child_resumes_from_the_checkpoint_of_the_one_that_died(app: fanin.App) -> None:
    app.tasks.update(process_tasks.app.tasks)
    with working(app, concurrency=1):
        assert app.map(process_tasks.checkpoints, [40]).result(60) == 42


def test_a_child_reports_an_exception_that_cannot_be_pickled(app: fanin.App) -> None:
    """F045"""
    app.tasks.update(process_tasks.app.tasks)
    with working(app, concurrency=1):
        (failure,) = app.map(process_tasks.raises_what_cannot_be_pickled, [1]).wait(60).failures()
    assert failure.type == "raises_what_cannot_be_pickled.<locals>.Local"


def test_the_log_says_why_a_part_has_failed(app: fanin.App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(attempts=1)
    def work(text: str) -> None:
        raise ValueError(text)

    job = app.map(work, ["one line\nand another"])
    with caplog.at_level("WARNING", logger="fanin"):
        app.run_worker(until_idle=True)
    (said,) = [record.getMessage() for record in caplog.records if "failed for good" in record.getMessage()]
    assert said == f"job {job.id} part 0 failed for good at attempt 1: ValueError: one line"
