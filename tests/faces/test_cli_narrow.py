"""Lists on a narrow terminal: what would be wrong if it were cut stands whole."""

from __future__ import annotations

import re
from typing import Any

import pytest

import fanin
from fanin.cli import main
from fanin.cli.options import Common, console
from fanin.cli.tables import print_lines, text

NOTE = "because the reason for it is a long one, and who looks at it would like to read all of it"


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
    nightly = app.schedule("nächtlicher Lauf", "0 2 * * *", work, ["a"], tz="America/Argentina/Buenos_Aires")
    nightly.fire()
    nightly.pause(NOTE)
    app.run_worker(until_idle=True)
    return app


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        ("flows", ["flow", "state", "completed", "a flow with a long name"]),
        ("jobs", ["job", "state", "completed", "1/1", "a task with a name"]),
        ("schedules", ["nächtlicher Lauf", "next", "fired 20", "paused", f"nächtlicher Lauf: {NOTE[:60]}"]),
        ("events", ["job.finished", "waiting", "tries"]),
        ("signals", ["events pending", "no relay runs, or the receiver"]),
    ],
)
def test_a_list_fits_and_cuts_names_alone(full: fanin.App, capsys: Any, command: str, whole: list[str]) -> None:
    capsys.readouterr()
    main([command, "--url", full.url])
    shown = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    for one in whole:
        assert one in shown
    looks: dict[str, Any] = {"jobs": full.jobs, "flows": full.flows, "schedules": lambda: full.jobs()[:1]}
    rows = looks.get(command, list)()
    assert all(row.id[:13] in shown for row in rows)
    assert " ".join(shown.split()).count(NOTE) == (command == "schedules")


def test_a_wide_state_takes_the_room_of_other_columns(full: fanin.App, capsys: Any) -> None:
    @full.task(name="odd", attempts=1)
    def odd(number: int) -> int:
        return 1 // number

    job = full.map(odd, [0, 1], tolerate=1)
    full.run_worker(until_idle=True)
    capsys.readouterr()
    main(["jobs", "--url", full.url])
    shown = capsys.readouterr().out
    assert f"{job.id[:13]}  odd " in shown
    assert "completed, with failures   2/2       1" in shown


def test_all_moments_of_a_schedule_have_one_form_and_one_zone(app: fanin.App, capsys: Any) -> None:
    @app.task(name="tick")
    def tick() -> None: ...

    app.schedule("tick", "*/5 * * * * *", tick, tz="Europe/Berlin").row()
    for words in (["schedules"], ["schedules", "show", "tick"]):
        capsys.readouterr()
        main([*words, "--next", "20", "--url", app.url])
        shown = capsys.readouterr().out
        form = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+0[12]:00"
        assert len(re.findall(r"\d\d:\d\d", re.sub(form, "", shown))) == 0
        assert len(re.findall(form, shown)) == (1 if len(words) == 1 else 21)


def test_a_short_name_takes_no_room_from_other_columns(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "36")
    lines = [[text("tick"), text("0 2 * * *"), text("fired 2026-11-30 18:50:55Z"), text("because")]]
    print_lines(console(Common(no_color=True)), ("name", "cron", "last", "said"), lines, cut=0, fold=(0, 2), said=3)
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        "name  cron       last",
        "tick  0 2 * * *  fired 2026-11-30",
        "                 18:50:55Z",
        "tick: because",
    ]
