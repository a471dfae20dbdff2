"""The torture itself: it passes what is whole, sees what is broken, says when it has shown nothing, and cleans up."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanin.cli import exits
from fanin.cli.torture import exit_code
from fanin.domain.errors import BadOption
from fanin.testing.crashpoints import POINTS
from fanin.testing.torture import breaks, judge, plan, run
from fanin.testing.torture.ground import Ground, ground_of
from fanin.testing.torture.history import History
from fanin.testing.torture.journal import Journal, Reader, digest
from fanin.testing.torture.nursery import Nursery
from fanin.testing.torture.outside import Outside, environment
from fanin.testing.torture.report import Account, Control, lines, never
from fanin.testing.torture.worker import WorkerSpec

HANG_SECONDS = 120.0
"""No storm of these tests lasts so long: each ends when it has seen what it is for."""


@pytest.mark.slow
def test_a_storm_loses_nothing_and_counts_nothing_twice(store_url: str) -> None:
    cuts = ["cut_request", "cut_reply", "cut_late"] if store_url.startswith("postgresql") else []

    def enough(faults: dict[str, int], history: History) -> bool:
        return (
            faults.get("kills", 0) >= 5 and faults.get("zombies", 0) >= 1 and history.stale[0] >= 1
            and len(history.begun) > 20 and all(faults.get(cut) for cut in cuts)
            and len(history.started) > 0 and len(history.mails) > 0
            and max(history.effect_calls.values(), default=0) > 1
        )  # fmt: skip

    account = run.torture(
        run.Request(store_url, seed=1, seconds=HANG_SECONDS, workers=6, controls=()), lambda _: None, enough=enough
    )
    assert account.findings == {}, account.examples
    assert account.check == []
    assert account.calm_seconds is not None
    assert account.faults["kills"] >= 5
    assert account.faults["zombies"] >= 1
    assert account.figures["stale_by_attempt"] >= 1
    assert account.figures["events"] == account.figures["runs"] > 20
    assert account.figures["applied"] == account.figures["all_events"] <= account.figures["deliveries"]
    assert account.figures["mails"] == account.figures["mailing_parts"] > 0
    assert account.figures["effects_done"] == account.figures["effects"] > 0
    assert account.figures["effect_calls"] > account.figures["effects"]
    assert account.figures["flows_ended"] == account.figures["flows"] > 0
    assert account.figures["flows_compensated"] == account.figures["flows_doomed"]
    assert account.figures["nested_parts"] == account.figures["nested_due"]
    assert account.figures["files"] == account.figures["outputs"] > 0
    if cuts:
        assert schemas(store_url) == []


@pytest.mark.slow
def test_a_storm_without_a_guard_is_caught(sqlite_url: str) -> None:
    minutes = f"{HANG_SECONDS / 60:g}"  # it ends when the judge has noticed
    code, said = command("--url", sqlite_url, "--minutes", minutes, "--seed", "2", "--break", "ended")
    assert code == exits.FAILED
    assert "runs ended twice" in said
    assert "CAUGHT  replay: fanin torture" in said


@pytest.mark.slow
def test_a_run_that_cannot_meet_everything_is_inconclusive(sqlite_url: str, tmp_path: Path) -> None:
    """However fast the machine: a job of one part has no quorum."""
    assert plan.shape(1, 0, False).kind == "single"
    code, said = command(
        "--url", sqlite_url, "--minutes", "0.05", "--seed", "1", "--jobs", "1", "--no-control", "--json"
    )
    told = json.loads(said)
    assert told["verdict"] == "INCONCLUSIVE"
    assert "a quorum ended a job" in told["account"]["never"]
    assert told["account"]["findings"] == {}
    assert code == 3
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "verdict", "code"),
    [
        ({}, "PASS", exits.OK),
        ({"never": ["a quorum ended a job"]}, "INCONCLUSIVE", 3),
        ({"controls": [Control("ended", "", None, "")]}, "INCONCLUSIVE", 3),
        ({"controls": [Control("ended", "", 1.5, "runs ended twice 1")]}, "PASS", exits.OK),
        ({"findings": {"counted twice": 1}}, "FAIL", exits.FAILED),
        ({"check": ["counted twice"], "never": ["a quorum ended a job"]}, "FAIL", exits.FAILED),
        ({"broken": "ended"}, "INCONCLUSIVE", 3),
        ({"broken": "ended", "findings": {"runs ended twice": 1}}, "CAUGHT", exits.FAILED),
    ],
)
def test_the_verdict_follows_from_what_was_seen(change: dict[str, Any], verdict: str, code: int) -> None:
    account = msgspec.structs.replace(NOTHING_MISSING, **change)
    assert account.verdict == verdict
    assert exit_code(account) == code


@pytest.mark.parametrize("postgres", [True, False])
def test_a_fault_or_race_that_was_not_met_is_named(postgres: bool) -> None:
    met = NOTHING_MISSING
    assert never(met, postgres, True) == []
    for name in met.faults:
        without = msgspec.structs.replace(met, faults=met.faults | {name: 0})
        assert len(never(without, postgres, True)) == (postgres or not name.startswith("cut_"))
    for name in met.figures:
        without = msgspec.structs.replace(met, figures=met.figures | {name: 0})
        assert len(never(without, postgres, True)) == (postgres or name != "unknown_already_done")
    unpassed = msgspec.structs.replace(met, points=met.points | {"complete.before_commit": 0})
    assert never(unpassed, postgres, True) == ["crash point complete.before_commit was passed"]


FAULTS = (
    "kills", "driver_kills", "zombies", "drains", "clock_moves", "cut_request", "cut_reply", "cut_late", "restarts",
)  # fmt: skip
RACES = (
    "unknown_already_done", "stale_by_attempt", "refused_closed", "unknown_done_again", "released", "give_up_first",
    "last_part_first", "cancel_first", "cancel_too_late", "too_many_failures", "quorums", "redriven_runs",
    "deliveries", "nested_jobs", "flows_compensated", "mail_repeats", "effect_repeats", "effects_unanswered",
    "once_unknown", "outputs_swept",
)  # fmt: skip
NOTHING_MISSING = Account(
    url="sqlite:///a.db", seed=1, broken=None, storm_seconds=90, calm_seconds=2, faults=dict.fromkeys(FAULTS, 1),
    figures=dict.fromkeys(RACES, 1), points=dict.fromkeys(POINTS, 1), findings={}, examples={}, never=[], check=[],
)  # fmt: skip


def test_the_sample_output_has_the_lines_of_the_report() -> None:
    account = msgspec.structs.replace(
        NOTHING_MISSING, faults=defaultdict(int), figures=defaultdict(int), points={"claim.taken": 1}
    )
    rows = [found[1] for line in lines(account) if (found := re.match(r"  ([a-z][a-z ]+?)  +\S", line))]
    page = (Path(__file__).parents[2] / "docs/testing.md").read_text()
    samples = re.findall(r"```text\n(torture of .*?)```", page, re.DOTALL)
    assert len(samples) == 2
    for sample in samples:
        body = sample.partition("expected     found")[2].partition("races met")[0]
        assert re.findall(r"^  ([a-z][a-z ]+?)  +\S", body, re.MULTILINE) == rows


@pytest.mark.slow
def test_what_was_kept_is_named_and_is_there(sqlite_url: str) -> None:
    account = run.torture(
        run.Request(sqlite_url, seed=4, seconds=HANG_SECONDS, workers=2, jobs=2, controls=(), keep=True),
        lambda _: None,
        enough=lambda _, history: len(history.submitted) == 2,
    )
    tables, histories = re.findall(r"sqlite:///(\S+), the histories in (\S+)", account.kept)[0]
    assert os.path.exists(tables)
    assert any(name.startswith("driver") for name in os.listdir(histories))
    assert account.figures["jobs"] == 2
    shutil.rmtree(histories)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--break", "everything"], "there is no guard 'everything'"),
        (["--minutes", "0"], "--minutes 0: give 0.05"),
        (["--workers", "0"], "--workers 0: give 1 to 100"),
        (["--jobs", "0"], "--jobs 0: give 1 or more"),
        (["--own-server"], "--own-server starts a database"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_happens(
    sqlite_url: str, options: list[str], said: str, tmp_path: Path
) -> None:
    code, told = command("--url", sqlite_url, *options)
    assert code == exits.USAGE
    assert said in told
    assert os.listdir(tmp_path) == []


def test_the_crash_points_and_guards_are_listed() -> None:
    code, said = command("--list")
    assert code == exits.OK
    assert "complete.before_commit" in said
    assert all(guard in said for guard in breaks.BREAKS)


def test_the_same_seed_draws_the_same_jobs() -> None:
    first = [plan.shape(7, n, True) for n in range(200)]
    assert first == [plan.shape(7, n, True) for n in range(200)]
    assert plan.items(7, first[3]) == plan.items(7, first[3])
    assert {shape.kind for shape in first} == {*plan.KINDS, "flow"}
    assert first != [plan.shape(8, n, True) for n in range(200)]


def test_a_dead_torture_takes_its_processes_with_it(sqlite_url: str, tmp_path: Path) -> None:
    ground = ground_of(sqlite_url, 1)
    ground.create()
    nursery = Nursery(str(tmp_path), {})
    nursery.spawn("worker", WorkerSpec(url=ground.url, folder=str(tmp_path), name="1"))
    reader = Reader(str(tmp_path))
    born: list[dict[str, Any]] = []
    deadline = time.monotonic() + 90
    while not born:
        assert time.monotonic() < deadline
        born = [line for line in reader.news() if line["e"] == "born"]
        time.sleep(0.02)
    nursery.close()
    with pytest.raises(ProcessLookupError):
        os.kill(born[0]["pid"], 0)
    ground.destroy()


@pytest.mark.parametrize("name", breaks.BREAKS)
def test_a_broken_program_still_runs_where_nothing_goes_wrong(store_url: str, name: str, tmp_path: Path) -> None:
    """Else the control would catch a program that does not work at all, instead of one that is not safe."""
    ground = ground_of(store_url, 0)
    ground.create()
    try:
        done = subprocess.run(
            [sys.executable, "-c", WORKING, ground.url], capture_output=True, text=True, timeout=60,
            env=os.environ | environment(str(tmp_path)) | {breaks.VARIABLE: name},
        )  # fmt: skip
        assert done.stdout.split() == ["completed", "6"], done.stderr
    finally:
        ground.destroy()


WORKING = """
import sys, tempfile
from fanin.testing.torture import breaks
from fanin.testing.torture.app import open_app
from fanin.testing.torture.history import History
from fanin.testing.torture.journal import Journal
from fanin.testing.torture.plan import Item

breaks.patch_statements()
folder = tempfile.mkdtemp()
app, tasks = open_app(sys.argv[1], folder, Journal(folder, "one"), "one", None, None)
job = app.map(tasks.work, [Item(0, n, 0) for n in range(6)], then=tasks.join)
app.run_worker(until_idle=True)
print(job.status, job.successor.result()["succeeded"])
"""


# The judge, on a small history in which one thing is wrong.


def healthy(tmp_path: Path) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """One job of two parts that has ended, with its event and successor, as tables and history."""
    facts = {"job_id": "j", "run": 1, "status": "completed", "outcome": "with_failures", "reason": None,
             "succeeded": 1, "failed": 1, "abandoned": 0}  # fmt: skip
    then = {**facts, "job_id": "s", "outcome": "all_ok", "failed": 0}
    rows: dict[str, list[Any]] = {
        "jobs": [
            ["j", "key", "completed", "with_failures", 1, 1, 1, 0, None, True, None, False, None, None],
            ["s", None, "completed", "all_ok", 1, 1, 0, 0, "j", False, None, False, None, None],
        ],
        "stripes": [["j", 0, 2, 0, 1, 1, 0], ["s", 0, 1, 0, 1, 0, 0]],
        "parts": [
            ["j", 0, 0, "succeeded", 2, "c2", 3, "5"],
            ["j", 1, 0, "failed", 1, "c1", 1, None],
            ["s", 0, 0, "succeeded", 1, "c3", 3, "6"],
        ],
        "events": [
            ["job/j/finished/1", "j", msgspec.json.encode(facts).decode()],
            ["job/s/finished/1", "s", msgspec.json.encode(then).decode()],
        ],
        "outputs": [["j", 0, "c2", 2, "page", "kept"], ["j", 0, "c1", 1, "page", "swept"]],
        "flows": [],
        "steps": [],
        "flow_events": [],
        "effects": [
            ["j", 0, "torture.probe", "probe", "done"],
            ["j", 0, "torture.once", "at_most_once", "unknown"],
        ],
        "done": [("j", 0, "torture.probe")],
        "applied": ["job/j/finished/1", "job/s/finished/1"],
        "files": ["j/0/2-c2/page"],
    }
    lines: list[dict[str, Any]] = [
        {"e": "submit", "n": 0, "k": "key", "w": 2},
        {"e": "submitted", "n": 0, "j": "j", "w": 2},
        {"e": "body", "j": "j", "i": 0, "a": 1},
        {"e": "body", "j": "j", "i": 0, "a": 2},
        {"e": "say", "j": "j", "i": 0, "a": 1, "c": "c1", "v": "succeed", "d": digest("4")},
        {"e": "say", "j": "j", "i": 0, "a": 2, "c": "c2", "v": "succeed", "d": digest("5")},
        {"e": "ack", "j": "j", "i": 0, "a": 1, "c": "c1", "v": "succeed", "d": digest("4"), "r": "lost", "h": 2},
        {"e": "ack", "j": "j", "i": 0, "a": 2, "c": "c2", "v": "succeed", "d": digest("5"), "r": "ok", "h": 2},
        {"e": "say", "j": "s", "i": 0, "a": 1, "c": "c3", "v": "succeed", "d": digest("6")},
        {"e": "delivered", "k": "job/j/finished/1", "d": "1"},
        {"e": "delivered", "k": "job/s/finished/1", "d": "2"},
        {"e": "delivered", "k": "job/j/finished/1", "d": "1"},
        {"e": "mail", "j": "j", "i": 0, "k": "j/0"},
        {"e": "mail", "j": "j", "i": 0, "k": "j/0"},
        {"e": "wish", "j": "j", "i": 0, "a": 1, "n": "torture.once"},
        {"e": "wish", "j": "j", "i": 0, "a": 2, "n": "torture.probe"},
        {"e": "wish", "j": "j", "i": 0, "a": 2, "n": "torture.once"},
        {"e": "call", "j": "j", "i": 0, "n": "torture.probe", "k": "j/0/torture.probe"},
        {"e": "call", "j": "j", "i": 0, "n": "torture.once", "k": "j/0/torture.once"},
        {"e": "wish", "j": "j", "i": 1, "a": 1, "n": "torture.probe"},
    ]
    return rows, lines


def judged(tmp_path: Path, change: Callable[[dict[str, list[Any]], list[dict[str, Any]]], object]) -> judge.Verdicts:
    rows, lines = healthy(tmp_path)
    change(rows, lines)
    journal = Journal(str(tmp_path), "history")
    for line in lines:
        journal.write(**line)
    outside = Outside(Counter(rows.pop("applied")), frozenset(rows.pop("files")), Counter(rows.pop("done")))
    tables = judge.Tables({name: [tuple(row) for row in found] for name, found in rows.items()})
    history = History().read(Reader(str(tmp_path)).news())
    found = judge.live(tables, history)
    judge.final(tables, history, found)
    judge.beyond(tables, history, outside, found)
    return found


def test_the_judge_finds_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert judged(tmp_path, lambda rows, lines: None).counts == {}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("counters that differ from their parts", lambda rows, lines: rows["stripes"][0].__setitem__(4, 2)),
        ("counted twice", lambda rows, lines: rows["stripes"][0].__setitem__(4, 2)),
        ("counted twice", lambda rows, lines: lines.append(lines[7])),
        ("counted twice", lambda rows, lines: lines[6].__setitem__("r", "ok")),
        ("acknowledged results lost", lambda rows, lines: lines[6].__setitem__("r", "ok")),
        ("acknowledged results changed", lambda rows, lines: lines[7].__setitem__("d", digest("9"))),
        ("results that their holder never reported", lambda rows, lines: lines.pop(5)),
        ("results that their holder never reported", lambda rows, lines: rows["parts"][0].__setitem__(7, "4")),
        ("attempts beyond the allowance", lambda rows, lines: rows["parts"][0].__setitem__(6, 1)),
        ("attempt numbers that fell", lambda rows, lines: lines[3].__setitem__("a", 3)),
        ("events missing", lambda rows, lines: rows["events"].pop(0)),
        ("events too many", lambda rows, lines: rows["jobs"][0].__setitem__(2, "running")),
        ("runs never ended", lambda rows, lines: rows["jobs"][0].__setitem__(2, "running")),
        ("runs ended twice", lambda rows, lines: rows["jobs"][0].__setitem__(3, "partial")),
        ("contributions after the end", lambda rows, lines: rows["jobs"][0].__setitem__(5, 2)),
        ("successors missing", lambda rows, lines: rows["jobs"].pop(1)),
        ("successors too many", lambda rows, lines: rows["jobs"].append(["x", *rows["jobs"][1][1:]])),
        ("parts lost", lambda rows, lines: rows["parts"].pop(1)),
        ("parts lost", lambda rows, lines: rows["parts"][1].__setitem__(3, "running")),
        ("parts that nobody submitted", lambda rows, lines: lines[0].__setitem__("w", 1)),
        ("submits lost or doubled", lambda rows, lines: lines[1].__setitem__("j", "other")),
        ("jobs that nobody submitted", lambda rows, lines: lines.pop(0)),
        ("redrives lost", lambda rows, lines: lines.append({"e": "redrive", "n": 0, "j": "j", "seen": 1, "run": 2})),
        ("events skipped", lambda rows, lines: lines.pop(10)),
        ("events that nobody wrote", lambda rows, lines: lines[10].__setitem__("k", "job/x/finished/1")),
        ("events delivered with another content", lambda rows, lines: lines[11].__setitem__("d", "3")),
        ("events not applied", lambda rows, lines: rows["applied"].pop()),
        ("events applied twice", lambda rows, lines: rows["applied"].append(rows["applied"][0])),
        ("effects outside twice", lambda rows, lines: lines[13].__setitem__("k", "j/0/2")),
        ("effects outside twice", lambda rows, lines: rows["done"].append(rows["done"][0])),
        ("effects lost", lambda rows, lines: rows["effects"].pop()),
        ("effects of parts that did not succeed", lambda rows, lines: rows["effects"][0].__setitem__(1, 1)),
        ("effects that never ended", lambda rows, lines: rows["effects"][0].__setitem__(4, "registered")),
        ("effects left in doubt", lambda rows, lines: rows["effects"][0].__setitem__(4, "unknown")),
        ("effects other than they say", lambda rows, lines: rows["done"].pop()),
        ("calls repeated that may not be", lambda rows, lines: lines.append(lines[18])),
        ("calls that nobody asked for", lambda rows, lines: lines[17].__setitem__("i", 1)),
        ("outputs lost", lambda rows, lines: rows["files"].pop()),
        ("outputs left over", lambda rows, lines: rows["files"].append("j/0/1-c1/page")),
        ("reports answered with conflict", lambda rows, lines: lines[7].__setitem__("r", "conflict")),
        ("calls that were refused wrongly", lambda rows, lines: lines.append({"e": "wrong", "n": 0, "why": "no"})),
    ],
)
def test_the_judge_sees(tmp_path: Path, kind: str, change: Callable[[Any, Any], object]) -> None:
    assert kind in judged(tmp_path, change).counts


def test_a_torn_last_line_of_a_killed_process_is_not_read(tmp_path: Path) -> None:
    Journal(str(tmp_path), "a").write(e="body", j="j", i=0, a=1)
    with open(tmp_path / "a.jsonl", "ab") as file:
        file.write(b'{"e":"bo')
    reader = Reader(str(tmp_path))
    assert [line["e"] for line in reader.news()] == ["body"]
    with open(tmp_path / "a.jsonl", "ab") as file:
        file.write(b'dy","j":"j","i":1,"a":1}\n')
    assert [line["i"] for line in reader.news()] == [1]


def test_an_unknown_guard_is_refused_with_those_that_exist() -> None:
    with pytest.raises(BadOption, match=r"claim .*; closed"):
        breaks.check("nothing")


def command(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fanin", "torture", *words], capture_output=True, text=True, timeout=280
    )
    return done.returncode, done.stdout + ("" if "--json" in words else done.stderr)


def schemas(url: str) -> list[str]:
    import psycopg

    with psycopg.connect(url.partition("?")[0]) as connection:
        rows = connection.execute(r"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'fanin\_torture\_%'")
        return [row[0] for row in rows]


def test_a_place_is_made_beside_the_named_one(store_url: str) -> None:
    ground: Ground = ground_of(store_url, 1)
    assert ground.url != store_url
    ground.create()
    assert ground.pending() == (0, 0, 0)
    assert ground.check() == []
    ground.destroy()
