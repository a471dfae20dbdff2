"""How far a job is with all that its parts have ended with, from the call and from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

import fanin
from fanin.cli import main
from fanin.runtime.worker import Worker


def planted(app: fanin.App) -> fanin.Job:
    """Two parts that nest, one of them two levels deep; a leaf of it fails."""

    @app.task
    def add(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task(attempts=1)
    def node(number: int) -> Any:
        if number == 0:
            return 1
        if number == -1:
            raise ValueError("a bad leaf")
        return fanin.current().fan_out(node, [number - 1, 0, -1], then=add, tolerate=1)

    return app.map(node, [1, 2, 0], key="tree")


def test_the_progress_of_a_tree_counts_the_parts_of_all_its_jobs(app: fanin.App) -> None:
    job = planted(app)
    assert (job.progress(tree=True), job.progress().jobs) == (job.progress(), 1)
    app.run_worker(until_idle=True)
    own, tree = job.progress(), job.progress(tree=True)
    assert (own.total, own.succeeded, own.jobs) == (3, 3, 1)
    # Three jobs of three parts each below it, and their three joins of one part each.
    assert (tree.jobs, tree.total, tree.succeeded, tree.failed, tree.remaining) == (7, 3 + 9 + 3, 12, 3, 0)
    assert tree.status == own.status == "completed"


def test_what_goes_on_below_remains_and_what_is_cancelled_is_abandoned(app: fanin.App) -> None:
    @app.task
    def later(number: int) -> int:
        return number

    @app.task
    def nest(number: int) -> Any:
        return fanin.current().fan_out(later, range(number), queue="nobody")

    job = app.map(nest, [2, 3])
    Worker(app).run(until=lambda: job.progress(tree=True).jobs == 3)
    assert job.progress(tree=True).remaining == 7
    job.cancel()
    Worker(app).run(until=lambda: job.progress(tree=True).remaining == 0)
    assert job.progress(tree=True).abandoned == 7


def test_the_command_line_tells_of_the_tree(app: fanin.App, capsys: pytest.CaptureFixture[str]) -> None:
    planted(app)
    app.run_worker(until_idle=True)
    assert main(["show", "tree", "--url", app.url]) == 0
    assert "15/15 parts in 7 jobs" in capsys.readouterr().out
    assert main(["show", "tree", "--url", app.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tree"] == {"jobs": 7, "parts": 15, "remaining": 0}
    assert main(["watch", "tree", "--url", app.url, "--json", "--tree"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"] == 15
