"""``fanin watch FLOW`` and ``FlowRun.wait(progress=True)``: a flow that moves, step by step."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest

import fanin
from fanin.cli import exits, main
from fanin.domain.flows import FlowProgress
from fanin.protocol import watching
from fanin.runtime import flow_progress

MANY = 1_000


class Screen(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def t(app: fanin.App) -> Any:
    class Tasks:
        @app.task(attempts=1)
        def rows(what: str) -> list[int]:
            return [1, 2, 3]

        @app.task(attempts=1)
        def double(number: int) -> int:
            return number * 2

        @app.task(attempts=1)
        def fail(what: str) -> str:
            raise fanin.Permanent("no room")

        @app.task(attempts=1)
        def back(what: list[int]) -> None: ...

    return Tasks


def trip(app: fanin.App, t: Any, *, fails: bool = False) -> fanin.FlowRun:
    flow = app.flow("trip", key="2026")
    flow.map(t.double, flow.step(t.rows, "x", name="rows"), name="seats")
    if fails:
        flow.step(t.fail, "x", name="hotel", after="seats")
    return flow.start()


def look(app: fanin.App, run: fanin.FlowRun, limit: int = 20) -> FlowProgress:
    found = app.store.read(lambda: watching.progress(app.store.bucket(run.id), run.id, limit))
    assert found is not None
    return found


def facts(found: FlowProgress) -> list[tuple[Any, ...]]:
    return [(step.name, step.status, step.total, step.remaining, step.failed) for step in found.steps]


def test_each_step_is_told_with_the_counts_of_its_job(app: fanin.App, t: Any) -> None:
    run = trip(app, t, fails=True)
    before = look(app, run)
    assert facts(before) == [
        ("rows", "running", 1, 1, 0), ("seats", "waiting", 0, 0, 0), ("hotel", "waiting", 0, 0, 0),
    ]  # fmt: skip
    assert (before.total, before.remaining, before.ended) == (3, 3, False)
    app.run_worker(until_idle=True)
    after = look(app, run)
    assert [step.job_id for step in after.steps] == [run.job(step.name).id for step in after.steps]
    assert [(step.total, step.remaining, step.failed) for step in after.steps] == [(1, 0, 0), (3, 0, 0), (1, 0, 1)]
    assert all(step.started_at and step.ended_at and step.started_at <= step.ended_at for step in after.steps)
    assert (after.remaining, after.ended, sum(after.states.values())) == (0, True, 3)
    said = flow_progress.lines(after, 200)
    assert said[1].startswith("  seats  ")
    assert "  3/3  ████████████  " in said[1]
    assert said[2].endswith("failed 1")
    assert said[3].startswith(f"{run.status}: 3/3 steps  ")


def test_an_undo_is_told_by_the_parts_of_what_undoes_it(app: fanin.App, t: Any) -> None:
    flow = app.flow("back")
    flow.step(t.fail, "x", name="bad", after=flow.step(t.rows, "x", name="good", undo=t.back))
    run = flow.start()
    app.run_worker(until_idle=True)
    assert run.status == "compensated"
    good, bad = look(app, run).steps
    undo = run.steps()[0].undo_job_id
    assert (good.status, good.total, good.remaining) == ("undone", 1, 0)
    assert undo is not None
    assert fanin.Job(app, undo).children() == [fanin.Job(app, str(good.job_id))]
    assert bad.failed == 1


def test_a_step_tells_what_its_undoing_hides_and_what_is_paused_or_abandoned(app: fanin.App, t: Any) -> None:
    flow = app.flow("back")
    flow.step(t.fail, "x", name="bad", after=flow.step(t.rows, "x", name="good", undo=t.back))
    run = flow.start()
    app.run_worker(until_idle=True)
    assert sorted(step.stands for step in look(app, run).steps) == ["failed, nothing_to_undo", "undone"]
    paused = app.flow("paused")
    paused.step(t.double, 1, name="last", after=paused.map(t.double, [1, 2, 3], name="seats"), on="any")
    run = paused.start()
    run.job("seats").pause()
    assert [step.stands for step in look(app, run).steps] == ["running, paused", "waiting"]
    run.job("seats").skip(0, result=2)
    run.job("seats").finish()
    (seats, _) = look(app, run).steps
    assert (seats.stands, seats.total, seats.remaining, seats.abandoned) == ("done", 3, 0, 2)
    assert "  1/3  ████░░░░░░░░  " in flow_progress.lines(look(app, run), 79)[0]
    assert flow_progress.lines(look(app, run), 79)[0].endswith("abandoned 2")


def test_nothing_remains_of_a_step_that_was_cancelled(app: fanin.App, t: Any) -> None:
    flow = app.flow("stopped")
    flow.map(t.double, [1, 2, 3], name="seats")
    run = flow.start()
    assert facts(look(app, run)) == [("seats", "running", 3, 3, 0)]
    run.cancel("enough")
    ((_, _, total, remaining, _),) = facts(look(app, run))
    assert (total, remaining) == (3, 0)


def test_of_many_steps_those_that_run_are_told_in_few_statements(app: fanin.App, t: Any) -> None:
    flow = app.flow("wide")
    first = [flow.step(t.rows, "x", name=f"first-{n}") for n in range(30)]
    for n in range(MANY - 30):
        flow.step(t.double, n, name=f"then-{n}", after=first[0])
    run = flow.start()
    asked = []

    def counted() -> Generator[Any, Any, Any]:
        told = watching.progress(app.store.bucket(run.id), run.id, 20)
        rows = None
        while True:
            try:
                statement = told.send(rows)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value
            asked.append(statement)
            rows = yield statement

    found = app.store.read(counted)
    assert len(asked) == 4
    assert found.states == {"running": 30, "waiting": MANY - 30}
    assert [step.name for step in found.steps] == [f"first-{n}" for n in range(20)]
    said = flow_progress.lines(found, 60)
    assert len(said) == 23
    assert said[20] == "  … and 10 more"
    assert said[21].startswith("running: 0/1000 steps")
    assert said[22] == "  970 waiting, 30 running"
    assert max(map(len, said)) <= 60


def test_wait_shows_the_steps_in_place_on_a_terminal(app: fanin.App, t: Any, monkeypatch: Any) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    run = trip(app, t)
    assert run.wait("60s", progress=True, run=True) is run
    text = screen.getvalue()
    looks = text.split("\r\x1b[J")[1:]
    assert len(looks) > 1
    assert all(one.endswith("\x1b[2A") for one in looks[:-1])  # back to the first of three lines
    last = looks[-1].splitlines()
    assert [line.split()[:3] for line in last[:2]] == [["rows", "done", "1/1"], ["seats", "done", "3/3"]]
    assert last[2].startswith("completed: 2/2 steps")
    assert text.endswith("2 done\n")


def test_what_follows_a_wait_that_was_given_up_has_a_line_of_its_own(app: fanin.App, t: Any, monkeypatch: Any) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with pytest.raises(fanin.WaitTimeout):
        trip(app, t).wait(0, progress=True)
    assert screen.getvalue().endswith("1 waiting, 1 running\n")


def test_wait_shows_the_whole_in_a_log(app: fanin.App, t: Any, capsys: Any) -> None:
    run = trip(app, t)
    run.wait("60s", progress=True, run=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("completed: 2/2 steps")
    with pytest.raises(fanin.WaitTimeout):
        app.flow_run(_second(app, t)).wait(0, progress=True)


def _second(app: fanin.App, t: Any) -> str:
    flow = app.flow("second")
    flow.step(t.rows, "x")
    return flow.start().id


def test_wait_shows_a_flow_in_an_async_program(app: fanin.App, t: Any, capsys: Any) -> None:
    run = trip(app, t)

    async def wait() -> str:
        async with fanin.AsyncApp(app.url) as there:
            same = await (await there.flow_run(run.id)).wait("60s", progress=True)
            return same.id

    app.run_worker(until_idle=True)
    assert asyncio.run(wait()) == run.id
    assert "completed: 2/2 steps" in capsys.readouterr().err


@pytest.mark.parametrize(("fails", "code", "end"), [(False, exits.OK, "completed"), (True, exits.FAILED, "failed")])
def test_watch_says_by_its_exit_code_how_a_flow_ended(
    app: fanin.App, t: Any, capsys: Any, fails: bool, code: int, end: str
) -> None:
    run = trip(app, t, fails=fails)
    app.run_worker(until_idle=True)
    assert run.status in (end, "compensated")
    assert main(["watch", "2026", "--url", app.url]) == code
    whole, last = capsys.readouterr().err.splitlines()
    assert whole.startswith(f"{run.status}: ")
    assert last.startswith(f"fanin: flow {run.id[:13]} (trip) {run.status}")
    assert main(["watch", "2026", "--tree", "--url", app.url]) == exits.USAGE
    assert "--tree: 2026 is a flow" in capsys.readouterr().err


def test_watch_tells_programs_whenever_a_flow_has_moved(app: fanin.App, t: Any, capsysbinary: Any) -> None:
    run = trip(app, t)
    worker = threading.Timer(0.3, lambda: app.run_worker(until_idle=True))
    worker.start()
    assert main(["watch", run.id, "--json", "--interval", "0.01", "--url", app.url]) == exits.OK
    worker.join()
    told = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert told[0]["states"] == {"running": 1, "waiting": 1}
    assert told[-1]["status"] == "completed"
    assert [(step["name"], step["total"], step["remaining"]) for step in told[-1]["steps"]] == [
        ("rows", 1, 0), ("seats", 3, 0),
    ]  # fmt: skip
    assert all(one != other for one, other in pairwise(told))
