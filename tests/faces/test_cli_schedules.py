"""``fanin schedules``, as an operator uses it, beside ``fanin work``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faces.terminal import Terminal, until

MODULE = """
import fanin

app = fanin.App()

@app.task(name="note")
def note(text: str) -> str:
    return text

nightly = app.schedule("nightly", "0 2 * * *", note, ["a", "b"], tz="Europe/Berlin", overlap="queue")
hourly = app.schedule("hourly", "@hourly", note, ["c"], misfire="all", overlap="allow", catch_up=2)
"""


@pytest.fixture
def plan(terminal: Terminal) -> Terminal:
    """A folder with an application whose schedules are known."""
    (terminal.folder / "plan.py").write_text(MODULE)
    code = "import plan; plan.nightly.row(); plan.hourly.row()"
    subprocess.run([sys.executable, "-c", code], cwd=terminal.folder, env=terminal.environment, check=True)
    return terminal


def test_the_list_says_when_each_is_fired_next(plan: Terminal) -> None:
    hourly, nightly = plan.json("schedules", "--next", "3")
    assert (nightly["name"], nightly["cron"], nightly["tz"], nightly["state"]) == (
        "nightly", "0 2 * * *", "Europe/Berlin", "active",
    )  # fmt: skip
    assert (hourly["misfire"], hourly["overlap"], hourly["catch_up"], hourly["task"]) == ("all", "allow", 2, "note")
    assert len(nightly["next"]) == 3
    assert all(slot % 3600 == 0 for slot in hourly["next"])
    assert (nightly["last"], nightly["job"], nightly["paused_at"]) == (None, None, None)
    said = plan.run("schedules").stdout.decode()
    assert "nightly" in said
    assert " 02:00:00+0" in said


def test_an_empty_list_says_how_one_comes_to_be(terminal: Terminal) -> None:
    assert b"app.schedule" in terminal.run("schedules").stdout
    assert terminal.json("schedules") == []


def test_a_schedule_is_paused_with_a_note_and_goes_on(plan: Terminal) -> None:
    assert b"paused; its slots pass" in plan.run("schedules", "pause", "nightly", "--note", "stock-taking").stderr
    assert plan.json("schedules", "pause", "nightly")["changed"] is False
    shown = plan.json("schedules", "show", "nightly")
    assert (shown["state"], shown["note"], shown["firings"]) == ("paused", "stock-taking", [])
    assert b"stock-taking" in plan.run("schedules").stdout
    assert plan.json("schedules", "resume", "nightly")["changed"] is True
    assert b"is not paused" in plan.run("schedules", "resume", "nightly").stderr


def test_a_schedule_is_fired_by_the_next_worker(plan: Terminal) -> None:
    asked = plan.json("schedules", "fire", "nightly")
    assert asked["name"] == "nightly"
    worker = plan.start("work", "plan")
    until(lambda: plan.json("schedules", "show", "nightly")["firings"], "the worker fires it")
    worker.terminate()
    plan.end(worker)
    (firing,) = plan.json("schedules", "show", "nightly")["firings"]
    assert (firing["slot"], firing["what"], firing["by_hand"]) == (asked["slot"], "fired", True)
    assert plan.json("show", firing["job_id"])["step"] == "at/nightly"
    shown = plan.run("schedules", "show", "nightly", "--limit", "1").stdout.decode()
    assert "by hand" in shown
    assert "misfire once, overlap queue" in shown
    assert "nightly" in plan.run("jobs").stdout.decode()


def test_a_schedule_is_forgotten(plan: Terminal) -> None:
    assert plan.json("schedules", "forget", "hourly")["changed"] is True
    assert [row["name"] for row in plan.json("schedules")] == ["nightly"]
    assert b"no schedule 'hourly'" in plan.run("schedules", "forget", "hourly", code=2).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stop", "nightly"), "there are list, show"),
        (("list", "nightly"), "takes no name"),
        (("pause",), "name the schedule"),
        (("pause", "weekly"), "no schedule 'weekly'"),
        (("show", "weekly"), "no schedule 'weekly'"),
        (("resume", "nightly", "--note", "x"), "--note goes with pause"),
        (("--limit", "0"), "--limit 0"),
        (("--next", "-1"), "--next -1"),
    ],
)
def test_what_cannot_be_done_is_refused(terminal: Terminal, words: tuple[str, ...], said: str) -> None:
    assert said in terminal.run("schedules", *words, code=2).stderr.decode()
