"""What a worker claims, from which queues, when it thinks that nothing is left, and what it does with its reports."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import fanin
from fanin.runtime.worker import Worker
from fanin.stores.base import Store
from tests.runtime.working import Renewals, until, working


def test_an_unknown_task_in_the_queue_is_left_alone(app: fanin.App, migrated_url: str) -> None:
    """F111"""
    other = fanin.App(migrated_url)
    for place in (app, other):

        @place.task(name="known")
        def known(x: int) -> int:
            return x

    @other.task(name="unknown")
    def unknown(x: int) -> int:
        return -x

    waiting = other.map(unknown, range(300))
    job = app.map(app.tasks["known"], range(3))
    app.run_worker(until_idle=True)  # ends, though the queue is not empty
    assert list(job.results()) == [0, 1, 2]
    assert waiting.account()["attempts"] == 0
    other.run_worker(until_idle=True)
    assert waiting.status == "completed"
    other.close()


def test_a_worker_serves_the_queues_it_is_given_and_successors_go_to_theirs(app: fanin.App) -> None:
    @app.task(queue="left")
    def left(x: int) -> int:
        return x

    @app.task(queue="right")
    def right(found: fanin.Joined[int]) -> int:
        return sum(found)

    job = app.map(left, range(5), then=right)
    Worker(app, queues=["left"]).run(until_idle=True)
    assert job.status == "completed"
    follower = job.successor
    assert follower is not None
    assert (follower.status, follower.row().queue) == ("running", "right")
    app.run_worker(until_idle=True)
    assert follower.result(90) == 10
    moved = app.map(left, range(2), queue="right")
    Worker(app, queues=["left"]).run(until_idle=True)
    assert moved.progress().remaining == 2
    Worker(app, queues=["nowhere", "right"]).run(until_idle=True)
    assert moved.progress().remaining == 0


def test_a_busy_queue_does_not_starve_another(app: fanin.App) -> None:
    order: list[str] = []

    @app.task(queue="a")
    def work(x: str) -> None:
        order.append(x)

    app.map(work, ["a"] * 400)
    app.map(work, ["b"] * 40, queue="b")
    Worker(app, queues=["a", "b"], concurrency=1, batch=10).run(until_idle=True)
    assert order.index("b") < 100


def test_two_workers_with_the_same_name_do_not_take_each_other_for_themselves(
    app: fanin.App, renewals: Renewals
) -> None:
    """F027"""
    both = threading.Barrier(2)

    @app.task
    def work(x: int) -> int:
        if x < 2:
            part = fanin.current()
            both.wait(90)
            until(lambda: renewals.enough(part), "it is renewed")
        return x

    job = app.map(work, range(40))
    with working(app, name="pod-0", concurrency=1, batch=1), working(app, name="pod-0", concurrency=1, batch=1):
        assert job.result(90) == list(range(40))
    assert job.account()["attempts"] == 40


def test_until_idle_waits_for_what_is_delayed_and_for_what_others_hold(app: fanin.App) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @app.task(queue="q")
    def work(x: int) -> int:
        begun.set()
        assert x or go_on.wait(90)
        return x

    @app.task(queue="q")
    def after(found: fanin.Joined[int]) -> int:
        return sum(found)

    delayed = app.map(work, [1], delay=0.6)
    held = app.map(work, [0], then=after)
    with working(app, queues=["q"], concurrency=1):
        assert begun.wait(90)
        ended = threading.Event()

        def idle() -> None:
            Worker(app, queues=["q"]).run(until_idle=True)
            ended.set()

        thread = threading.Thread(target=idle)
        thread.start()
        delayed.wait(90)
        assert not ended.wait(0.5)
        go_on.set()
        assert ended.wait(90)
        thread.join()
    assert held.successor is not None
    assert held.successor.status == "completed"


def test_a_short_part_is_reported_at_once_beside_a_long_one(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop rests because nothing is left to claim; what ends then must not wait for a poll."""
    monkeypatch.setattr("fanin.runtime.worker.POLL_SECONDS", 3600.0)
    go_on = threading.Event()
    begun = threading.Semaphore(0)

    @app.task
    def work(x: int) -> int:
        if x < 0:
            begun.release()
            assert go_on.wait(90)
        return x

    with working(app, concurrency=2) as worker:
        app.map(work, range(2_000)).wait(60)  # so that it knows handlers to be short
        long = app.map(work, [-1])
        assert begun.acquire(timeout=90)
        for _ in range(5):
            until(lambda: worker._resting, "the worker rests")
            app.map(work, [1]).wait(60)
        go_on.set()
        long.wait(90)


def test_what_a_listener_of_parts_raises_does_not_stop_the_worker(app: fanin.App) -> None:
    @app.task
    def work(x: int) -> int:
        return x

    def broken(*_: Any) -> None:
        raise ValueError("of the listener")

    job = app.map(work, range(20))
    with working(app, on_part=broken):
        assert job.result(90) == list(range(20))
    assert job.account()["attempts"] == 20


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"batch": 0}, {"batch": 257}], ids=["no handler", "no batch", "a batch too large"]
)
def test_a_worker_that_cannot_work_is_refused(sqlite_url: str, options: dict[str, int]) -> None:
    app = fanin.App(sqlite_url)
    with pytest.raises(fanin.BadOption, match="no tasks"):
        Worker(app)
    app.task(name="t")(lambda x: x)
    with pytest.raises(fanin.BadOption, match=next(iter(options))):
        Worker(app, **options)  # type: ignore[arg-type]


class Flaky:
    """A store whose writing transactions fail when the test says so; everything else is passed on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.fail = False
        self.failed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def run(self, factory: Any) -> Any:
        if self.fail:
            self.failed += 1
            raise fanin.StoreUnreachable("as if it were away")
        return self._store.run(factory)


def test_reports_outlive_a_database_that_is_away_and_none_is_said_twice(app: fanin.App) -> None:
    """F062: what was done while it was away is committed when it is back, once"""
    go_on = threading.Event()
    calls: list[int] = []
    heard: list[tuple[int, str]] = []

    @app.task
    def work(x: int) -> int:
        calls.append(x)
        assert go_on.wait(90)
        return x

    job = app.map(work, range(8))
    flaky = Flaky(app.store)
    holder: Any = type(
        "Holder",
        (),
        {
            "store": flaky,
            "tasks": app.tasks,
            "url": app.url,
            "schedules": app.schedules,
            "effects": app.effects,
            "max_parts": app.max_parts,
        },
    )()
    listener = lambda report, answer: heard.append((report.claim.idx, answer.verdict.value))  # noqa: E731
    with working(holder, concurrency=4, on_part=listener):
        until(lambda: len(calls) >= 4, "four are running")
        flaky.fail = True
        go_on.set()
        until(lambda: flaky.failed >= 2, "it has tried twice")
        assert heard == []
        flaky.fail = False
        assert job.result(90) == list(range(8))
    assert sorted(calls) == list(range(8))
    assert sorted(idx for idx, _ in heard) == list(range(8))
    assert {verdict for _, verdict in heard} <= {"ok", "last", "OK", "LAST"}
    assert job.account()["attempts"] == 8
