"""``fanin signals``: counts for people and for programs."""

from __future__ import annotations

from fanin.cli import exits
from fanin.protocol import lease
from fanin.stores import open_store
from tests.faces.terminal import Terminal
from tests.protocol.helpers import claim, done, make, settle


def test_a_refused_commit_is_counted_and_told(terminal: Terminal) -> None:
    store = open_store(terminal.url)
    make(store, 1)
    (early,) = claim(store, seconds=-1.0)
    store.run(lambda: lease.wake(0))
    claim(store)
    settle(store, done(early))
    store.close()
    found = terminal.json("signals")
    assert (found["stale_commits"], found["leases_lost"], found["work_stopped"], found["since"]) == (1, 1, 0, 3600.0)
    said = terminal.run("signals", "--since", "2h").stdout.decode()
    assert "stale commits          1          leases are shorter than the pauses of your hosts" in said
    assert [line.split()[:3] for line in said.splitlines()][9] == ["events", "parked", "0"]


def test_a_wrong_window_is_refused(terminal: Terminal) -> None:
    done = terminal.run("signals", "--since", "tomorrow", code=exits.USAGE)
    assert b"--since='tomorrow': give seconds, or a text such as" in done.stderr
