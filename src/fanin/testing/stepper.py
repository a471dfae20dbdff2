"""Drive transactions of the protocol by hand, statement by statement, on a real database.

A `Session` is one real connection that plays a *script*: a generator that yields transactions and is sent their
values, as a worker would run them one after the other. The session stops before every statement and before every
COMMIT; whoever holds it decides which session moves next, or cuts its connection there.

    session.play(once(lambda: finish.settle(bucket, reports)))
    session.hold("counting.count_down")      # everything before the count has run, nothing is committed
    session.cut()                          # the connection is gone, as if the process had died here
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from fanin.protocol.steps import Again, Rows, Statement, Txn, TxnFactory
from fanin.stores.postgres import PostgresStore

T = TypeVar("T")

Script = Generator[TxnFactory[Any], Any, Any]
"""Yields factories of transactions, is sent their values (or has their refusals thrown in), returns the outcome."""

COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
TRIES = 12
PATIENCE_SECONDS = 30.0
PATIENCE_FIRST_SECONDS, PATIENCE_NEXT_SECONDS = 0.002, 0.001
DEADLOCK_MILLISECONDS = 50

_AGAIN = (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable)


class Blocked(Exception):
    """A session was to run on, but waits for a lock that another one holds."""


class Watcher:
    """Asks the server who waits for whom, on a connection that takes no part."""

    def __init__(self, store: PostgresStore) -> None:
        self._connection = store.connect()

    def blocked(self, pid: int, peers: Sequence[int]) -> bool:
        """Whether the backend ``pid`` waits for a lock that one of ``peers`` holds or waits for before it."""
        row = self._connection.execute("SELECT pg_blocking_pids(%s) && %s::int[]", [pid, list(peers)]).fetchone()
        return bool(row and row[0])

    def execute(self, text: str, values: list[Any] | None = None) -> Rows:
        cursor = self._connection.execute(text, values)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._connection.close()


class Session:
    """One connection that plays a script and stops before every statement.

    ``outcome`` is what the script returned, or the exception that ended it. ``retried`` lists the SQLSTATEs after
    which a transaction was begun again, as a store would do: ``40P01`` is a deadlock. ``pausing``: it has found a lock
    for which it does not wait, and is to go on when another session has let go of its locks.
    """

    def __init__(self, store: PostgresStore, name: str, watcher: Watcher) -> None:
        self.name = name
        self._store = store
        self._watcher = watcher
        self._thread = ThreadPoolExecutor(1, f"session-{name}")
        self._connect()
        self._clear()

    def _connect(self) -> None:
        self._connection = self._store.connect()
        self.pid = self._connection.info.backend_pid
        with contextlib.suppress(errors.InsufficientPrivilege):
            self._connection.execute(f"SET deadlock_timeout = {DEADLOCK_MILLISECONDS}")  # only saves time

    def _clear(self) -> None:
        self._script: Script | None = None
        self._factory: TxnFactory[Any] | None = None
        self._txn: Txn[Any] | None = None
        self._statement: Statement | None = None
        self._value: Any = None
        self._running: Future[Rows] | None = None
        self.next: str | None = None
        self.outcome: Any = None
        self.retried: list[str] = []
        self.pausing = False

    # What can be seen from outside.

    @property
    def done(self) -> bool:
        return self.next is None

    @property
    def waiting(self) -> bool:
        """A statement is under way: it waits for a lock, or its end was not looked for yet."""
        return self._running is not None

    @property
    def ready(self) -> bool:
        return not self.done and not self.waiting

    # The hand.

    def play(self, script: Script) -> None:
        """Take up a script and stop before its first statement. The one before must have come to its end."""
        assert self.done, f"session {self.name} is still before {self.next}"
        if self._connection.closed:
            self._connect()
        self._clear()
        self._script = script
        self._resume(lambda: next(script))

    def start(self) -> None:
        """Begin the next statement, without waiting for it."""
        assert self.ready, f"session {self.name} cannot start: done={self.done}, waiting={self.waiting}"
        self._running = self._thread.submit(self._perform, self.next, self._statement)

    def settle(self, peers: Sequence[int] = (), patience: float = PATIENCE_FIRST_SECONDS) -> bool:
        """Wait until the statement under way has ended (True) or waits for one of the backends ``peers`` (False).

        The server is asked who waits for whom after ``patience`` seconds.
        """
        assert self._running is not None, f"session {self.name} has nothing under way"
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _ended(self._running, patience):
            if peers and self._watcher.blocked(self.pid, peers) and not self._running.done():
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"session {self.name}: {self.next} neither ended nor waits for {peers}")
            patience = PATIENCE_NEXT_SECONDS
        self._finish()
        return True

    def step(self, peers: Sequence[int] = ()) -> bool:
        """One statement. False if it waits for a lock; `settle` it later."""
        self.start()
        return self.settle(peers)

    def hold(self, label: str) -> None:
        """Run up to the statement ``label`` (``room.name``, or ``COMMIT``) and stop before it.

        Raises LookupError if the script ends without coming there.
        """
        while self.next != label:
            if self.done:
                raise LookupError(f"session {self.name} ended before {label}")
            self.step()

    def finish(self) -> Any:
        """Run to the end. Returns the outcome."""
        if self.waiting:
            self.settle()
        while not self.done:
            self.step()
        return self.outcome

    def cut(self) -> None:
        """Drop the connection where it stands, as if the process had died. The server rolls back on its own."""
        assert not self.waiting, "a statement under way cannot be cut from here"
        sever(self._connection)
        self.outcome, self.next = None, None
        if self._txn is not None:
            self._txn.close()
        if self._script is not None:
            self._script.close()

    def close(self) -> None:
        self._connection.close()
        self._thread.shutdown()

    # One statement, in the session's own thread.

    def _perform(self, label: str | None, statement: Statement | None) -> Rows:
        connection = self._connection
        if statement is None:
            tag = connection.execute(str(label)).statusmessage
            assert tag == label, f"the database answered {label} with {tag}"
            return []
        if connection.info.transaction_status == TransactionStatus.IDLE:
            connection.execute(self._store.target.begin)
        cursor = connection.execute(statement.query.for_postgres(self._store.schema), statement.postgres_values())
        return cursor.fetchall() if cursor.description else []

    # What comes next, in the thread of whoever holds the session.

    def _finish(self) -> None:
        assert self._running is not None
        running, self._running = self._running, None
        try:
            rows = running.result()
        except psycopg.Error as problem:
            self._failed(problem)
        else:
            if self._statement is None:
                self._ended_txn()
            else:
                txn = self._txn
                assert txn is not None
                self._advance(lambda: txn.send(rows))

    def _failed(self, problem: psycopg.Error) -> None:
        self._connection.execute(ROLLBACK)
        factory = self._factory
        assert factory is not None
        if isinstance(problem, _AGAIN) and len(self.retried) < TRIES:
            self.retried.append(problem.sqlstate or type(problem).__name__)
            self.pausing = isinstance(problem, errors.LockNotAvailable)
            self._begin(factory)
        else:
            self._value = problem
            self._ended_txn()

    def _begin(self, factory: TxnFactory[Any]) -> None:
        self._factory = factory
        txn = self._txn = factory()
        self._advance(lambda: next(txn))

    def _advance(self, move: Callable[[], Statement]) -> None:
        idle = self._connection.info.transaction_status == TransactionStatus.IDLE
        try:
            self._statement = move()
            self.next = f"{self._statement.query.room}.{self._statement.query.name}"
            return
        except StopIteration as stop:
            self._value, self.next = stop.value, COMMIT
        except Again as again:
            self._value, self.next = again, ROLLBACK
        except Exception as refusal:
            self._value, self.next = refusal, ROLLBACK
        self._statement = None
        if idle:  # nothing was sent, so there is nothing to end
            self._ended_txn()

    def _ended_txn(self) -> None:
        value, script = self._value, self._script
        assert script is not None
        if isinstance(value, Again):
            self._begin(value.factory)
        elif isinstance(value, Exception):
            self._resume(lambda: script.throw(value))
        else:
            self._resume(lambda: script.send(value))

    def _resume(self, move: Callable[[], TxnFactory[Any]]) -> None:
        try:
            factory = move()
        except StopIteration as stop:
            self.outcome, self.next = stop.value, None
        except Exception as refusal:
            self.outcome, self.next = refusal, None
        else:
            self._begin(factory)


def once(factory: TxnFactory[Any]) -> Script:
    """The script of a single transaction; its outcome is the transaction's value."""
    return (yield factory)


def sever(connection: psycopg.Connection[Any]) -> None:
    """Cut the wire of a connection, without a farewell to the server."""
    if not connection.closed:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire:
            wire.shutdown(socket.SHUT_RDWR)
        connection.close()


def _ended(running: Future[Rows], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        running.exception(seconds)
        return True
    return running.done()
