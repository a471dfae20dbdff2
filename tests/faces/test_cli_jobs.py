"""``fanin jobs``, ``show``, ``watch``, ``cancel``, ``redrive``, ``check`` and ``migrate``."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

import fanin
from fanin.cli import exits
from fanin.stores import migrate as migrations
from tests.faces.terminal import Terminal, until

EVERY = [migration.version for migration in migrations.migrations("pg")]
NEWEST = EVERY[-1]


@fanin.App("sqlite:///unused.db").task(name="odd", attempts=1)
def odd(number: int) -> int:
    if number % 2 == 0:
        raise ValueError(f"{number} is even")
    return number


@pytest.fixture
def job(terminal: Terminal) -> fanin.Job:
    """A job of four parts, two of which have failed."""
    app = fanin.App(terminal.url)
    task = app.task(name="odd", attempts=1)(odd.function)
    made = app.map(task, [1, 2, 3, 4], key="numbers", meta={"who": "a test"})
    made.wait("30s", run=True)
    app.close()
    return made


def test_jobs_are_listed_newest_first_with_their_counts(terminal: Terminal, job: fanin.Job) -> None:
    terminal.run("map", "--", "true", ":::", "x")
    said = terminal.run("jobs").stdout.decode().splitlines()
    assert said[0].split() == ["job", "name", "state", "done", "failed", "age", "took"]
    assert said[1].split()[1:5] == ["true", "completed", "1/1", "0"]
    assert said[2].split()[:5] == [job.id[:13], "numbers", "failed", "4/4", "2"]
    listed = terminal.json("jobs", "--status", "failed")
    assert [found["id"] for found in listed] == [job.id]
    wanted = {
        "key": "numbers", "task": "odd", "queue": "default", "outcome": "too_many_failures", "run": 1, "parts": 4,
        "remaining": 0, "succeeded": 2, "failed": 2, "abandoned": 0, "attempts": 1, "parent": None,
    }  # fmt: skip
    assert {name: listed[0][name] for name in wanted} == wanted
    assert len(terminal.json("jobs", "--limit", "1")) == 1


def test_no_jobs_are_said_and_are_an_empty_list(terminal: Terminal) -> None:
    assert terminal.run("jobs").stdout == b"no jobs\n"
    assert terminal.json("jobs") == []


def test_show_tells_what_failed_and_why(terminal: Terminal, job: fanin.Job) -> None:
    said = terminal.run("show", "numbers").stdout.decode()
    assert job.id in said
    assert "reason     2 of 4 parts failed, tolerated 0" in said
    assert "part 1 (2) failed at attempt 1: ValueError: 2 is even" in said
    found = terminal.json("show", job.id[:10], "--history", "--failures", "1")
    assert [failure["message"] for failure in found["failures"]] == ["2 is even"]
    assert found["meta"] == {"who": "a test"}
    assert found["account"]["attempts"] == 4
    assert [(entry["idx"], entry["what"]) for entry in found["history"]] == [(1, "failed"), (3, "failed")]


def test_show_one_part_in_full(terminal: Terminal, job: fanin.Job) -> None:
    found = terminal.json("show", "numbers", "--part", "2")
    assert (found["status"], found["payload"], found["result"]) == ("succeeded", [3], 3)
    said = terminal.run("show", "numbers", "--part", "1").stdout.decode()
    assert "ValueError: 2 is even" in said
    missing = terminal.run("show", "numbers", "--part", "9", code=exits.USAGE).stderr.decode()
    assert "has no part 9: its 4 parts count from 0" in missing


def test_an_ambiguous_beginning_of_an_id_is_refused(terminal: Terminal, job: fanin.Job) -> None:
    app = fanin.App(terminal.url)
    task = app.task(name="odd")(odd.function)
    for n in range(17):  # 18 ids, 16 first digits
        app.map(task, [], key=f"k{n}")
    app.close()
    ids = [found["id"] for found in terminal.json("jobs")]
    shared = next(first for first in "0123456789abcdef" if sum(one.startswith(first) for one in ids) > 1)
    said = terminal.run("show", shared, code=exits.USAGE).stderr.decode()
    assert f"{shared!r} begins several job ids" in said
    assert terminal.json("show", ids[0][:13])["id"] == ids[0]


def test_redrive_opens_a_run_for_the_chosen_parts_and_a_worker_ends_it(terminal: Terminal, job: fanin.Job) -> None:
    said = terminal.run("redrive", "numbers", "--part", "3", "--attempts", "2")
    assert b"run 2 has begun, 1 parts to do" in said.stderr
    again = terminal.run("redrive", "numbers", code=exits.USAGE)
    assert b"can be redriven when it has ended" in again.stderr
    (terminal.folder / "numbers_app.py").write_text(
        "import fanin\napp = fanin.App()\n@app.task(name='odd')\ndef odd(number: int) -> int:\n    return number\n"
    )
    terminal.run("work", "numbers_app:app", "--until-idle")
    assert terminal.json("show", "numbers")["succeeded"] == 3
    found = terminal.json("redrive", "numbers")
    assert (found["redriven"], found["run"], found["remaining"]) == (True, 3, 1)
    terminal.run("work", "numbers_app:app", "--until-idle")
    terminal.run("watch", "numbers")
    assert terminal.json("redrive", "numbers")["redriven"] is False


def test_redrive_of_a_part_that_succeeded_is_refused(terminal: Terminal, job: fanin.Job) -> None:
    said = terminal.run("redrive", "numbers", "--part", "0", code=exits.USAGE)
    assert b"neither failed nor abandoned" in said.stderr


def test_cancel_ends_a_job_once(terminal: Terminal) -> None:
    app = fanin.App(terminal.url)
    app.map(app.task(name="odd")(odd.function), [1, 2], key="mine")
    app.close()
    said = terminal.run("cancel", "mine", "--reason", "not today")
    assert b"cancelled; 0 parts had succeeded" in said.stderr
    assert b"was cancelled before" in terminal.run("cancel", "mine").stderr
    found = terminal.json("show", "mine")
    assert (found["status"], found["reason"], found["abandoned"]) == ("cancelled", "not today", 2)


def test_cancel_of_a_job_that_ended_otherwise_is_refused(terminal: Terminal, job: fanin.Job) -> None:
    said = terminal.run("cancel", "numbers", code=exits.USAGE)
    assert b"had failed before; there is nothing to cancel" in said.stderr


def test_watch_follows_a_job_to_its_end_and_says_by_its_exit_code_how_it_ended(
    terminal: Terminal, job: fanin.Job
) -> None:
    said = terminal.run("watch", "numbers", code=exits.FAILED)
    assert b"4/4" in said.stderr
    assert b"(odd) failed: 2 of 4 parts failed" in said.stderr


def test_watch_goes_on_while_the_job_runs_and_then_with_its_successor(terminal: Terminal) -> None:
    line = [
        "--key",
        "mine",
        "--then",
        "true",
        "--",
        ": {}; echo x >> begun.log; until [ -e go ]; do sleep 0.02; done",
        ":::",
    ]
    working = terminal.start("map", *line, "a")
    until(lambda: terminal.lines("begun.log"), "the command runs")
    watching = terminal.start("watch", "mine", "--json", "--interval", "0.01")
    assert watching.stdout is not None
    first = msgspec.json.decode(watching.stdout.readline())
    assert (first["status"], first["remaining"]) == ("running", 1)
    (terminal.folder / "go").touch()
    rest = [msgspec.json.decode(line) for line in terminal.end(watching)[0].splitlines()]
    assert [found["task"] for found in rest if found["status"] == "completed"] == ["fanin.map", "fanin.map.then"]
    terminal.end(working)


def test_check_says_that_all_rules_hold(terminal: Terminal, job: fanin.Job) -> None:
    said = terminal.run("check").stdout.decode()
    assert "broken" not in said
    assert "rules hold" in said
    found = terminal.json("check")
    assert found["ok"] is True
    assert all(rule["violations"] == 0 for rule in found["checks"])


@pytest.mark.plants_corruption
def test_check_names_a_broken_rule_and_the_rows(terminal: Terminal, job: fanin.Job) -> None:
    if terminal.url.startswith("sqlite"):
        import apsw

        with apsw.Connection(terminal.url.removeprefix("sqlite:///")) as connection:
            connection.execute("UPDATE fanin_job SET succeeded_parts = 3")
    else:
        import psycopg

        address, _, schema = terminal.url.partition("?fanin_schema=")
        with psycopg.connect(address) as connection:
            connection.execute(f"UPDATE {schema}.job SET succeeded_parts = 3")
    said = terminal.run("check", code=exits.FAILED).stdout.decode()
    assert "broken  t1  The counts written at the end equal the stripes.  (1 rows)" in said
    assert job.id in said
    found = terminal.json("check", code=exits.FAILED)
    assert [rule["name"] for rule in found["checks"] if rule["violations"]] == ["t1"]


def test_migrate_makes_the_tables_once_and_check_says_whether_it_is_needed(store_url: str, tmp_path: Path) -> None:
    here = Terminal(tmp_path, store_url)
    assert here.json("migrate", "--check", code=exits.FAILED) == {"current": False, "version": 0, "needed": NEWEST}
    assert b"Run: fanin migrate" in here.run("migrate", "--check", code=exits.FAILED).stdout
    assert here.json("migrate")["version"] == NEWEST
    assert here.json("migrate") == {"applied": [], "version": NEWEST}
    assert here.run("migrate", "--check").stdout == f"up to date: schema version {NEWEST}\n".encode()
    assert here.run("jobs").stdout == b"no jobs\n"


def test_looking_at_a_file_that_does_not_exist_makes_none(sqlite_terminal: Terminal) -> None:
    sqlite_terminal.run("migrate", "--check", code=exits.FAILED)
    sqlite_terminal.run("migrate", "--sql")
    assert os.listdir(sqlite_terminal.folder) == []


def test_postgres_without_tables_names_the_command(pg_url: str, tmp_path: Path) -> None:
    here = Terminal(tmp_path, pg_url)
    said = here.run("jobs", code=exits.USAGE).stderr.decode()
    assert "fanin migrate" in said
    made = here.json("migrate", "--buckets", "4")
    assert made["applied"] == EVERY
    for name in ("one", "two", "three"):  # spread over the buckets
        here.run("map", "--key", name, "--then", "cat {outs}", "--", "echo {} > {out}.o", ":::", name)
        assert here.json("show", name)["succeeded"] == 1
    assert len(here.json("jobs")) == 6  # three jobs and what followed each
    said = here.run("migrate", "--buckets", "8", code=exits.USAGE).stderr.decode()
    assert "made with 4, which cannot be changed" in said
    assert here.json("check")["ok"] is True


def test_the_printed_sql_makes_the_same_tables(pg_url: str, tmp_path: Path) -> None:
    import psycopg

    here = Terminal(tmp_path, pg_url)
    text = here.run("migrate", "--sql").stdout.decode()
    with psycopg.connect(pg_url.partition("?")[0], autocommit=True) as connection:
        connection.execute(text)
    assert here.run("migrate", "--check").stdout.startswith(b"up to date")
    assert here.run("migrate", "--sql").stdout.count(b"CREATE TABLE") == 1  # only IF NOT EXISTS of the list itself


def test_two_migrations_at_once_are_safe(pg_url: str, tmp_path: Path) -> None:
    here = Terminal(tmp_path, pg_url)
    said = [here.end(process)[0] for process in [here.start("migrate", "--json") for _ in range(4)]]
    assert sorted(msgspec.json.decode(line)["applied"] for line in said) == [[], [], [], EVERY]


def test_newer_tables_are_refused(terminal: Terminal) -> None:
    if terminal.url.startswith("sqlite"):
        import apsw

        with apsw.Connection(terminal.url.removeprefix("sqlite:///")) as connection:
            connection.execute("INSERT INTO fanin_migration VALUES (9999, 'future', 'x', 0)")
            remove = ["DELETE FROM fanin_migration WHERE version = 9999"]
    else:
        import psycopg

        address, _, schema = terminal.url.partition("?fanin_schema=")
        with psycopg.connect(address) as connection:
            connection.execute(f"INSERT INTO {schema}.migration VALUES (9999, 'future', 'x', 0)")
        remove = [address, f"DELETE FROM {schema}.migration WHERE version = 9999"]
    for words in (["migrate"], ["migrate", "--check"], ["jobs"]):
        said = terminal.run(*words, code=exits.USAGE).stderr.decode()
        assert f"schema version 9999, this fanin knows up to {NEWEST}" in said
    if len(remove) == 1:
        with apsw.Connection(terminal.url.removeprefix("sqlite:///")) as connection:
            connection.execute(remove[0])
    else:
        with psycopg.connect(remove[0]) as connection:
            connection.execute(remove[1])


def test_output_to_a_file_has_no_colour_codes(terminal: Terminal, job: fanin.Job) -> None:
    del terminal.environment["NO_COLOR"]
    for words in (["jobs"], ["show", "numbers"], ["check"]):
        assert b"\x1b" not in terminal.run(*words).stdout


def test_the_terminal_gets_colour_unless_told_not_to(terminal: Terminal, job: fanin.Job) -> None:
    del terminal.environment["NO_COLOR"]
    environment = terminal.environment | {"TERM": "xterm", "FORCE_COLOR": "1"}

    def said(*words: str) -> bytes:
        line = ["script", "-qec", " ".join(["python3 -m fanin", *words]), "/dev/null"]
        path = os.path.dirname(os.sys.executable)  # type: ignore[attr-defined]
        done = subprocess.run(
            line, cwd=terminal.folder, env=environment | {"PATH": f"{path}:{os.environ['PATH']}"}, capture_output=True
        )
        return done.stdout

    assert b"\x1b[" in said("jobs")
    assert b"\x1b[" not in said("jobs", "--no-color")
