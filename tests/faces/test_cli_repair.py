"""``fanin repair``, and what ``fanin check`` and ``fanin explain`` say of it."""

from __future__ import annotations

import re

import pytest

from fanin.cli import COMMANDS, exits
from fanin.cli.advice import ADVICE, REPAIR
from fanin.protocol import check
from fanin.stores import open_store
from tests.faces.terminal import Terminal
from tests.protocol.helpers import THEN, make, say


def prepare(terminal: Terminal, *texts: str, parts: int = 4) -> str:
    store = open_store(terminal.url)
    job_id = make(store, parts, then=THEN)
    for text in texts:
        say(store, text)
    store.close()
    return job_id


DRIFT = "UPDATE fanin.job_stripe SET created = created + 1, remaining = remaining + 1"


def test_of_a_healthy_database_it_says_what_it_looked_at(terminal: Terminal) -> None:
    prepare(terminal)
    assert terminal.run("repair").stdout.decode() == "looked at 1 jobs, repaired 0\n"
    assert terminal.json("repair") == {
        "looked": 1, "repaired": 0, "parts": 0, "ended": 0, "damaged": 0, "repairs": [],
    }  # fmt: skip


@pytest.mark.plants_corruption
def test_check_points_to_repair_and_repair_says_what_it_did(terminal: Terminal) -> None:
    job_id = prepare(terminal, DRIFT)
    said = terminal.run("check", code=exits.FAILED).stdout.decode()
    assert f"→ {REPAIR}" in said
    found = {one["name"]: one["advice"] for one in terminal.json("check", code=exits.FAILED)["checks"]}
    assert {name: advice for name, advice in found.items() if advice} == {"c1": REPAIR}
    dry = terminal.run("repair", "--dry-run", code=exits.FAILED).stdout.decode()
    line = f"job {job_id[:13]}  counter 0 repaired: created 5 → 4, remaining 5 → 4\n"
    assert dry == f"{line}looked at 1 jobs, would repair 1\n"
    assert terminal.run("repair", job_id[:20]).stdout.decode() == f"{line}looked at 1 jobs, repaired 1\n"
    assert terminal.run("repair").stdout.decode() == "looked at 1 jobs, repaired 0\n"
    terminal.run("check")
    assert "counter 0 repaired: created 5 → 4, remaining 5 → 4" in terminal.run("explain", job_id).stdout.decode()


@pytest.mark.plants_corruption
def test_a_job_that_should_have_ended_ends(terminal: Terminal) -> None:
    job_id = prepare(
        terminal, "UPDATE fanin.part SET status = 'succeeded', result = '1', attempt = 1, ready = false, "
        "claim_id = '11111111-2222-3333-4444-555555555555'",
    )  # fmt: skip
    found = terminal.json("repair")
    assert (found["ended"], found["repairs"][-1]["after"]) == (1, {"status": "completed", "outcome": "all_ok"})
    assert {job["id"]: job["status"] for job in terminal.json("jobs")}[job_id] == "completed"
    told = [moment["text"] for moment in terminal.json("explain", job_id)["timeline"] if moment["what"] == "repaired"]
    assert "ended by repair: completed, all_ok" in told


@pytest.mark.plants_corruption
def test_what_is_damaged_is_told_with_what_to_do_and_exits_with_1(terminal: Terminal) -> None:
    job_id = prepare(terminal, "DELETE FROM fanin.part WHERE idx = 1")
    for again in (False, True):
        done = terminal.run("repair", code=exits.FAILED)
        found = "damaged: 4 parts were planned, 3 are there" + ("" if again else "; paused")
        assert done.stdout.decode() == f"job {job_id[:13]}  {found}\nlooked at 1 jobs, repaired 0, 1 damaged\n"
        assert b"fanin cancel JOB" in done.stderr
    assert "damaged: 4 parts were planned, 3 are there" in terminal.run("explain", job_id).stdout.decode()
    assert "paused by fanin repair" in terminal.run("explain", job_id).stdout.decode()
    terminal.run("finish", job_id)
    terminal.run("repair")


@pytest.mark.plants_corruption
def test_one_part_is_explained_with_its_own_repair(terminal: Terminal) -> None:
    job_id = prepare(terminal, "UPDATE fanin.part SET due_at = due_at + 1e9, ready = false WHERE idx > 1")
    assert terminal.run("repair").stdout.decode().splitlines()[-1] == "looked at 1 jobs, repaired 1, with 2 parts"
    told = [
        [moment["text"] for moment in terminal.json("explain", job_id, "--part", f"{idx}")["timeline"]]
        for idx in range(4)
    ]
    assert [sum("repaired" in text for text in texts) for texts in told] == [0, 0, 1, 1]


def test_an_unknown_job_is_refused(terminal: Terminal) -> None:
    assert b"fanin jobs" in terminal.run("repair", "nothing-like-it", code=exits.USAGE).stderr


def test_every_rule_has_advice_that_names_commands_that_are_there() -> None:
    assert set(ADVICE) == set(check.CHECKS)
    named = {word for advice in ADVICE.values() for word in re.findall(r"fanin (\w+)", advice)}
    assert named <= set(COMMANDS)
    assert "repair" in named
