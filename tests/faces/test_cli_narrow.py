"""Lists on a narrow terminal: what would be wrong if it were cut stands whole."""

from __future__ import annotations

from typing import Any

import pytest

import fanin
from fanin.cli import main


@pytest.fixture
def full(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> fanin.App:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")

    @app.task(name="a task with a name that is longer than any terminal is wide, or should be, or will be")
    def work(text: str) -> str:
        return text

    flow = app.flow("a flow with a long name that says all that it is good for", key="and a key beside it")
    flow.step(work, "a")
    flow.start()
    app.map(work, ["a"])
    nightly = app.schedule("a nightly schedule", "0 2 * * *", work, ["a"], tz="America/Argentina/Buenos_Aires")
    nightly.fire()
    nightly.pause("because the reason for it is a long one")
    app.run_worker(until_idle=True)
    return app


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        ("flows", ["flow", "state", "completed", "a flow with a long name"]),
        ("jobs", ["job", "state", "completed", "1/1", "a task with a name"]),
        ("schedules", ["a nightly schedule", "0 2 * * *", "America/Argentina/Buenos_Aires", "paused (bec"]),
    ],
)
def test_a_list_fits_and_cuts_names_alone(full: fanin.App, capsys: Any, command: str, whole: list[str]) -> None:
    capsys.readouterr()
    main([command, "--url", full.url])
    shown = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    for one in whole:
        assert one in shown
    looks: dict[str, Any] = {"jobs": full.jobs, "flows": full.flows, "schedules": list}
    rows = looks[command]()
    assert all(row.id[:13] in shown for row in rows)
