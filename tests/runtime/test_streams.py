"""Streams that meet somebody else: an end before their last item, or the same request made twice at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.protocol import read


@pytest.fixture
def work(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> fanin.Task[[int], int]:
    monkeypatch.setattr(limits, "CHUNK_PARTS", 2)

    @app.task
    def work(number: int) -> int:
        return number

    return work


def test_the_parts_of_a_stream_wait_as_long_as_those_of_a_whole_job(app: fanin.App, work: Any) -> None:
    job = app.map(work, range(3), delay=3600, stream=True)
    for idx in range(3):
        part = app.store.read(partial(read.part, 0, job.id, idx))
        assert part is not None
        assert part["due_at"] >= job.row().created_at + 3600


ENDS: dict[str, Callable[[fanin.App], object]] = {
    "cancelled": lambda app: app.job("k").cancel(),
    "completed": lambda app: app.run_worker(until_idle=True),
}


@pytest.mark.parametrize("status", ENDS)
@pytest.mark.parametrize("last", [4, None])
def test_a_stream_whose_job_ends_early_gives_the_job(app: fanin.App, work: Any, status: str, last: int | None) -> None:
    """Without an end too: the rest is not read."""

    def items() -> Iterator[int]:
        yield from range(3)
        ENDS[status](app)
        yield from range(3, last) if last else itertools.count(3)

    job = app.map(work, items(), key="k", stream=True, quorum=1)
    assert (job.status, job.progress().total) == (status, 2)
    assert app.map(work, range(9), key="k", stream=True, quorum=1) == job
    with pytest.raises(fanin.KeyConflict, match="another payload"):
        app.map(work, range(1, 9), key="k", stream=True, quorum=1)


@pytest.mark.parametrize("same", [True, False])
def test_a_stream_that_another_has_sealed_meanwhile_is_the_same_request_or_a_conflict(
    app: fanin.App, work: Any, same: bool
) -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        app.map(work, range(5), key="k", stream=True)
        yield from range(3, 5 if same else 6)

    if same:
        assert app.map(work, items(), key="k", stream=True).progress().total == 5
    else:
        with pytest.raises(fanin.KeyConflict):
            app.map(work, items(), key="k", stream=True)


def test_a_job_that_ended_before_all_of_its_parts_had_come_is_not_taken_for_the_whole(
    app: fanin.App, work: Any
) -> None:
    def items() -> Iterator[int]:
        yield from range(2)
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        app.map(work, items(), key="k", stream=True)
    job = app.job("k")
    job.cancel()
    assert app.map(work, range(5), key="k", stream=True) == job, "the same request, as far as it came"
    with pytest.raises(fanin.KeyConflict, match="another payload"):
        app.map(work, range(1, 5), key="k", stream=True)
    with pytest.raises(fanin.KeyConflict, match="other options"):
        app.map(work, range(5), key="k", stream=True, attempts=7)
    with pytest.raises(fanin.KeyConflict, match="before all of its parts had come"):
        app.map(work, range(5), key="k")
    assert job.redrive() == 2
    assert job.wait(60, run=True).status == "completed"
    for stream in (True, False):
        with pytest.raises(fanin.KeyConflict, match="before all of its parts had come"):
            app.map(work, range(5), key="k", stream=stream)
