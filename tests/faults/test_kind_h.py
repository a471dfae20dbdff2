"""H. Outbox and relay: F051 to F054, F056."""

from __future__ import annotations

import itertools
import random
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fanin import inbox
from fanin.domain import identity
from fanin.protocol import finish, outbox, purge
from fanin.protocol.steps import Txn
from fanin.runtime.purge import purge as purge_all
from fanin.runtime.relay import Relay
from fanin.stores.base import Store
from fanin.testing.stepper import COMMIT, Script, Session, Watcher
from tests.faults.scale import scaled
from tests.protocol.helpers import Clock, claim, clock, done, make, say, settle
from tests.relay.receipts import Receiver, ends, judge, states
from tests.relay.test_relay import Dies, DiesAfter
from tests.runtime.working import until

__all__ = ["clock"]

WRITERS = 8
BATCH = 20


@pytest.mark.parametrize("seed", range(scaled(5)))
def test_F051_events_are_found_in_whatever_order_their_transactions_commit(
    pg_server: Any, store: Any, seed: int
) -> None:
    """All have written their event, in one order; they commit in another, and the relay looks after each."""
    order = random.Random(seed)
    jobs = [make(store, 1) for _ in range(WRITERS)]
    held = {c.job_id: c for c in claim(store)}
    receiver = Receiver()
    relay = Relay(store, receiver)
    watcher = Watcher(store)
    sessions = {job_id: Session(store, job_id, watcher) for job_id in jobs}
    try:
        for job_id, session in sessions.items():

            def script(job_id: str = job_id) -> Script:
                return (yield lambda: finish.settle(0, [done(held[job_id])]))

            session.play(script())
            session.hold(COMMIT)
        waiting, committed = list(jobs), []
        order.shuffle(waiting)
        for job_id in waiting:
            sessions[job_id].finish()
            committed.append(identity.finished_key(job_id, 1))
            relay.run(until_idle=True)
            assert [key for key, _ in receiver.taken] == committed
    finally:
        for session in sessions.values():
            session.close()
        watcher.close()


@pytest.mark.parametrize(("count", "sent"), [(1, 1), (BATCH, 7)])
def test_F052_what_was_sent_and_not_marked_is_sent_again_and_applied_once(
    store: Store, clock: Clock, tmp_path: Path, count: int, sent: int
) -> None:
    expected = ends(store, count)
    first, second = DiesAfter(sent), Receiver()
    with pytest.raises(Dies):
        Relay(store, first, lease=30.0).run(until_idle=True)
    clock.advance(31)
    Relay(store, second).run(until_idle=True)
    assert judge(expected, first.taken + second.taken) == sent

    consumer = sqlite3.connect(tmp_path / "consumer.db", isolation_level=None)
    consumer.executescript(inbox.ddl("sqlite"))
    consumer.execute("CREATE TABLE total (n integer)")
    for key, _ in first.taken + second.taken:
        consumer.execute("BEGIN IMMEDIATE")
        if inbox.once(consumer, "totals", key):
            consumer.execute("INSERT INTO total VALUES (1)")
        consumer.execute("COMMIT")
    assert consumer.execute("SELECT count(*) FROM total").fetchone() == (count,)
    consumer.close()


RECEIVE = """
import os, time

def receive(event):
    while sum(1 for _ in open("receipts")) >= int(open("limit").read()):
        time.sleep(0.01)
    with open("receipts", "ab", buffering=0) as file:
        file.write(f"{os.getpid()} {event.key}\\n".encode())
"""


def test_F053_relays_that_are_killed_repeat_no_more_than_a_batch_each(
    store_url: str, store: Store, tmp_path: Path
) -> None:
    """Three processes, held in the middle of their batches; then one is killed, and another takes its place."""
    (tmp_path / "receiving.py").write_text(RECEIVE)
    kills = scaled(3)
    expected = ends(store, (kills + 1) * 3 * BATCH)
    receipts, limit = tmp_path / "receipts", tmp_path / "limit"
    receipts.touch()
    limit.write_text("0")
    names = itertools.count()

    def start() -> tuple[str, subprocess.Popen[bytes]]:
        name = f"relay-{next(names)}"
        words = ["relay", "--to", "python:receiving:receive", "--batch", str(BATCH), "--name", name, "--url", store_url]
        return name, subprocess.Popen([sys.executable, "-m", "fanin", *words], cwd=tmp_path, stderr=subprocess.DEVNULL)

    def received() -> list[list[str]]:
        return [line.split() for line in receipts.read_text().splitlines()]

    relays = [start() for _ in range(3)]
    try:
        for n in range(kills):
            allowed = (n + 1) * 2 * BATCH
            limit.write_text(str(allowed))
            until(lambda: len(received()) >= allowed, "as many as allowed were received")
            last = received()[-1][0]
            victim = next((r for r in relays if str(r[1].pid) == last), relays[0])
            victim[1].kill()
            victim[1].wait()
            say(store, "UPDATE fanin.outbox SET due_at = 0 WHERE status = 'claimed' AND relay = :name", name=victim[0])
            relays[relays.index(victim)] = start()
        limit.write_text(str(10 * len(expected)))
        until(lambda: set(states(store).values()) == {"published"}, "every event is marked")
    finally:
        for _, process in relays:
            process.kill()
            process.wait()
    times = Counter(key for _, key in received())
    assert set(times) == set(expected)
    assert sum(n - 1 for n in times.values()) <= BATCH * kills


def test_F054_what_is_rolled_back_is_never_sent_and_holds_nothing_up(store: Store) -> None:
    """Every third end is rolled back after its event was written, then said again."""
    jobs = [make(store, 1) for _ in range(12)]
    held = {c.job_id: c for c in claim(store)}
    receiver = Receiver()
    relay = Relay(store, receiver)

    def undone(job_id: str) -> Txn[None]:
        yield from finish.settle(0, [done(held[job_id])])
        raise LookupError("the writer is gone")

    committed = []
    for n, job_id in enumerate(jobs):
        if n % 3 == 0:
            with pytest.raises(LookupError):
                store.run(lambda: undone(job_id))
        else:
            settle(store, done(held[job_id]))
            committed.append(identity.finished_key(job_id, 1))
        relay.run(until_idle=True)
        assert [key for key, _ in receiver.taken] == committed


def test_F056_cleaning_the_outbox_takes_only_what_has_left_and_is_old(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events go with their jobs: so none is ever left whose job is not known any more."""
    sent = ends(store, scaled(200))
    Relay(store, Receiver(batch=100)).run(until_idle=True)
    held = ends(store, 10)
    claim_id = identity.new_claim_id()
    assert len(store.run(lambda: outbox.take(0, 10, 86_400.0, claim_id, "held"))) == 10
    waiting = ends(store, 10)
    clock.advance(3600)
    young = ends(store, 5)
    Relay(store, Receiver()).run(until_idle=True)  # the young and the waiting ones
    late = ends(store, 3)
    monkeypatch.setattr(purge, "PAGE_ROOTS", 7)  # it works in small pages
    assert purge_all(store, 1800.0, dry_run=True).jobs == len(sent) + len(waiting)
    found = purge_all(store, 1800.0)
    assert (found.events, found.events_unsent) == (len(sent) + len(waiting), 0)
    assert found.kept["events"] == len(held)
    left = states(store)
    assert {key for key, status in left.items() if status == "claimed"} == set(held)
    assert set(left) == {*held, *young, *late}
    said = [outbox.Said(key, "mark") for key in held]
    assert store.run(lambda: outbox.settle(0, claim_id, said)) == []  # the held relay is heard all the same
    Relay(store, Receiver()).run(until_idle=True)
    clock.advance(10_000)
    assert purge_all(store, 1800.0).events == len(held) + len(young) + len(late)
    assert say(store, "SELECT count(*) FROM fanin.outbox") == [(0,)]
