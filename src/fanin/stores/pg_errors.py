"""psycopg's errors as ours, and what a connection must be before it is used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus

from fanin.domain.errors import BadOption, StoreBusy, StoreUnreachable, Unavailable, UnsafeStore
from fanin.stores.pg_wire import Line

CANCEL_SECONDS = 5.0
_AGAIN = (
    errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable,
    errors.IdleInTransactionSessionTimeout, errors.QueryCanceled, errors.TooManyConnections, errors.CannotConnectNow,
    errors.AdminShutdown, errors.CrashShutdown, errors.DiskFull, errors.OutOfMemory, errors.ReadOnlySqlTransaction,
    errors.IoError,
)  # fmt: skip
_STORAGE = ("md.c", "fd.c", "slru.c", "buffile.c", "xlog.c")
"""Where the server's own source meets the disk. A quota that is used up, or a file that may not grow, has no SQLSTATE:
it is reported as an internal error from one of these."""


@contextlib.contextmanager
def translated(url: str) -> Iterator[None]:
    """psycopg's errors as ours. What the database could not do now is `Unavailable`: never a failure of a part."""
    try:
        yield
    except (errors.SerializationFailure, errors.DeadlockDetected, errors.LockNotAvailable) as problem:
        raise StoreBusy(f"{where(url)} asked for another try: {first_line(problem)}") from problem
    except _AGAIN as problem:
        raise Unavailable(f"{where(url)}: {first_line(problem)}") from problem
    except errors.InternalError_ as problem:
        if problem.diag.source_file not in _STORAGE:
            raise
        raise Unavailable(f"{where(url)} cannot write: {first_line(problem)}") from problem
    except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
        raise StoreUnreachable(f"cannot reach {where(url)}: {first_line(problem)}") from problem


def check_commit(tag: str | None) -> None:
    """COMMIT of a transaction that had failed answers ROLLBACK, without an error."""
    if tag != "COMMIT":
        raise Unavailable(f"the database answered COMMIT with {tag}")


def check_primary(in_recovery: bool, url: str) -> None:
    if in_recovery:
        raise UnsafeStore(
            f"{where(url)} is a standby: decisions can only be made on the primary; use its address, or a list of "
            "hosts with target_session_attrs=read-write"
        )


def check_in_transaction(status: TransactionStatus, autocommit: bool) -> None:
    """The caller's connection must be in a transaction, or open one by itself with our first statement."""
    if status == TransactionStatus.INERROR:
        raise BadOption("within=: the connection's transaction has failed; roll it back first")
    if autocommit and status == TransactionStatus.IDLE:
        raise BadOption(
            "within=: this connection commits every statement: put the call in `with connection.transaction():`"
        )


def rollback(connection: Line) -> None:
    """Leave the transaction, if the connection still can; a broken one is thrown away by its owner."""
    with contextlib.suppress(psycopg.Error):
        connection.wire.settle()
    with contextlib.suppress(psycopg.Error):
        if connection.wire.busy:  # interrupted while it waited: the server would go on, and hold its locks
            connection.cancel_safe(timeout=CANCEL_SECONDS)
    with contextlib.suppress(psycopg.Error):
        if not connection.closed and connection.info.transaction_status != TransactionStatus.IDLE:
            connection.execute("ROLLBACK")


def where(url: str) -> str:
    """The URL without its password, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rsplit("@", 1)[-1]
    return f"{parts.scheme}://{host}{parts.path}"


def first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0]
