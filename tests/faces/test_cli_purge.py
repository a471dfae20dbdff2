"""``fanin purge`` and ``fanin work --retain``, as a person uses them."""

from __future__ import annotations

from fanin.cli import exits
from fanin.domain.purged import REASONS
from fanin.stores import open_store
from tests.faces.terminal import Terminal
from tests.relay.receipts import ends


def make(terminal: Terminal, count: int) -> None:
    store = open_store(terminal.url)
    ends(store, count)
    store.close()


def test_it_says_what_goes_and_what_stays_and_why(terminal: Terminal) -> None:
    make(terminal, 2)
    terminal.run("relay", "--to", "stdout", "--until-idle")
    make(terminal, 1)
    said = terminal.run("purge", "--older-than", "0s", "--dry-run").stdout.decode().splitlines()
    assert said[0] == "would remove 2 jobs in 2 trees, with 0 parts and 2 events (0 of them had not left)"
    assert said[1] == "kept 1 trees: events of them have not left; --unsent takes them along"
    assert len(terminal.json("jobs")) == 3
    found = terminal.json("purge", "--older-than", "0s")
    assert (found["jobs"], found["kept"]["events"]) == (2, 1)
    assert terminal.json("purge", "--older-than", "0s", "--unsent")["events_unsent"] == 1
    assert terminal.json("jobs") == []


def test_what_is_younger_stays(terminal: Terminal) -> None:
    make(terminal, 1)
    assert terminal.json("purge", "--older-than", "30d", "--unsent")["jobs"] == 0


def test_an_age_must_be_given(terminal: Terminal) -> None:
    assert b"--older-than" in terminal.run("purge", code=exits.USAGE).stderr
    assert b"'soon'" in terminal.run("purge", "--older-than", "soon", code=exits.USAGE).stderr


def test_a_worker_is_told_how_long_to_retain(terminal: Terminal) -> None:
    (terminal.folder / "shop.py").write_text(
        "import fanin\napp = fanin.App()\n@app.task\ndef quick(n: int): return n\n"
    )
    assert b"--retain='soon'" in terminal.run("work", "shop:app", "--retain", "soon", code=exits.USAGE).stderr
    terminal.run("work", "shop:app", "--retain", "30d", "--until-idle")


def test_the_reasons_are_those_of_the_protocol() -> None:
    from fanin.cli.purge import KEPT

    assert tuple(KEPT) == REASONS
