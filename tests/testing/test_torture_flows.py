"""The judge of a torture on flows and nested jobs: a small history in which one thing is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fanin.testing.torture import judge, plan, trips
from fanin.testing.torture.journal import digest
from tests.testing.test_torture import judged


def add_a_flow(rows: dict[str, list[Any]], lines: list[dict[str, Any]]) -> None:
    """Two steps that were done and undone, and one that failed; each job of one part, undone by a nested job."""
    ran = [("a", 0, 1, 9, 10), ("b", 1, 3, 7, 8)]
    rows["flows"].append(["f", "trip", "compensated"])
    rows["steps"] += [
        ["f", 0, "a", "undone", "fa", "ua", 1], ["f", 1, "b", "undone", "fb", "ub", 2],
        ["f", 2, "c", "nothing_to_undo", "fc", None, 3],
    ]  # fmt: skip
    told = {"status": "compensated", "steps": {"undone": 2, "nothing_to_undo": 1}}
    rows["flow_events"].append(["flow/f/finished/1", "f", msgspec.json.encode(told).decode()])
    rows["applied"].append("flow/f/finished/1")
    lines.append({"e": "delivered", "k": "flow/f/finished/1", "d": "3"})
    lines += [{"e": "trip", "n": 5, "k": "trip", "doomed": True, "parts": 7}, {"e": "started", "n": 5, "f": "f"}]
    for name, n, done_at, began, undone_at in ran:
        result = {"step": name, "n": n, "began": done_at - 1, "at": done_at}
        undo = {"step": name, "n": n, "began": began, "at": undone_at}
        add_a_job(rows, lines, f"f{name}", result)
        add_a_job(rows, lines, f"u{name}", "@n" + name)
        add_a_job(rows, lines, f"n{name}", undo, waiter=f"u{name}")
        lines.append({"e": "undo", "t": 5, "s": name, "n": n, "at": began})
    lines.append({"e": "nest", "j": "ua", "i": 0, "w": 1})


def add_a_job(
    rows: dict[str, list[Any]], lines: list[dict[str, Any]], job_id: str, result: Any, waiter: str = ""
) -> None:
    """A job of one part that has succeeded."""
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    facts = {"job_id": job_id, "run": 1, "status": "completed", "outcome": "all_ok", "reason": None,
             "succeeded": 1, "failed": 0, "abandoned": 0}  # fmt: skip
    above = [waiter, 0] if waiter else [None, None]
    rows["jobs"].append([job_id, None, "completed", "all_ok", 1, 1, 0, 0, waiter or None, False, None, False, *above])
    rows["stripes"].append([job_id, 0, 1, 0, 1, 0, 0])
    rows["parts"].append([job_id, 0, 0, "succeeded", 1, "c", 3, text])
    rows["events"].append([f"job/{job_id}/finished/1", job_id, msgspec.json.encode(facts).decode()])
    rows["applied"].append(f"job/{job_id}/finished/1")
    lines.append({"e": "delivered", "k": f"job/{job_id}/finished/1", "d": job_id})
    lines.append({"e": "say", "j": job_id, "i": 0, "a": 1, "c": "c", "v": "succeed", "d": digest(text)})


def row(rows: dict[str, list[Any]], table: str, first: str) -> list[Any]:
    return next(found for found in rows[table] if found[0] == first)


def undone_at(rows: dict[str, list[Any]], lines: list[dict[str, Any]], job_id: str, **change: Any) -> None:
    """Another result of a part, which its holder has reported."""
    part = row(rows, "parts", job_id)
    part[7] = msgspec.json.encode(msgspec.json.decode(part[7]) | change).decode()
    lines.append({"e": "say", "j": job_id, "i": 0, "a": 1, "c": "c", "v": "succeed", "d": digest(part[7])})


def judged_flow(tmp_path: Path, change: Callable[[Any, Any], object]) -> judge.Verdicts:
    def both(rows: dict[str, list[Any]], lines: list[dict[str, Any]]) -> None:
        add_a_flow(rows, lines)
        change(rows, lines)

    return judged(tmp_path, both)


def test_the_judge_finds_nothing_in_a_flow_that_was_undone(tmp_path: Path) -> None:
    assert judged_flow(tmp_path, lambda rows, lines: None).counts == {}


def lines_of(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["e"] == kind]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("flows without their one event", lambda rows, lines: rows["flow_events"].pop()),
        ("flows without their one event", lambda rows, lines: rows["flow_events"].append(rows["flow_events"][0])),
        ("flow events that say otherwise", lambda rows, lines: row(rows, "steps", "f").__setitem__(3, "skipped")),
        ("flows lost", lambda rows, lines: rows["flows"].pop()),
        ("flows lost", lambda rows, lines: lines_of(lines, "started")[0].__setitem__("f", "g")),
        ("flows that nobody started", lambda rows, lines: lines.remove(lines_of(lines, "trip")[0])),
        ("flows that never ended", lambda rows, lines: rows["flows"][0].__setitem__(2, "compensating")),
        ("flows that ended otherwise", lambda rows, lines: lines_of(lines, "trip")[0].__setitem__("doomed", False)),
        ("steps without an outcome", lambda rows, lines: row(rows, "steps", "f").__setitem__(3, "undoing")),
        ("steps not undone", lambda rows, lines: row(rows, "steps", "f").__setitem__(5, None)),
        ("undone twice or for nothing", lambda rows, lines: row(rows, "steps", "f").__setitem__(4, "nowhere")),
        ("undone twice or for nothing", lambda rows, lines: add_a_job(
            rows, lines, "x", {"step": "a", "n": 0, "began": 9, "at": 10}, waiter="ua")),
        ("undone out of order", lambda rows, lines: lines_of(lines, "undo")[0].__setitem__("at", 7.5)),
        ("steps that went on while others", lambda rows, lines: undone_at(rows, lines, "fa", at=8)),
        ("nested jobs doubled", lambda rows, lines: add_a_job(
            rows, lines, "x", {"step": "a", "n": 0, "began": 9, "at": 10}, waiter="ua")),
        ("parts that ended before their", lambda rows, lines: row(rows, "jobs", "na").__setitem__(2, "failed")),
        ("nested parts lost or doubled", lambda rows, lines: lines_of(lines, "nest")[0].__setitem__("w", 2)),
    ],
)  # fmt: skip
def test_the_judge_sees_in_a_flow(tmp_path: Path, kind: str, change: Callable[[Any, Any], object]) -> None:
    assert [found for found in judged_flow(tmp_path, change).counts if found.startswith(kind)]


def test_the_same_seed_draws_the_same_flows_and_both_kinds() -> None:
    drawn = [trips.trip(7, number) for number in range(50)]
    assert drawn == [trips.trip(7, number) for number in range(50)]
    flows = [trip.doomed for trip in drawn if trip.number % plan.FLOW_EVERY == plan.FIRST_FLOW]
    assert flows == [True, False, True, False, True, False]
