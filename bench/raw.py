"""The raw limit: the leanest program with the same durable, guarded writes.

One table of parts, one counter, one outbox row. A round is one commit: the batch in hand is completed under its guard
(status, attempt, claim id), the counter goes down, the next batch is claimed. There is no library, no handler, no lease
to renew, one counter for all, and integer keys. A run does what `end_to_end` does: write the parts, work, read all
results in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

Held = list[tuple[int, int]]
"""(idx, attempt) of the parts in hand."""


class Raw(Protocol):
    """The program on one database."""

    def create(self) -> None: ...
    def submit(self, parts: int) -> None: ...
    def round(self, held: Held, claim: str, following: str) -> Held:
        """Complete ``held``, claimed as ``claim``, and claim as ``following``, in one transaction."""

    def results(self) -> Iterator[int]: ...
    def ends(self) -> int: ...
    def drop(self) -> None: ...
    def close(self) -> None: ...


def open_raw(name: str, address: str, batch: int) -> Raw:
    """The raw program that claims up to ``batch`` parts in a round."""
    if name == "SQLite":
        from bench.raw_sqlite import RawSqlite

        return RawSqlite(address, batch)
    from bench.raw_postgres import RawPostgres

    return RawPostgres(address, batch)
