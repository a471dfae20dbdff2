"""``fanin outputs`` lists and saves what counts, ``fanin sweep`` removes what does not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import fanin
from fanin.cli import exits
from fanin.runtime.outputs import VARIABLE
from tests.faces.terminal import Terminal


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def leave(url: str) -> None:
    """Two parts leave a page each; the second one fails. A job without outputs beside them."""
    app = fanin.App(url)

    @app.task(attempts=1)
    def page(n: int) -> None:
        fanin.current().put("page.txt", f"page {n}")
        fanin.current().put("thumb", b"")
        if n:
            raise ValueError(n)

    @app.task
    def nothing() -> None: ...

    app.map(page, range(2), tolerate=1, key="book")
    app.submit_with(nothing, key="empty")
    app.run_worker(until_idle=True)
    app.close()


def test_outputs_are_listed_for_people_and_for_programs(terminal: Terminal, root: Path) -> None:
    leave(terminal.url)
    head, *lines = terminal.run("outputs", "book").stdout.decode().splitlines()
    assert head.split() == ["part", "name", "bytes", "where"]
    assert [line.split()[:3] for line in lines] == [["0", "page.txt", "6"], ["0", "thumb", "0"]]
    assert all(line.split()[3].startswith(str(root)) for line in lines)
    (found,) = terminal.json("outputs", "book", "--name", "page.txt")
    assert (found["part"], found["name"], found["bytes"]) == (0, "page.txt", 6)
    assert found["sha256"] == hashlib.sha256(b"page 0").hexdigest()
    nothing = terminal.run("outputs", "empty")
    assert nothing.stdout == b""
    assert b"has left an output" in nothing.stderr


def test_outputs_are_saved_and_a_changed_one_is_an_error(terminal: Terminal, root: Path) -> None:
    leave(terminal.url)
    (terminal.folder / "here").mkdir()
    assert b"there is no such folder" in terminal.run("outputs", "book", "--save", "no", code=exits.USAGE).stderr
    terminal.run("outputs", "book", "--save", "here")
    assert {path.name: path.read_text() for path in (terminal.folder / "here").iterdir()} == {
        "0-page.txt": "page 0", "0-thumb": "",
    }  # fmt: skip
    (place,) = (found["where"] for found in terminal.json("outputs", "book", "--name", "page.txt"))
    Path(place).write_text("page x")
    said = terminal.run("outputs", "book", "--save", "here", code=exits.FAILED).stderr
    assert b"is not what part 0 wrote" in said


def test_a_sweep_says_what_it_did_and_what_it_cannot_reach(terminal: Terminal, root: Path) -> None:
    leave(terminal.url)
    assert terminal.json("sweep") == {"kept": 0, "removed": 0, "forgotten": 0, "unreachable": 0}, "all are young"
    root.rename(root.with_name("elsewhere"))
    away = terminal.run("sweep", "--grace", "0s", code=exits.FAILED)
    assert away.stdout == b"removed 0, removed once more 0, decided to be kept 2\n"
    assert b"2 could not be reached from this host" in away.stderr
    root.with_name("elsewhere").rename(root)
    assert terminal.run("sweep", "--grace", "0s").stdout.startswith(b"removed 2, ")
    assert terminal.json("sweep", "--grace", "0s", "--longest", "0s")["forgotten"] == 2
    assert [path.name for path in sorted(root.rglob("*")) if path.is_file()] == ["page.txt", "thumb"]
