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
    with pytest.raises(fanin.NotAllowedNow, match="stream=True to finish it"):
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

    with pytest.raises(fanin.LimitExceeded, match="ends at its deadline"):
        app.map(echo, itertools.count(), key="once", stream=True)
    job = app.job("once")
    assert (job.status, job.progress().total) == ("open", 2_000)
    assert job.cancel("cannot be finished")
