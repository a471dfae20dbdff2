"""The embedded store: one file, any number of processes on one host, one writer at a time.

Every writing transaction is BEGIN IMMEDIATE: a deferred one that reads first and writes later fails at once under
contention, whatever the busy timeout. WAL with synchronous=FULL: an acknowledged commit survives a power cut.

Between processes of fanin, two lock files beside the database make a turnstile: whoever waits for the writer's place
holds the queue's place meanwhile, so a process that commits in a loop cannot starve the others. They serve fairness
alone; when they do not move (a stopped process holds one), SQLite's own lock decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import apsw

from fanin.domain.errors import (
    BadOption,
    SchemaMismatch,
    StoreBusy,
    StoreUnreachable,
    Unavailable,
    UnsafeStore,
)
from fanin.protocol.steps import Rows, Statement, Txn, TxnFactory
from fanin.stores import migrate
from fanin.stores.base import Bell, Store, again, drive, retry
from fanin.stores.sqlite_bell import SqliteBell

T = TypeVar("T")

MIN_SQLITE = (3, 51, 3)
BUSY_SECONDS = 10.0
TURN_SECONDS = 2.0
QUEUE_PAUSE_SECONDS = 0.001
PLACE_PAUSE_SECONDS = 0.0001
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ncpfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.glusterfs",
        "ceph",
        "lustre",
        "beegfs",
        "gpfs",
        "vboxsf",
        "vmhgfs",
        "fuse.vmhgfs-fuse",
        "fuse.rclone",
        "fuse.gcsfuse",
        "prl_fs",
    ]
)

_opened_by: dict[str, str] = {}
"""Real path to the copy of SQLite (``apsw`` or ``sqlite3``) through which this process opened the file. Two copies in
one process drop each other's locks: closing a file in one releases the POSIX locks of the other."""


class SqliteStore(Store):
    """See the module. ``clock`` gives seconds since the epoch; tests put their own."""

    dialect = "lite"
    buckets = 1  # one file has nothing to spread over

    def __init__(self, url: str, path: str, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self.path = self.file = os.path.realpath(path)
        self.clock = clock
        self._pid = -1
        self._reset()

    def _reset(self) -> None:
        self._writing = threading.Lock()
        self._forget()
        self._pid = os.getpid()

    def _forget(self) -> None:
        self._local = threading.local()
        self._writer: apsw.Connection | None = None
        self._turnstile: _Turnstile | None = None
        self._readers: dict[threading.Thread, apsw.Connection] = {}
        self._file: tuple[int, int] | None = None

    def run(self, factory: TxnFactory[T]) -> T:
        return retry(self._write, factory, self.tries)

    def _write(self, factory: TxnFactory[T]) -> T:
        self._after_fork()
        with self._writing:
            connection = self._open_writer()
            assert self._turnstile is not None
            with self._turnstile.turn(), translated(self.path):
                connection.execute("BEGIN IMMEDIATE")
                try:
                    value = drive(factory(), lambda statement: execute(connection, statement))
                    connection.execute("COMMIT")
                    return value
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")

    def read(self, factory: TxnFactory[T]) -> T:
        return retry(self._read, factory, self.tries)

    def _read(self, factory: TxnFactory[T]) -> T:
        connection = self._reader()
        with translated(self.path):
            connection.execute("BEGIN")
            try:
                return drive(factory(), lambda statement: execute(connection, statement))
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def table(self, statement: Statement) -> list[dict[str, Any]]:
        return again(lambda: self._table(statement), self.tries)

    def _table(self, statement: Statement) -> list[dict[str, Any]]:
        with translated(self.path):
            cursor = self._reader().cursor()
            cursor.execute(statement.query.for_sqlite(), statement.sqlite_values())
            try:
                names = [column[0] for column in cursor.get_description()]
            except apsw.ExecutionCompleteError:
                return []
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def run_in(self, connection: Any, txn: Txn[T]) -> T:
        if isinstance(connection, apsw.Connection):
            self._check_same_file(connection.db_filename("main"))
            if not connection.in_transaction:
                raise BadOption(
                    "within=: this apsw connection is not in a transaction: put the call in `with connection:`"
                )
            connection.create_scalar_function("fanin_clock", self._now, 0, deterministic=True)
            with translated(self.path):
                self._check_schema(lambda sql: list(connection.execute(sql)))
                return drive(txn, lambda statement: execute(connection, statement))
        return self._run_in_stdlib(connection, txn)

    def _run_in_stdlib(self, connection: Any, txn: Txn[T]) -> T:
        import sqlite3

        if not isinstance(connection, sqlite3.Connection):
            raise BadOption(
                f"within={type(connection).__module__}.{type(connection).__qualname__}: this store is the SQLite file "
                f"{self.path}, so the connection must be an apsw or sqlite3 connection to it"
            )
        files = [row[2] for row in connection.execute("PRAGMA database_list") if row[1] == "main"]
        self._check_same_file(files[0])
        claim_file(self.path, "sqlite3")
        connection.create_function("fanin_clock", 0, self.clock, deterministic=True)
        self._check_schema(lambda sql: connection.execute(sql).fetchall())
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")

        def on_stdlib(statement: Statement) -> Rows:
            return connection.execute(statement.query.for_sqlite(), statement.sqlite_values()).fetchall()

        return drive(txn, on_stdlib)

    def _check_same_file(self, filename: str) -> None:
        if not filename or os.path.realpath(filename) != self.path:
            raise BadOption(
                f"within=: the connection is open on {filename or 'a database in memory'}, the application on "
                f"{self.path}: both must be the same file for one transaction to hold both"
            )

    def _check_schema(self, query: Callable[[str], list[Any]]) -> None:
        found = query("SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'fanin_migration'")
        if not found:
            raise SchemaMismatch(
                f"{self.path} has no fanin tables yet: run `fanin migrate --url {shlex.quote(self.url)}` once"
            )
        migrate.judge([row[0] for row in query("SELECT version FROM fanin_migration")], self.url)

    def bell(self, queues: list[str]) -> Bell:
        return SqliteBell(self)

    def reserve(self) -> Store:
        store = SqliteStore(self.url, self.path, self.clock)
        store.tries = 1
        return store

    def close(self) -> None:
        self._after_fork()
        unused = self._writing.acquire(timeout=TURN_SECONDS)  # not for ever: a signal's handler may close, too
        try:
            if unused and self._writer is not None:
                self._writer.close()
            if unused and self._turnstile is not None:
                self._turnstile.close()
            self._forget()  # what is in use in another thread closes itself after its last use
        finally:
            if unused:
                self._writing.release()

    def _now(self, *_: Any) -> float:
        return self.clock()

    def _after_fork(self) -> None:
        """An SQLite connection must never cross a fork, not even to be closed: the first thread puts it aside."""
        if self._pid != os.getpid():
            with _forking:
                if self._pid != os.getpid():
                    _abandoned.append((self._writer, self._readers, self._turnstile))
                    self._reset()

    def _open_writer(self) -> apsw.Connection:
        if self._writer is None:
            if self._turnstile is None:
                self._turnstile = _Turnstile(self.path)
            writer = self.connect()
            try:
                with translated(self.path):
                    migrate.embedded(writer, self.url)
            except BaseException:
                writer.close()  # the next try must not take it for one with tables
                raise
            self._file = _identity(self.path)
            self._writer = writer
        self._check_file()
        return self._writer

    def _check_file(self) -> None:
        """A file that was deleted or replaced goes on taking commits, and nobody will ever see them."""
        if self._file not in (None, _identity(self.path)):
            raise UnsafeStore(
                f"{self.path} was deleted or replaced while it was open: what is written here would be lost. Stop what "
                "uses it, put the file back, and start again"
            )

    def _reader(self) -> apsw.Connection:
        self._after_fork()
        connection: apsw.Connection | None = getattr(self._local, "reader", None)
        if connection is None:
            connection = self._local.reader = self._open_reader()
        else:
            self._check_file()
        return connection

    def _open_reader(self) -> apsw.Connection:
        with self._writing:
            self._open_writer()
            connection = self.connect()
            for thread in [thread for thread in self._readers if not thread.is_alive()]:
                self._readers.pop(thread).close()
            self._readers[threading.current_thread()] = connection
            return connection

    def connect(self) -> apsw.Connection:
        """A new connection with everything set that the promise rests on."""
        check_library()
        check_file_system(self.path)
        claim_file(self.path, "apsw")
        with translated(self.path):
            connection = self.open()
            connection.set_busy_timeout(int(BUSY_SECONDS * 1000))
            mode = next(connection.execute("PRAGMA journal_mode = WAL"))[0]
            if mode != "wal":
                raise UnsafeStore(
                    f"{self.path} cannot be put in WAL mode (it is in {mode}): use a file on a local disk"
                )
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA cache_size = -8192")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
            connection.create_scalar_function("fanin_clock", self._now, 0, deterministic=True)
            return connection

    def open(self) -> apsw.Connection:
        """The bare connection; the testing kit puts a recording file system here."""
        return apsw.Connection(self.path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def execute(connection: apsw.Connection, statement: Statement) -> Rows:
    # Every RETURNING row is fetched before the next statement, and so before COMMIT.
    return connection.execute(statement.query.for_sqlite(), statement.sqlite_values()).fetchall()


class _Turnstile:
    """Two lock files: hold the first while waiting for the second, let go of the first when you have it."""

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self._queue = os.open(path + "-queue", flags, 0o666)
            self._place = os.open(path + "-writer", flags, 0o666)
        except OSError as problem:
            raise StoreUnreachable(
                f"cannot write beside {path}: {problem.strerror}; check the folder's permissions"
            ) from None

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        deadline = time.monotonic() + TURN_SECONDS
        # All who queue look equally often: whoever looked more often at first would pass those who wait the longest.
        queued = self._take(self._queue, deadline, QUEUE_PAUSE_SECONDS, 1.0)
        placed = self._take(self._place, deadline, PLACE_PAUSE_SECONDS, 1.5)
        if queued:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        try:
            yield
        finally:
            if placed:
                fcntl.flock(self._place, fcntl.LOCK_UN)

    @staticmethod
    def _take(lock: int, deadline: float, pause: float, growth: float) -> bool:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * growth, 0.002)

    def close(self) -> None:
        os.close(self._queue)
        os.close(self._place)


_abandoned: list[object] = []
_forking = threading.Lock()


@contextlib.contextmanager
def translated(path: str) -> Iterator[None]:
    """SQLite's errors as ours. Busy, full and broken disks are `Unavailable`: never a failure of a part."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError) as problem:
        raise StoreBusy(f"{path} is locked by another program: {problem}") from problem
    except apsw.FullError as problem:
        raise Unavailable(f"no space left for {path}: free some; nothing was written") from problem
    except apsw.IOError as problem:
        raise Unavailable(f"{path}: input/output error: {problem}") from problem
    except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as problem:
        raise StoreUnreachable(f"cannot open {path} for writing: {problem}; check that its folder exists") from problem
    except apsw.NotADBError as problem:
        raise UnsafeStore(f"{path} is not an SQLite database; name another file") from problem


def check_library() -> None:
    """Raise `UnsafeStore` for a library that can lose data in WAL mode with several processes."""
    version = tuple(int(n) for n in apsw.sqlite_lib_version().split("."))
    if version < MIN_SQLITE:
        wanted = ".".join(map(str, MIN_SQLITE))
        raise UnsafeStore(
            f"SQLite {apsw.sqlite_lib_version()} has a bug that loses commits in WAL mode; {wanted} or later is "
            "needed: pip install -U apsw"
        )


def check_file_system(path: str, mounts: str = "/proc/mounts") -> None:
    """Raise `UnsafeStore` for a file on a network or shared file system, where SQLite's locks do not hold."""
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            table = [line.split()[1:3] for line in lines]
    except OSError:
        return  # no such table on this system: nothing can be said
    folder = os.path.dirname(os.path.abspath(path))
    best, kind = "", ""
    for point, file_system in table:
        point = point.replace("\\040", " ")
        if (folder == point or folder.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, file_system
    if kind in NETWORK_FILE_SYSTEMS:
        raise UnsafeStore(
            f"{path} is on a {kind} file system ({best}): its file locks cannot be trusted, so commits could be lost. "
            "Use a file on a local disk, or PostgreSQL for several hosts"
        )


def claim_file(path: str, library: str) -> None:
    """Note that this process opens ``path`` through ``library``; raise `UnsafeStore` if another copy did before."""
    other = _opened_by.setdefault(path, library)
    if other != library:
        raise UnsafeStore(
            f"this process has opened {path} through {other} already, and {library} is another copy of SQLite: two "
            "copies in one process release each other's locks. Use an apsw connection (fanin's own) for `within=`, or "
            "do the one thing in another process"
        )
