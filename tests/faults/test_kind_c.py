"""Kind C: the set of parts must be whole, created once, and closed before the join can be judged."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

import fanin
from fanin.testing.crashpoints import VARIABLE
from tests.faults.crew import ROOT
from tests.protocol.helpers import say
from tests.runtime.working import until, working

CREATOR = """
import os, signal, sys
import fanin

app = fanin.App(sys.argv[1])

@app.task(name="echo")
def echo(x: int) -> int:
    return x

def items():
    for x in range(10_000):
        if x == 4_500 and sys.argv[2] == "streamed":
            os.kill(os.getpid(), signal.SIGKILL)
        yield x

from fanin.testing import crashpoints
crashpoints.install(app.store)
app.map(echo, items(), key="once", stream=sys.argv[2] == "streamed")
"""


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_F017_a_crash_while_the_parts_are_being_created(app: fanin.App, way: str) -> None:
    """whole: nothing stands. streamed: an open job without an end, that the same request finishes"""
    dead = subprocess.run(
        [sys.executable, "-c", CREATOR, app.url, way], timeout=60, cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {VARIABLE: "submit.before_commit=kill" if way == "whole" else ""},
    )  # fmt: skip
    assert dead.returncode == -signal.SIGKILL, dead.stderr

    @app.task(name="echo")
    def echo(x: int) -> int:
        return x

    if way == "whole":
        assert app.jobs() == []
    else:
        standing = app.job("once")
        assert (standing.status, standing.progress().total) == ("open", 4_000)
        assert standing.row().give_up_at is not None
    job = app.map(echo, range(10_000), key="once", stream=way == "streamed")
    assert app.map(echo, range(10_000), key="once", stream=way == "streamed").id == job.id
    assert len(app.jobs()) == 1
    assert (job.status, job.progress().total) == ("running", 10_000)
    with working(app):
        job.wait(60)
    assert (job.progress().succeeded, job.account()["ends"]) == (10_000, 1)


@pytest.mark.parametrize("where", ["in the fan-out", "after its commit", "after the splitter's own commit"])
def test_F018_a_splitter_that_is_tried_again_does_not_fan_out_twice(app: fanin.App, where: str) -> None:
    calls: list[int] = []

    @app.task
    def echo(x: int) -> int:
        return x

    def items() -> Any:
        yield from range(60)
        if where == "in the fan-out" and len(calls) == 1:
            raise ConnectionError("gone")
        yield from range(60, 100)

    @app.task(backoff=0)
    def split(x: int) -> list[str]:
        calls.append(x)
        first = app.map(echo, items())
        second = app.map(echo, range(3))
        if where == "after its commit" and len(calls) == 1:
            raise ConnectionError("gone")
        return [first.id, second.id]

    job = app.submit(split, 1).wait(90, run=True)
    if where == "after the splitter's own commit":
        job.redrive()
    children = job.children()
    assert len(calls) == (1 if where == "after the splitter's own commit" else 2)
    assert [child.id for child in children] == job.result()
    assert len({child.id for child in children}) == 2
    with working(app):
        for child, parts in zip(children, (100, 3), strict=True):
            assert child.wait(90).progress().succeeded == parts
            assert child.account()["ends"] == 1


def test_F018_parts_of_one_splitter_have_children_of_their_own(app: fanin.App) -> None:
    @app.task
    def echo(x: int) -> int:
        return x

    @app.task
    def split(x: int) -> str:
        return app.submit(echo, 7).id

    job = app.map(split, range(4), run=True).wait(90)
    assert len(set(job.results())) == 4
    assert {child.id for child in job.children()} == set(job.results())


def test_F018_a_zombie_fans_out_into_the_children_of_its_successor(app: fanin.App) -> None:
    """the fence cannot stop a zombie from asking; what it asks for stands already"""
    overtaken = threading.Event()

    @app.task
    def echo(x: int) -> int:
        return x

    @app.task(attempts=3)
    def split(x: int) -> str:
        if fanin.current().attempt == 1:
            assert overtaken.wait(90)
        return app.map(echo, range(5)).id

    job = app.submit(split, 1)
    with working(app, queues=["default"]):
        until(lambda: job.account()["attempts"] == 1, "the part is held")
        say(app.store, "UPDATE fanin.part SET due_at = 0")
        until(lambda: job.progress().ended, "another attempt has ended the job")
        overtaken.set()
        until(lambda: job.account()["stale_refused"] == 1, "the zombie has reported")
    assert [child.id for child in job.children()] == [job.result()]


def test_F017_a_request_that_was_streamed_is_the_same_as_a_whole_one(app: fanin.App) -> None:
    """the content decides, not the chunks in which it came; an open job is not taken for a whole one"""

    @app.task
    def echo(x: int) -> int:
        return x

    def broken() -> Any:
        yield from range(3_000)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        app.map(echo, broken(), key="once", stream=True)
    with pytest.raises(fanin.NotAllowedNow, match=r"with stream=True, or app\.open"):
        app.map(echo, range(3_100), key="once")
    first = app.map(echo, range(3_100), key="once", stream=True)
    assert app.map(echo, range(3_100), key="once").id == first.id
    assert app.map(echo, (x for x in range(3_100)), key="once", stream=True).id == first.id
    ways: list[dict[str, Any]] = [{"stream": True}, {}]
    for other in ways:
        with pytest.raises(fanin.KeyConflict, match="'once'"):
            app.map(echo, range(3_101), key="once", **other)
    assert (first.status, first.progress().total) == ("running", 3_100)


def test_F017_a_stream_of_too_many_parts_leaves_an_open_job_with_a_deadline(app: fanin.App) -> None:
    app.max_parts = 3_000

    @app.task
    def echo(x: int) -> int:
        return x

    with pytest.raises(
        fanin.LimitExceeded, match=r"more than .* parts, which is the most here: end with these, or allow more"
    ):
        app.map(echo, itertools.count(), key="once", stream=True)
    job = app.job("once")
    assert (job.status, job.progress().total) == ("open", 2_000)
    assert job.cancel("cannot be finished")


def test_F020_a_part_that_adds_parts_without_end_stops_at_the_width(app: fanin.App) -> None:
    """An endless generator is refused where the job is full; each part that adds one more stops there too."""

    @app.task(attempts=2, backoff=0)
    def dig(depth: int) -> int:
        fanin.current().spawn(itertools.count(depth + 1) if depth == 0 else [depth + 1], now=depth == 0)
        return depth

    job = app.map(dig, [0], grows=50, tolerate="50%", fail_fast=False)
    with working(app):
        job.wait(60)
    assert job.progress().total <= 50
    assert {failure.type for failure in job.failures()} == {"LimitExceeded"}
    assert all(failure.attempt == 1 for failure in job.failures())
    chain = app.map(dig, [1], grows=50, tolerate=1, fail_fast=False)
    with working(app):
        chain.wait(60)
    assert (chain.status, chain.progress().total) == ("completed", 50)
    (failure,) = chain.failures()
    assert "may have 50 parts" in failure.message


def test_F022_items_with_one_key_are_refused_at_the_submit_and_left_out_later(app: fanin.App) -> None:
    """In a job that grows, parts have keys; a planned count never differs from the rows."""

    @app.task(item_key=lambda item: item["key"])
    def take(item: dict[str, Any]) -> int:
        fanin.current().spawn([{"key": "a", "n": 9}, {"key": "c", "n": 3}, {"key": "c", "n": 4}])
        return int(item["n"])

    items = [{"key": "a", "n": 1}, {"key": "b", "n": 2}]
    with pytest.raises(fanin.KeyConflict, match="two items have one key"):
        app.map(take, [*items, {"key": "a", "n": 3}], grows=True)
    with pytest.raises(fanin.BadOption, match="a text is needed"):
        app.map(take, [{"key": "", "n": 1}], grows=True)
    assert app.jobs() == []
    job = app.map(take, items, grows=True)
    with working(app):
        assert sorted(job.result(60)) == [1, 2, 3]
    assert (job.row().planned_parts, job.row().sealed_parts, job.progress().total) == (2, 2, 3)


SPAWNER = """
import os, signal, sys
import fanin
from fanin.testing import crashpoints

app = fanin.App(sys.argv[1])

@app.task(name="visit", attempts=5, backoff=0, lease="1s")
def visit(page: int) -> int:
    fanin.current().spawn(range(page + 1, min(page + 40, 200)), now=page % 2 == 0)
    if page == 7 and fanin.current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return page

if __name__ == "__main__":
    crashpoints.install(app.store)
    app.run_worker(until_idle=True, concurrency=1)
"""


@pytest.mark.parametrize("point", ["complete.stripe", "complete.before_commit", "complete.after_commit", None])
def test_F018_a_spawner_that_is_killed_and_run_again_adds_each_part_once(
    migrated_url: str, tmp_path: Any, point: str | None
) -> None:
    """Killed in its handler, in its commit, or after it: every page is one part, and none is missing."""
    script = tmp_path / "spawner.py"
    script.write_text(SPAWNER)
    with fanin.App(migrated_url) as app:

        @app.task(name="visit")
        def visit(page: int) -> int:
            return page

        job = app.map(visit, [0], grows=True, attempts=5)
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        if point is not None:
            environment[VARIABLE] = f"{point}=kill"
        first = subprocess.run([sys.executable, str(script), migrated_url], env=environment, timeout=120)
        assert first.returncode == -signal.SIGKILL
        environment.pop(VARIABLE, None)
        while not job.progress().ended:
            subprocess.run([sys.executable, str(script), migrated_url], env=environment, timeout=240)
        assert sorted(job.result()) == list(range(200))
        assert job.progress().total == 200
