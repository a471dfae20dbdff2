"""What every store can do. A store drives the protocol's generators and knows nothing of what they mean."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fanin.domain import limits
from fanin.domain.errors import Unavailable
from fanin.domain.identity import bucket_of
from fanin.domain.model import Finding
from fanin.protocol import check
from fanin.protocol.steps import Again, Rows, Statement, Txn, TxnFactory

T = TypeVar("T")
Execute = Callable[[Statement], Rows]


class Bell(ABC):
    """Tells an idle worker that something may have come. A hint: a missed ring costs one poll interval."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Sleep until the bell rings (True), `ring` is called, or ``seconds`` have passed (False)."""

    @abstractmethod
    def ring(self) -> None:
        """Wake the waiter of this very bell, from any thread."""

    @abstractmethod
    def close(self) -> None: ...


class Store(ABC):
    """One database. Safe to share between threads; after a fork the child opens connections of its own."""

    url: str
    dialect: str
    file: str | None = None
    """The real path of the database, where it is one file."""
    tries: int = limits.TRANSACTION_TRIES
    """How often a transaction is tried before `Unavailable` is raised."""

    @property
    @abstractmethod
    def buckets(self) -> int:
        """How many buckets the schema was made with; asks the database the first time."""

    @abstractmethod
    def run(self, factory: TxnFactory[T]) -> T:
        """Run a writing transaction, again and again with the same ids until it commits or is refused.

        Raises what the transaction raises, or `Unavailable` when the database did not answer after all retries.
        """

    @abstractmethod
    def read(self, factory: TxnFactory[T]) -> T:
        """Run a transaction that writes nothing and takes no lock."""

    @abstractmethod
    def run_in(self, connection: Any, txn: Txn[T]) -> T:
        """Run a transaction inside the caller's own open transaction on ``connection``; the caller commits.

        Raises `BadOption` for a connection that cannot serve, with the reason.
        """

    @abstractmethod
    def table(self, statement: Statement) -> list[dict[str, Any]]:
        """The rows of one read-only statement, by column name."""

    @abstractmethod
    def bell(self, queues: list[str]) -> Bell: ...

    @abstractmethod
    def reserve(self) -> Store:
        """A store on a connection that no other thread can use up, and that tries once: for heartbeats."""

    @abstractmethod
    def close(self) -> None: ...

    def bucket(self, job_id: str) -> int:
        return bucket_of(job_id, self.buckets)

    def check(self) -> Iterator[tuple[str, str, list[Finding]]]:
        """Each invariant with its sentence and the rows that break it. Safe on a live database."""
        for name, sentence in check.CHECKS.items():
            rows = self.table(check.statement(name))
            yield name, sentence, [Finding(name, sentence, row) for row in rows]


def drive(txn: Txn[T], execute: Execute) -> T:
    """Feed a transaction the rows of its statements until it returns. The caller owns begin and commit."""
    try:
        statement = next(txn)
        while True:
            statement = txn.send(execute(statement))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        txn.close()


def retry(attempt: Callable[[TxnFactory[T]], T], factory: TxnFactory[T], tries: int) -> T:
    """Call ``attempt(factory)`` until it does not raise `Unavailable`; follow the replacements of `Again`."""
    while True:
        try:
            return again(lambda: attempt(factory), tries)
        except Again as replacement:
            factory = replacement.factory


def again(call: Callable[[], T], tries: int) -> T:
    """Call until it does not raise `Unavailable`, with growing pauses; the last one is raised."""
    pauses = backoff(tries)
    while True:
        try:
            return call()
        except Unavailable:
            pause = next(pauses, None)
            if pause is None:
                raise
            time.sleep(pause)


def backoff(tries: int) -> Iterator[float]:
    """Pauses between tries in seconds, jittered, up to a second each."""
    for n in range(tries - 1):
        yield min(0.01 * 2**n, 1.0) * random.uniform(0.5, 1.0)
