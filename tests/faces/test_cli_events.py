"""``fanin relay``, ``fanin work --relay`` and ``fanin events``, as a person uses them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from fanin.stores import open_store
from tests.faces.terminal import Terminal
from tests.relay.receipts import ends

MODULE = """
import fanin

app = fanin.App()

@app.task(name="quick")
def quick(number: int) -> int:
    return number

def picky(event):
    if open("mood").read() == "no":
        raise ValueError("not today")

def never(event):
    raise fanin.Permanent("not this one")
"""


@pytest.fixture
def shop(terminal: Terminal) -> Terminal:
    (terminal.folder / "shop.py").write_text(MODULE)
    return terminal


def make(terminal: Terminal, count: int) -> list[str]:
    store = open_store(terminal.url)
    keys = ends(store, count)
    store.close()
    return keys


def ids(lines: bytes) -> list[Any]:
    return [json.loads(line)["id"] for line in lines.splitlines()]


def test_events_go_to_standard_output_once(shop: Terminal) -> None:
    keys = make(shop, 30)
    done = shop.run("relay", "--to", "stdout", "--until-idle")
    assert sorted(ids(done.stdout)) == sorted(keys)
    assert b"30 events published, 0 refused, 0 parked" in done.stderr
    assert shop.run("relay", "--to", "stdout", "--until-idle").stdout == b""
    assert {row["status"] for row in shop.json("events", "--limit", "100")} == {"published"}


def test_a_signal_ends_it_after_the_batch(shop: Terminal) -> None:
    (key,) = make(shop, 1)
    process = shop.start("relay", "--to", "stdout")
    assert process.stdout is not None
    assert ids(process.stdout.readline()) == [key]
    process.send_signal(signal.SIGTERM)
    shop.end(process)
    assert [row["status"] for row in shop.json("events")] == ["published"]


def test_workers_may_deliver_the_events_of_their_jobs_too(shop: Terminal) -> None:
    (key,) = make(shop, 1)
    done = shop.run("work", "shop", "--until-idle", "--relay", "stdout")
    assert ids(done.stdout) == [key]
    assert b"1 events published" in done.stderr


def test_a_parked_event_is_listed_with_its_reason_and_can_be_retried(shop: Terminal) -> None:
    one, two = make(shop, 2)
    shop.run("relay", "--to", "python:shop:never", "--until-idle")
    parked = shop.json("events", "--status", "parked")
    assert {row["key"] for row in parked} == {one, two}
    assert {row["error"] for row in parked} == {"Permanent: not this one"}
    assert parked[0]["payload"]["outcome"] == "all_ok"
    said = shop.run("events").stdout.decode()
    assert one in said
    assert "not this one" in said
    assert shop.json("events", "retry", one) == {"retried": 1}
    assert b"1 events will be tried again" in shop.run("events", "retry").stderr
    assert b"nothing to retry" in shop.run("events", "retry").stderr
    assert sorted(ids(shop.run("relay", "--to", "stdout", "--until-idle").stdout)) == sorted([one, two])


def test_a_reader_that_leaves_ends_the_relay(shop: Terminal) -> None:
    make(shop, 1)
    process = shop.start("relay", "--to", "stdout")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    make(shop, 1)
    assert process.wait(60) == 0
    assert sorted(row["status"] for row in shop.json("events")) == ["published", "waiting"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["relay"], "--to: name a receiver"),
        (["relay", "--to", "smoke://x"], "no receiver that fanin knows"),
        (["relay", "--to", "stdout", "--batch", "0"], "batch=0: give 1 to 1000"),
        (["relay", "--to", "stdout", "--lease", "0s"], "lease=0"),
        (["events", "frob"], "there are list and retry"),
        (["events", "--status", "odd"], "there are waiting, claimed, published, parked"),
        (["events", "list", "x"], "the list takes no keys"),
        (["events", "--limit", "0"], "give 1 to 10000"),
    ],
)
def test_a_call_that_cannot_work_is_refused(sqlite_terminal: Terminal, words: list[str], said: str) -> None:
    assert said in sqlite_terminal.run(*words, code=2).stderr.decode()
