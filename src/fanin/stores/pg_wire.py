"""Statements go out without waiting for each other's answers; the rows are fetched when somebody looks at them.

What a transaction sends before it looks travels in one journey (libpq's pipeline mode): BEGIN with the first statement,
and statements that do not need each other's rows. The server runs them one after the other, as if each had been waited
for, and none after one that has failed. COMMIT goes alone, when all before it is known to have been done.

psycopg adapts the values and the rows. Its cursors are passed by: one of its executions costs the client more than all
that is done here for a transaction.
"""

from __future__ import annotations

import re
import select
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, overload

import psycopg
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import DiagnosticField, ExecStatus, PipelineStatus
from psycopg.pq.abc import PGresult

from fanin.protocol.steps import Row, Statement

LARGE_BYTES = 16_384
"""A statement with more values goes out at once: the server works on it while the next one is made, and however many
follow, no more than one is held here."""


class Line(psycopg.Connection[Any]):
    """A connection with a wire of its own."""

    wire: Wire


class Answer(Sequence[Row]):
    """The rows of a statement, which may be under way. Looking at them waits for it and for all before it."""

    __slots__ = ("_rows", "_wire")

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._rows: list[Row] | None = None

    def came(self, rows: list[Row]) -> None:
        self._rows = rows

    @property
    def rows(self) -> list[Row]:
        if self._rows is None:
            self._wire.settle()
        assert self._rows is not None, "the transaction of these rows has failed"
        return self._rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        return self.rows[at]

    def __eq__(self, other: object) -> bool:
        return self.rows == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._rows)


class Wire:
    """One connection's statements. ``prepare``: each text once, which a transaction pooler does not allow."""

    def __init__(self, connection: psycopg.Connection[Any], prepare: bool) -> None:
        self._pgconn = connection.pgconn
        self._prepare = prepare
        self._values = Transformer(connection)
        self._encoding = connection.info.encoding
        self._names: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._fresh = 0
        self._waiting: list[Answer | tuple[str, tuple[int, ...]] | None] = []
        """For each command under way: whose rows it brings, the name in `_names` that it prepares, or neither."""

    def send(self, statement: Statement, schema: str) -> Answer:
        """Returns at once. Raises what psycopg raises for a value that cannot be sent."""
        text, names = numbered(statement.query.for_postgres(schema))
        given = statement.postgres_values()
        values = self._values.dump_sequence([given[name] for name in names], [PyFormat.TEXT] * len(names))
        types = self._values.types or ()
        self._begin()
        if self._prepare:
            name = self._names.get((text, types)) or self._prepared(text, types)
            self._pgconn.send_query_prepared(name, values)
        else:
            self._pgconn.send_query_params(text.encode(self._encoding), values, types)
        answer = Answer(self)
        self._waiting.append(answer)
        if sum(len(value) for value in values if value is not None) > LARGE_BYTES:
            self._flush()
        return answer

    def begin(self, text: str) -> None:
        """``text`` goes out with the first statement."""
        self._begin()
        self._pgconn.send_query_params(text.encode(), None)
        self._waiting.append(None)

    def commit(self) -> str:
        """Returns the tag of the answer. A message of its own: the server gets the whole of it, or nothing."""
        self.settle()
        self._pgconn.send_query(b"COMMIT")
        self._flush()
        tag = b""
        while (result := self._next()) is not None:
            if result.status != ExecStatus.COMMAND_OK:
                raise self._error(result)
            tag = result.command_status or b""
        return tag.decode()

    @property
    def busy(self) -> bool:
        """Whether something is under way, or it cannot be told what: then the connection is of no more use."""
        return self._pgconn.pipeline_status != PipelineStatus.OFF

    def settle(self) -> None:
        """Wait for all that is under way. Raises the error of the first failure."""
        if not self._waiting:
            return
        pgconn, waiting, self._waiting = self._pgconn, self._waiting, []
        failed: psycopg.Error | None = None
        pgconn.pipeline_sync()
        self._flush()
        for what in waiting:
            result = self._result()
            if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
                if isinstance(what, Answer):
                    what.came(self._rows(result))
                continue
            if isinstance(what, tuple):
                self._names.pop(what, None)
            if failed is None and result.status != ExecStatus.PIPELINE_ABORTED:
                failed = self._error(result)
        synced = self._result()
        if synced.status != ExecStatus.PIPELINE_SYNC:
            raise failed or self._error(synced)
        pgconn.exit_pipeline_mode()
        if failed is not None and _outlived(failed):
            pgconn.finish()  # it would fail for ever
            raise psycopg.OperationalError(
                f"the session has outlived what it had prepared ({failed}); behind a pooler in transaction mode put "
                "fanin_pooler=transaction in the URL"
            ) from failed
        if failed is not None:
            raise failed

    def _begin(self) -> None:
        if not self._waiting:
            self._pgconn.enter_pipeline_mode()

    def _prepared(self, text: str, types: tuple[int, ...]) -> bytes:
        self._fresh += 1
        name = self._names[text, types] = b"fanin_%d" % self._fresh
        self._pgconn.send_prepare(name, text.encode(self._encoding), types)
        self._waiting.append((text, types))
        return name

    def _rows(self, result: PGresult) -> list[Row]:
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._values.set_pgresult(result)
        return self._values.load_rows(0, result.ntuples, tuple)

    def _flush(self) -> None:
        """Send all. The answers are read meanwhile, or the server would wait with more of them while we wait for it."""
        while self._pgconn.flush():
            if _wait(self._pgconn.socket, select.POLLIN | select.POLLOUT) != select.POLLOUT:
                self._pgconn.consume_input()

    def _result(self) -> PGresult:
        """The next command's one result, or the mark at the end of all."""
        result = self._next() or self._next()  # a None stands after each command's result
        if result is None:
            raise psycopg.OperationalError("the connection is lost")
        return result

    def _next(self) -> PGresult | None:
        while self._pgconn.is_busy():
            _wait(self._pgconn.socket, select.POLLIN)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _error(self, result: PGresult) -> psycopg.Error:
        if result.error_field(DiagnosticField.SQLSTATE) is not None:
            return errors.error_from_result(result, self._encoding)
        return psycopg.OperationalError(result.get_error_message(self._encoding) or "the connection is lost")


def _wait(socket: int, events: int) -> int:
    """Until one of the events has come. Which have; an error counts as one."""
    poll = select.poll()
    poll.register(socket, events)
    ((_, came),) = poll.poll()
    return came


def _outlived(problem: psycopg.Error) -> bool:
    """Whether what was prepared is gone (DISCARD, or a pooler's other session), or its tables have changed."""
    gone = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
    return isinstance(problem, gone) or problem.diag.source_file == "plancache.c"


@lru_cache(maxsize=1024)
def numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """psycopg's ``%(name)s`` as the server's ``$1``, and the names in that order."""
    names: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        return f"${names.setdefault(found[1], len(names) + 1)}"

    return _PLACE.sub(place, text), tuple(names)


_PLACE = re.compile(r"%%|%\((\w+)\)s")
