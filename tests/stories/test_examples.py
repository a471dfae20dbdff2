"""The examples, run as their READMEs say, with less to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("fpdf")
pytest.importorskip("pypdf")

from examples.book.account import broken_promises
from examples.book.binding import Chapter, bind
from examples.book.render import render

import fanin

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def in_a_group(command: list[str], timeout_s: float) -> tuple[int, str]:
    """Exit code and output. Whatever the command has started is ended with it, also when it takes too long."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return -signal.SIGKILL, f"killed after {timeout_s} s; it had said:\n" + process.communicate()[0]


@pytest.mark.timeout(400)
def test_the_book_is_printed_once_although_one_worker_is_killed_and_one_is_paused(
    migrated_url: str, tmp_path: Path
) -> None:
    demo = [sys.executable, str(EXAMPLES / "book" / "demo.py"), str(tmp_path / "book"), "--parts=60"]
    code, said = in_a_group([*demo, f"--url={migrated_url}"], timeout_s=300)
    logs = "".join(log.read_text() for log in tmp_path.glob("book/worker-*.log"))
    assert code == 0, said + logs
    account = json.loads((tmp_path / "book" / "account.json").read_text())
    assert (account["parts"], account["results"]) == (60, 60)
    assert (account["ends"], account["events"], account["successors"]) == (1, 1, 1)
    assert account["leases_lost"] >= 2
    assert account["stale_refused"] >= 1
    assert account["attempts"] >= 62


class Ended:
    """A job as the account reads it."""

    def __init__(self, chapters: list[Chapter]) -> None:
        self.chapters = chapters

    def results(self) -> list[Chapter]:
        return self.chapters


def test_the_demo_complains_about_whatever_is_not_as_promised(tmp_path: Path) -> None:
    chapters = []
    for title in ("one", "two", "three"):
        source, target = tmp_path / f"{title}.py", tmp_path / f"{title}.pdf"
        source.write_text("pass\n" * 100)
        size = render(source, title, target)
        chapters.append(Chapter(title, str(target), size.pages, size.lines))
    book = tmp_path / "book.pdf"
    good = {
        "parts": 3, "results": 3, "ends": 1, "events": 1, "successors": 1, "leases_lost": 2, "stale_refused": 1,
        "rules_broken": [], "pages": bind(chapters, book), "book": str(book),
    }  # fmt: skip

    def complaints(order: list[Chapter] = chapters, **changed: Any) -> list[str]:
        return list(broken_promises(cast(fanin.Job, Ended(order)), good | changed, faults=True))

    assert complaints() == []
    assert complaints(ends=2) == ["the job has 2 ends, not 1"]
    assert complaints(events=0) == ["the job has 0 events, not 1"]
    assert complaints(results=2) == ["2 of 3 parts have a result"]
    assert complaints(stale_refused=0) == ["the paused worker's late commit was not refused"]
    assert complaints(leases_lost=1) == ["a worker was killed and one paused, yet only 1 leases were lost"]
    assert complaints(rules_broken=["x is y"]) == ["broken: x is y"]
    assert complaints(pages=99) == ["the book has 8 pages, not 99"]
    assert complaints(chapters[::-1]) == ["page 3 is not the first of three", "page 7 is not the first of one"]
    assert len(complaints([*chapters[:2], replace(chapters[2], pages=1)])) == 1


@pytest.mark.timeout(300)
def test_the_thumbnails_go_into_one_album_and_the_same_script_again_does_nothing_more(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    subprocess.run([sys.executable, str(EXAMPLES / "thumbnails" / "photos.py"), str(photos), "12"], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "FANIN_URL"} | {
        "PYTHON": sys.executable
    }
    script = ["sh", str(EXAMPLES / "thumbnails" / "run.sh"), str(tmp_path)]
    seen = []
    for _ in range(2):
        done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "12 thumbnails" in done.stdout
        seen.append((tmp_path / "album.zip").stat().st_mtime_ns)
    assert seen[0] == seen[1]
    with zipfile.ZipFile(tmp_path / "album.zip") as album:
        assert album.namelist() == [f"hills-{number:03}.jpg" for number in range(1, 13)]


@pytest.mark.timeout(400)
def test_each_invoice_is_mailed_once_although_workers_are_killed_and_answers_are_lost(
    migrated_url: str, tmp_path: Path
) -> None:
    demo = [sys.executable, str(EXAMPLES / "invoices" / "demo.py"), str(tmp_path / "invoices"), "--invoices=24"]
    code, said = in_a_group([*demo, "--kills=3", f"--url={migrated_url}"], timeout_s=330)
    logs = "".join(log.read_text()[-3000:] for log in tmp_path.glob("invoices/*.log"))
    assert code == 0, said + logs
    assert "24 mails delivered" in said
    assert "2 ends booked of 2 jobs" in said


@pytest.mark.timeout(300)
def test_the_crawl_visits_each_page_once_although_a_worker_is_killed(migrated_url: str, tmp_path: Path) -> None:
    demo = [sys.executable, str(EXAMPLES / "crawl" / "demo.py"), str(tmp_path / "crawl"), "--pages=200"]
    code, said = in_a_group([*demo, f"--url={migrated_url}"], timeout_s=250)
    logs = "".join(log.read_text() for log in tmp_path.glob("crawl/worker-*.log"))
    assert code == 0, said + logs
    assert "200 pages, 200 parts, 200 results" in said
    assert said.splitlines()[-1] == "each page once"
