"""The other libraries: what can be had without installing any of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.databases import Database
from bench.peers import catalog, environments, rounds
from bench.peers.catalog import PEERS, Peer
from bench.peers.environments import Missing

ABSENT = Peer("Absent", "on_pool", (), "redis", 20, "none", "nothing")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    monkeypatch.setattr(environments, "FOLDER", tmp_path / "environments")
    return [Database("SQLite", str(tmp_path))]


def test_every_peer_has_its_script() -> None:
    assert {peer.script for peer in PEERS} == {file.stem for file in rounds.SCRIPTS.glob("on_*.py")}


def test_peers_of_one_environment_have_the_same_requirements() -> None:
    for peer in PEERS:
        assert {other.requirements for other in PEERS if other.folder == peer.folder} == {peer.requirements}


def test_a_peer_is_chosen_by_the_beginning_of_its_name() -> None:
    assert [peer.name for peer in catalog.chosen(["huey", "CELERY"])] == ["Huey (Redis)", "Huey (SQLite)", "Celery"]
    with pytest.raises(LookupError, match="no peer is called 'selery'"):
        catalog.chosen(["selery"])


def test_a_round_measures_fanin_and_the_peer_and_compares_them(here: list[Database]) -> None:
    pool = next(peer for peer in PEERS if peer.script == "on_pool")
    own, theirs = rounds.rows(here, [pool], repeat=1, most=20)
    assert (own["peer"], own["database"], own["parts"]) == ("fanin", "SQLite", 20)
    assert (theirs["missing"], theirs["wrong"], theirs["parts"]) == (None, None, 20)
    assert theirs["fanin_sqlite_times"] > 0
    assert theirs["fanin_postgres_times"] is None


def test_a_peer_that_cannot_be_measured_is_reported_with_the_reason(
    here: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.peers.redis_server.shutil.which", lambda _: None)
    rows = list(rounds.rows(here, [ABSENT], repeat=1, most=5))
    assert rows[-1]["missing"] == "there is no redis-server here"
    assert rows[-1]["parts_per_second"] is None


def test_an_interpreter_that_is_not_here_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    future = Peer("Future", "on_pool", (), "memory", 1, "none", "nothing", python=(3, 90))
    with pytest.raises(Missing, match=r"it needs Python 3\.90, and there is none here"):
        environments.python(future)


def test_a_script_that_fails_is_a_reason(here: list[Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "scripts"
    broken.mkdir()
    (broken / "on_nothing.py").write_text("raise SystemExit('out of order')")
    monkeypatch.setattr(rounds, "SCRIPTS", broken)
    with pytest.raises(Missing, match="its run ended with 1: out of order"):
        rounds._measure(Peer("Nothing", "on_nothing", (), "memory", 1, "none", "nothing"), 1, here, None)


@pytest.mark.parametrize(
    ("joins", "count", "distinct", "ordered", "wrong"),
    [
        (1, 5, 5, True, None),
        (2, 5, 5, True, "2 callbacks"),
        (1, 4, 4, True, "4 of 5 results, in order: True"),
        (1, 5, 4, False, "4 of 5 results, in order: False"),
        (1, 5, 5, False, "5 of 5 results, in order: False"),
    ],
)
def test_a_wrong_join_is_said(joins: int, count: int, distinct: int, ordered: bool, wrong: str | None) -> None:
    outcome = {"joins": joins, "count": count, "distinct": distinct, "ordered": ordered}
    assert rounds._fault(outcome, 5) == wrong


def test_a_script_that_takes_too_long_is_asked_to_stop_so_that_it_can_stop_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, stopped, script = tmp_path / "ready", tmp_path / "stopped", tmp_path / "script.py"
    script.write_text(
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(stopped)!r}).touch(), sys.exit(1)))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(100)\n"
    )
    whole = subprocess.Popen.communicate

    def too_late(process: subprocess.Popen[str], timeout: float | None = None) -> tuple[str, str]:
        if timeout is None:
            return whole(process)
        while not ready.exists():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired("script.py", timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", too_late)
    with pytest.raises(Missing, match="it was not done after 300 s"):
        rounds._run([sys.executable, str(script)], dict(os.environ))
    assert stopped.exists()
