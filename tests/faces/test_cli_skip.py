"""``fanin skip``: what a part is said to have returned goes on to others, so it is to be said, and is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.cli import exits, main
from fanin.runtime.worker import Worker

MODULE = """
import fanin

app = fanin.App()

@app.task(name="approve")
def approve(order: str) -> str:
    return order

@app.task(name="tidy")
def tidy(order: str) -> None: ...

@app.task(name="ship")
def ship(approved: fanin.Joined[str]) -> int:
    return len(approved)
"""


@pytest.fixture
def code(app: fanin.App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The tasks of `MODULE`, in this application and in the module ``orders`` of the current folder."""
    import sys

    (tmp_path / "orders.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FANIN_URL", app.url)

    @app.task(name="approve")
    def approve(order: str) -> str:
        return order

    @app.task(name="tidy")
    def tidy(order: str) -> None: ...

    @app.task(name="ship")
    def ship(approved: fanin.Joined[str]) -> int:
        return len(approved)

    @app.task(name="nest")
    def nest(order: str) -> Any:
        return fanin.current().fan_out(approve, [order], queue="nobody serves it")

    yield app.tasks
    sys.modules.pop("orders", None)


def said(app: fanin.App, capsys: Any, *words: str, code: int = exits.OK) -> str:
    capsys.readouterr()
    assert main([*words, "--url", app.url]) == code
    found = capsys.readouterr()
    return str(found.out + found.err)


def test_a_result_that_a_successor_gets_has_to_be_said(app: fanin.App, code: dict[str, Any], capsys: Any) -> None:
    job = app.map(code["approve"], ["a", "b"], then=code["ship"])
    told = said(app, capsys, "skip", job.id, "0", code=exits.USAGE)
    assert f"part 0 of job {job.id[:13]}: task ship, which follows it, gets its result, so say what that is" in told
    told = said(app, capsys, "skip", job.id, "0", "--result", '"a"')
    assert "part 0 of job" in told
    assert "task ship, which follows it, gets its result, which was not checked: --app MODULE:APP does that" in told
    assert "was not checked" not in said(app, capsys, "skip", job.id, "1", "--failed")
    assert "is succeeded: only a part" in said(app, capsys, "skip", job.id, "0", code=exits.USAGE)


def test_so_has_one_that_a_part_waits_for(app: fanin.App, code: dict[str, Any], capsys: Any) -> None:
    job = app.map(code["nest"], ["a"])
    Worker(app).run(until=lambda: bool(job.children()))
    (nested,) = job.children()
    assert f"part 0 of job {job.id}, which waits for it, gets its result" in said(
        app, capsys, "skip", nested.id, "0", code=exits.USAGE
    )


def test_and_one_that_other_steps_or_an_undo_get(app: fanin.App, code: dict[str, Any], capsys: Any) -> None:
    flow = app.flow("order")
    mapped = flow.map(code["approve"], ["a"], name="mapped")
    undone = flow.step(code["approve"], "b", name="undone", undo=code["tidy"])
    last = flow.step(code["ship"], after=mapped, name="last")
    run = flow.start()
    told = said(app, capsys, "skip", run.job(mapped.name).id, "0", code=exits.USAGE)
    assert "the steps behind step 'mapped' of its flow, gets its result" in told
    told = said(app, capsys, "skip", run.job(undone.name).id, "0", code=exits.USAGE)
    assert "what undoes step 'undone' of its flow, gets its result" in told
    said(app, capsys, "skip", run.job(mapped.name).id, "0", "--result", '"a"')
    assert "counts as done" in said(app, capsys, "skip", run.job(last.name).id, "0")


def test_the_part_that_makes_the_job_of_a_step_has_no_result(app: fanin.App, code: dict[str, Any], capsys: Any) -> None:
    flow = app.flow("order")
    flow.map(code["approve"], flow.map(code["approve"], ["a"], name="first"), name="second")
    run = flow.start()
    said(app, capsys, "skip", run.job("first").id, "0", "--result", '"a"')
    told = said(app, capsys, "skip", run.job("second").id, "0", "--result", "1", code=exits.USAGE)
    assert "makes the job of a step, and has no result of its own" in told


def test_a_result_is_checked_by_the_code(app: fanin.App, code: dict[str, Any], capsys: Any) -> None:
    job = app.map(code["approve"], ["a", "b"], then=code["ship"])
    told = said(app, capsys, "skip", job.id, "0", "--app", "orders:app", "--result", '{"a": 5}', code=exits.USAGE)
    assert "the result of part 0 does not fit str" in told
    told = said(app, capsys, "skip", job.id, "0", "--app", "orders:app", code=exits.USAGE)
    assert "the result of part 0 does not fit str" in told
    assert job.progress().remaining == 2
    found = json.loads(said(app, capsys, "skip", job.id, "0", "--app", "orders:app", "--result", '"a"', "--json"))
    assert (found["checked"], found["ended"]) == (True, False)
    found = json.loads(said(app, capsys, "skip", job.id, "1", "--result", '"b"', "--json"))
    assert (found["checked"], found["ended"]) == (False, True)
    nothing = app.map(code["tidy"], ["a", "b"])
    assert "counts as done" in said(app, capsys, "skip", nothing.id, "0", "--app", "orders:app")
    other = app.map(code["nest"], ["a"])
    assert "orders:app has no task 'nest': it has approve, tidy, ship" in said(
        app, capsys, "skip", other.id, "0", "--app", "orders:app", code=exits.USAGE
    )


def test_a_job_that_nothing_follows_takes_null(app: fanin.App, code: dict[str, Any], capsys: Any) -> None:
    job = app.map(code["tidy"], ["a", "b"])
    assert "counts as done; 1 parts are not done\n" in said(app, capsys, "skip", job.id, "0")
