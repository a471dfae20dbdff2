"""The examples that are flows, run as their READMEs say, with less to do."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORDS = ("fan", "out", "join", "once", "part", "zebra")


def said(example: str, *arguments: str, status: int = 0) -> str:
    """What a demo prints, with its own database in its folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FANIN_")}
    command = [sys.executable, str(EXAMPLES / example / "demo.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_words_are_counted_by_letter_as_in_one_loop_and_only_once(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "deep").mkdir(parents=True)
    for number in range(12):
        text = " ".join(word.title() for word in WORDS[: 1 + number % len(WORDS)]) + "\n"
        (corpus / ("deep" if number % 2 else ".") / f"{number}.txt").write_text(text * (number + 1))
    (corpus / "picture.png").write_bytes(b"fan\0")
    arguments = [str(tmp_path / "demo"), f"--corpus={corpus}", "--batch=5"]
    first = said("wordcount", *arguments)
    assert first.splitlines()[-1] == "same counts as in one loop"
    assert "12 files" in first
    assert "in 3 parts" in first
    assert "  78 fan\n" in first
    assert said("wordcount", *arguments).splitlines()[1:] == first.splitlines()[1:]
    with sqlite3.connect(tmp_path / "demo" / "wordcount.db") as database:
        tasks = Counter(task for (task,) in database.execute("SELECT task FROM fanin_job"))
        parts = database.execute("SELECT count(*) FROM fanin_part WHERE status = 'succeeded'").fetchone()
    assert sum(tasks.values()) == 5
    assert parts == (3 + 1 + 1 + 5 + 1,)


@pytest.mark.timeout(400)
def test_a_load_is_taken_back_when_publishing_fails_and_then_loaded_once(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert (
        said("etl", folder, "--rows=60", "--chunk=25").splitlines()[-1] == "the tables are as they must be: loaded once"
    )
    (tmp_path / "report.json").rename(tmp_path / "first.json")

    failed = said("etl", folder, "--rows=200", "--chunk=50", "--fail=publish")
    assert failed.splitlines()[0].endswith("-1: compensated")
    assert "  load_orders: undone\n" in failed
    assert "  load_totals: undone\n" in failed
    assert "orders: 57 rows before, 57 now" in failed
    assert failed.splitlines()[-1] == "the tables are as before"
    assert not (tmp_path / "report.json").exists()

    again = said("etl", folder, "--rows=200", "--chunk=50")
    assert again.splitlines()[0].endswith("-2: completed")
    assert "orders: 57 rows before, 247 now" in again
    assert "totals: 6 rows before, 12 now" in again
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["rows"], report["refused"]) == (190, 10)

    assert "orders: 247 rows before, 247 now" in said("etl", folder, "--rows=200", "--chunk=50")
