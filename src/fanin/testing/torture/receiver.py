"""The receiver of effects: it loses some answers, refuses some calls, and keeps a book of what it has done."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections import Counter

import msgspec

import fanin
from fanin.testing.torture.journal import Journal
from fanin.testing.torture.plan import Item

BUSY_SECONDS = 60.0
TIMEOUT_SECONDS = 3.0
CALLS = 1000
"""So often the receiver may be away, or a caller killed, before an effect is given up."""
BACKOFF = fanin.Backoff(first=0.05, factor=1.5, cap=0.4)
MODES = {"torture.idempotent": "idempotent", "torture.probe": "probe", "torture.once": "at_most_once"}
NOW = "torture.now"
"""This one is called by the attempt itself, all others by a worker, after the commit."""
REFUSED, UNHEARD, UNANSWERED = 0.05, 0.05, 0.15
"""Shares of the calls: surely not done, lost on the way, and done without an answer."""


class Wish(msgspec.Struct, frozen=True):
    """The request of an effect: the part that asks for it, and for which. It holds no attempt."""

    job: str
    idx: int
    name: str


class Receiver:
    """What one process knows of the receiver. The book is in a database of its own, for all processes."""

    def __init__(self, folder: str, journal: Journal, who: str) -> None:
        self._folder = folder
        self._journal = journal
        self._who = who

    def register(self, app: fanin.App) -> None:
        """The effects of a torture, one for each mode, and one for calls by the attempt."""
        for name, mode in {**MODES, NOW: "idempotent"}.items():
            app.effect(
                name, mode=mode, timeout=TIMEOUT_SECONDS, probe=self._probe if mode == "probe" else None,
                attempts=None if mode == "at_most_once" else CALLS, backoff=BACKOFF,
            )(self._call)  # fmt: skip

    def _call(self, wish: Wish, key: str) -> str:
        self._journal.write(e="call", j=wish.job, i=wish.idx, n=wish.name, k=key)
        luck = random.random()
        if luck < REFUSED:
            raise fanin.RetryLater(0.05)
        if luck < REFUSED + UNHEARD:
            raise ConnectionError("the call was lost on its way")
        done = {"torture.probe": self._unless_late, "torture.once": self._always}.get(wish.name, self._by_key)
        if not done(wish, key):
            raise fanin.RetryLater(0.05)
        if luck < REFUSED + UNHEARD + UNANSWERED:
            self._journal.write(e="unanswered", k=key)
            raise ConnectionError("the answer was lost on its way")
        return key

    def _by_key(self, wish: Wish, key: str) -> bool:
        """It honours the key: what it has done is not done again."""
        with _book(self._folder) as book:
            book.execute(f"{_DO} WHERE NOT EXISTS (SELECT 1 FROM done WHERE key = ?4)", (*_of(wish), key))
        return True

    def _always(self, wish: Wish, key: str) -> bool:
        with _book(self._folder) as book:
            book.execute(_DO, (*_of(wish), key))
        return True

    def _unless_late(self, wish: Wish, key: str) -> bool:
        """It does not look at the key, but turns away a caller behind whose back another one has asked, and was told
        that nothing has happened: this call is later than its deadline, or the clock has moved."""
        with _book(self._folder) as book:
            asked = "SELECT 1 FROM asked WHERE key = ?4 AND caller <> ?5"
            book.execute(f"{_DO} WHERE NOT EXISTS ({asked})", (*_of(wish), key, self._caller()))
            ((told,),) = book.execute("SELECT changes()")
        if not told:
            self._journal.write(e="late", k=key)
        return bool(told)

    def _probe(self, wish: Wish, key: str) -> str | None:
        with _book(self._folder) as book:
            if book.execute("SELECT 1 FROM done WHERE key = ?", (key,)).fetchone():
                return key
            book.execute("INSERT OR REPLACE INTO asked (key, caller) VALUES (?, ?)", (key, self._caller()))
        return None

    def _caller(self) -> str:
        """A probe and the call that follows it are of one thread."""
        return f"{self._who}/{os.getpid()}/{threading.get_ident()}"


def ask(item: Item, journal: Journal, on_loop: bool) -> None:
    """Ask for the effects of this part. What an attempt has asked for is written down before it is reported."""
    part = fanin.current()
    for name in item.wishes:
        now = name == NOW
        if now and on_loop:
            continue
        part.effect(name, Wish(part.job_id, part.idx, name), now=now)
        journal.write(e="wish", j=part.job_id, i=part.idx, a=part.attempt, n=name)


def look(folder: str) -> Counter[tuple[str, int, str]]:
    """How often the receiver has done what which part asked for."""
    with _book(folder) as book:
        return Counter((job, idx, name) for job, idx, name in book.execute("SELECT job, idx, name FROM done"))


_DO = "INSERT INTO done (job, idx, name, key) SELECT ?1, ?2, ?3, ?4"


def _of(wish: Wish) -> tuple[str, int, str]:
    return wish.job, wish.idx, wish.name


class _book:
    """One transaction in the receiver's book. What is not flushed outlives a kill of its process all the same."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "receiver.db")

    def __enter__(self) -> sqlite3.Connection:
        self._connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("BEGIN IMMEDIATE")
        for table in ("done (job text, idx integer, name text, key text)", "asked (key text PRIMARY KEY, caller text)"):
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table}")
        self._connection.execute("CREATE INDEX IF NOT EXISTS done_key ON done (key)")
        return self._connection

    def __exit__(self, problem: object, *_: object) -> None:
        self._connection.execute("COMMIT" if problem is None else "ROLLBACK")
        self._connection.close()
