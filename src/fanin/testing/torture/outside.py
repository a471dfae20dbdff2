"""What lies outside the tortured database: a consumer of events with an inbox, a receiver of mails, and files."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence

import msgspec

import fanin
from fanin import inbox
from fanin.domain.events import Event, structured
from fanin.runtime.outputs import VARIABLE
from fanin.runtime.relay import Relay
from fanin.runtime.sinks.base import ACKED, Answer, Sink
from fanin.stores.base import Store
from fanin.testing.torture import receiver
from fanin.testing.torture.journal import Journal, digest

CONSUMER = "torture"
BUSY_SECONDS = 60.0
BATCH = 8
POLL_SECONDS = 0.1
OUTPUT = "page.txt"


def environment(folder: str) -> dict[str, str]:
    """Where the parts of a torture leave their files."""
    return {VARIABLE: os.path.join(folder, "outputs")}


def _database(folder: str) -> sqlite3.Connection:
    """The consumer's own. What is not flushed outlives a kill of its process all the same."""
    connection = sqlite3.connect(os.path.join(folder, "consumer.db"), timeout=BUSY_SECONDS, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.executescript(inbox.ddl("sqlite") + "CREATE TABLE IF NOT EXISTS applied (event_key text);")
    return connection


class Consumer(Sink):
    """Applies each event once, whoever brings it how often: the key first, then the change, in one transaction."""

    batch = BATCH

    def __init__(self, folder: str, journal: Journal) -> None:
        self._folder = folder
        self._journal = journal
        self._connection: sqlite3.Connection | None = None

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        connection = self._connection = self._connection or _database(self._folder)
        for event in batch:
            self._journal.write(e="delivered", k=event.key, d=digest(structured(event).decode()))
            connection.execute("BEGIN IMMEDIATE")
            if inbox.once(connection, CONSUMER, event.key):
                connection.execute("INSERT INTO applied (event_key) VALUES (?)", (event.key,))
            connection.execute("COMMIT")
        return [ACKED] * len(batch)


class Delivering:
    """A relay in a thread of a worker process."""

    def __init__(self, store: Store, folder: str, journal: Journal, name: str) -> None:
        self._relay = Relay(store, Consumer(folder, journal), name=name, poll=POLL_SECONDS)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="torture-relay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._relay.run()
        except BaseException as problem:
            self._problem = problem

    def close(self) -> None:
        self._relay.stop()
        self._thread.join()
        if self._problem is not None:
            raise self._problem


def mail(journal: Journal) -> None:
    """Call the outside. The receiver knows a mail by its key, and sends one for each key."""
    part = fanin.current()
    journal.write(e="mail", j=part.job_id, i=part.idx, k=str(part.idempotency_key))


class Outside(msgspec.Struct, frozen=True):
    """What the judge finds there: how often each event was applied, the files, by their path below the folder, and how
    often the receiver has done what was asked of it, by part and name."""

    applied: Counter[str]
    files: frozenset[str]
    done: Counter[tuple[str, int, str]]


def look(folder: str) -> Outside:
    applied: Counter[str] = Counter()
    if os.path.exists(os.path.join(folder, "consumer.db")):
        connection = _database(folder)
        applied.update(key for (key,) in connection.execute("SELECT event_key FROM applied"))
        connection.close()
    root = environment(folder)[VARIABLE]
    files = (os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names)
    return Outside(applied, frozenset(files), receiver.look(folder))
