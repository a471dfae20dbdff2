"""``fanin work``: finding the application, the supervisor, signals, logs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

import fanin
from fanin.cli import exits, main
from tests.faces.terminal import Terminal, alive, until

MODULE = """
import os, time
import fanin

app = fanin.App()

@app.task(name="hold", attempts=1)
def hold(number: int) -> int:
    with open("begun.log", "a") as log:
        print(os.getpid(), number, file=log, flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
    return number

@app.task(name="quick", attempts=1)
def quick(number: int) -> int:
    return number

@app.task(name="other", queue="other")
def other(number: int) -> int:
    return number
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    """A terminal in a folder that holds the module ``shop`` with an application."""
    (terminal.folder / "shop.py").write_text(MODULE)
    return terminal


def submit(terminal: Terminal, name: str, count: int, **options: object) -> str:
    """A job of ``count`` parts of a task that only the module knows. Its id."""
    app = fanin.App(terminal.url)

    def stand_in(number: int) -> int:
        raise AssertionError("runs in the worker alone")

    task = app.task(name=name, attempts=3, queue="other" if name == "other" else "default")(stand_in)
    job = app.map(task, range(count), **options)  # type: ignore[arg-type]
    app.close()
    return job.id


def test_until_idle_does_what_there_is_and_ends(shop: Terminal) -> None:
    job = submit(shop, "quick", 50)
    said = shop.run("work", "shop", "--until-idle").stderr.decode()
    assert "50 reports settled, 0 refused" in said
    assert shop.json("show", job)["status"] == "completed"


def test_several_processes_share_the_work_and_end_when_all_are_idle(shop: Terminal) -> None:
    job = submit(shop, "hold", 2)
    process = shop.start("work", "shop:app", "--processes", "2", "--concurrency", "1", "--until-idle")
    until(lambda: len({line.split()[0] for line in shop.lines("begun.log")}) == 2, "each process holds one part")
    (shop.folder / "go").touch()
    shop.end(process)
    assert shop.json("show", job)["succeeded"] == 2


def test_a_process_that_was_killed_comes_back_and_its_part_is_done(shop: Terminal) -> None:
    job = submit(shop, "hold", 2)
    process = shop.start("work", "shop:app", "-p", "2", "-c", "1", "--until-idle")
    until(lambda: len(shop.lines("begun.log")) == 2, "each process holds one part")
    pid, number = map(int, shop.lines("begun.log")[0].split())
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "it is dead")
    shop.expire(f"idx = {number}")
    until(lambda: len({line.split()[0] for line in shop.lines("begun.log")}) == 3, "a new process took the part")
    (shop.folder / "go").touch()
    said = shop.end(process)[1]
    assert "was killed by signal 9; starting it again in 0.5 s" in said
    assert shop.json("show", job)["account"] | {"attempts": 3, "leases_lost": 1} == shop.json("show", job)["account"]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_first_signal_drains_and_costs_no_attempt(shop: Terminal, processes: str) -> None:
    job = submit(shop, "hold", 1)
    process = shop.start("work", "shop:app", "-p", processes, "--grace", "0s")
    until(lambda: shop.lines("begun.log"), "the handler runs")
    process.send_signal(signal.SIGTERM)
    shop.end(process)
    found = shop.json("show", job)
    assert found["remaining"] == 1
    # A second process may take what the first gives back, before it hears of the signal too.
    assert found["account"]["released"] == found["account"]["attempts"] >= 1
    (shop.folder / "go").touch()
    shop.run("work", "shop:app", "--until-idle")
    assert shop.json("show", job)["status"] == "completed"


def test_a_running_handler_may_end_within_the_grace(shop: Terminal) -> None:
    job = submit(shop, "hold", 1)
    process = shop.start("work", "shop:app", "--grace", "1m")
    until(lambda: shop.lines("begun.log"), "the handler runs")
    process.send_signal(signal.SIGINT)
    (shop.folder / "go").touch()
    shop.end(process)
    assert shop.json("show", job)["status"] == "completed"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_second_signal_stops_at_once(shop: Terminal, processes: str) -> None:
    submit(shop, "hold", 1)
    process = shop.start("work", "shop:app", "-p", processes, "--grace", "1h")
    until(lambda: shop.lines("begun.log"), "the handler runs")
    for number in (signal.SIGINT, signal.SIGTERM):  # two equal ones that arrive together would be one
        process.send_signal(number)
    shop.end(process, code=exits.INTERRUPTED)


def test_workers_whose_supervisor_was_killed_drain(shop: Terminal) -> None:
    submit(shop, "hold", 2)
    process = shop.start("work", "shop:app", "-p", "2", "-c", "1", "--grace", "0s")
    until(lambda: len(shop.lines("begun.log")) == 2, "each process holds one part")
    process.kill()
    pids = [int(line.split()[0]) for line in shop.lines("begun.log")]
    until(lambda: not any(map(alive, pids)), "the workers have ended")


def test_only_the_chosen_queues_are_served(shop: Terminal) -> None:
    mine, theirs = submit(shop, "other", 3), submit(shop, "quick", 3)
    shop.run("work", "shop:app", "--queue", "other", "--until-idle")
    assert shop.json("show", mine)["status"] == "completed"
    assert shop.json("show", theirs)["remaining"] == 3
    shop.run("work", "shop:app", "--queue", "other", "--queue", "default", "--until-idle")
    assert shop.json("show", theirs)["status"] == "completed"


def test_json_logs_every_part_with_its_fields(shop: Terminal) -> None:
    job = submit(shop, "quick", 2)
    said = shop.run("work", "shop:app", "--until-idle", "--json", "--verbose", "--name", "anna").stderr
    lines = [msgspec.json.decode(line) for line in said.splitlines()]
    parts = [line for line in lines if "part" in line]
    assert {(line["job"], line["part"], line["attempt"]) for line in parts} == {(job, 0, 1), (job, 1, 1)}
    assert {line["verdict"] for line in parts} <= {"ok", "last"}
    assert all(line["level"] == "info" and line["pid"] > 0 and line["at"] > 0 for line in lines)
    assert lines[0]["message"].startswith("worker anna serves ")


def test_a_wrong_application_is_refused_with_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setenv("FANIN_URL", "sqlite:///fanin.db")
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "empty.py").write_text("import fanin\nnothing = 1\napp = fanin.App()\n")
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('no luck')\n")
    (tmp_path / "needy.py").write_text("import a_library_that_is_missing\n")
    (tmp_path / "fixed.py").write_text(
        "import fanin\napp = fanin.App('sqlite:///own.db')\n@app.task\ndef f(x: int) -> int: return x\n"
    )
    for words, expected in [
        (["missing:app"], "there is no module 'missing'"),
        (["shop.py:app"], "'shop.py:app' is a file; name the module: shop:app"),
        (["shop:"], "write MODULE:APP"),
        (["shop:store"], "module shop has no 'store'; it has: app"),
        (["empty:nothing"], "empty:nothing is a int, not a fanin.App"),
        (["empty:app"], "empty:app has no tasks"),
        (["broken:app"], "importing broken failed with RuntimeError: no luck"),
        (["needy:app"], "needy imports 'a_library_that_is_missing', which is not installed"),
        (["fixed:app", "--url", "sqlite:///x.db"], "has its own database"),
        (["shop:app", "-p", "0"], "--processes 0"),
        (["shop:app", "-c", "0"], "--concurrency 0"),
        (["shop:app", "-p", "2", "--grace", "soon"], "'soon'"),
    ]:
        assert main(["work", *words]) == exits.USAGE
        said = capsys.readouterr().err
        assert said.startswith("fanin: ")
        assert expected in said


def test_where_an_import_failed_is_shown(sqlite_terminal: Terminal) -> None:
    (sqlite_terminal.folder / "broken.py").write_text("x = 1\nraise RuntimeError('no luck')\n")
    said = sqlite_terminal.run("work", "broken:app", code=exits.USAGE).stderr.decode()
    assert 'broken.py", line 2' in said


def test_url_reaches_the_application(shop: Terminal) -> None:
    job = submit(shop, "quick", 1)
    shop.environment["FANIN_URL"] = "sqlite:///elsewhere.db"
    shop.run("work", "shop:app", "--until-idle", "--url", shop.url)
    assert shop.json("show", job, "--url", shop.url)["status"] == "completed"
