"""Cut the power under an SQLite store, at every moment, and look at what is left on the disk.

A recording file system logs each write, truncate, delete and sync that the store makes. Any moment of the log can then
be turned into an image of the disk: what was synced, plus none, all, or a random part of what was not, or all with one
torn write. An image must open, hold every invariant, and be exactly the state after the last acknowledged commit, or
after the one that was under way.

The same file system can refuse: raise "disk full" or an input/output error at its n-th call of any kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from fanin.stores.sqlite import SqliteStore
from fanin.testing.state import TABLES

MODES = ("none", "all", "random", "torn")
KINDS = ("open", "read", "write", "truncate", "sync", "delete")
"""The calls that can be refused."""
SECTOR_BYTES = 512


class Call(NamedTuple):
    """One call of the file system, or ``ack``: a transaction was acknowledged, ``data`` is the state it left."""

    kind: str
    file: str = ""
    offset: int = 0
    data: bytes = b""


class Disk:
    """What the file system has seen, and when it refuses."""

    def __init__(self) -> None:
        self.log: list[Call] = []
        self.hits: Counter[str] = Counter()
        """How many calls were refused, by kind."""
        self._at: int | None = None
        self._error: type[apsw.Error] = apsw.FullError
        self._kinds: Collection[str] = KINDS
        self._once = False
        self.calls = 0
        """How many calls there were of the kinds that `fail` named last."""

    def fail(
        self,
        at: int | None,
        error: type[apsw.Error] = apsw.FullError,
        kinds: Collection[str] = ("write", "sync"),
        once: bool = False,
    ) -> None:
        """Refuse call number ``at`` of these kinds, from 1 and counted from now, and unless ``once`` all later ones.

        None: refuse nothing any more.
        """
        self._at, self._error, self._kinds, self._once, self.calls = at, error, kinds, once, 0

    def asked(self, kind: str) -> None:
        """A call of this kind is about to be made."""
        if self._at is None or kind not in self._kinds:
            return
        self.calls += 1
        if self.calls == self._at or (self.calls > self._at and not self._once):
            self.hits[kind] += 1
            raise self._error("refused by the test")

    def call(self, call: Call) -> None:
        self.asked(call.kind)
        self.log.append(call)


class RecordingStore(SqliteStore):
    """An `SqliteStore` with one connection, on a disk that records. Only `run` may be used, from one thread."""

    _numbers = iter(range(1_000_000))

    def __init__(self, path: str, disk: Disk) -> None:
        super().__init__(f"sqlite:///{path}", path)
        self.disk = disk
        self.tries = 1
        self._vfs = _FileSystem(f"fanin-recording-{next(self._numbers)}", disk)

    def open(self) -> apsw.Connection:
        connection = _Connection(self.path, vfs=self._vfs.name)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # no shared memory passes through a recording disk
        return connection

    def connect(self) -> apsw.Connection:
        connection = super().connect()
        connection.execute("PRAGMA wal_autocheckpoint = 24")  # often, so that the cuts meet checkpoints too
        return connection

    def acknowledge(self) -> None:
        """Note that everything up to here was acknowledged to a caller."""
        self.disk.log.append(Call("ack", data=fingerprint(self._open_writer())))


class _Connection(apsw.Connection):
    def close(self, force: bool = False) -> None:
        """apsw raises what a file system in Python has raised, even where SQLite goes on, as it does here."""
        with contextlib.suppress(apsw.Error):
            super().close(force)


class _FileSystem(apsw.VFS):
    def __init__(self, name: str, disk: Disk) -> None:
        super().__init__(name, base="")
        self.name = name
        self.disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        self.disk.asked("open")
        return _File(self.disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.disk.call(Call("delete", _kind(filename)))
        super().xDelete(filename, syncdir)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._kind = _kind(name.filename() if isinstance(name, apsw.URIFilename) else name)
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.asked("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        self._disk.call(Call("write", self._kind, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.call(Call("truncate", self._kind, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.call(Call("sync", self._kind))
        super().xSync(flags)


def _kind(name: str | None) -> str:
    name = name or ""
    return "-wal" if name.endswith("-wal") else "-journal" if name.endswith("-journal") else ""


class Found(NamedTuple):
    """What became of the images: how many, and what was wrong with which (empty: nothing)."""

    images: int
    wrong: list[str]


def cut_everywhere(log: list[Call], folder: Path, rng: random.Random, share: float = 1.0, draws: int = 1) -> Found:
    """Judge images of all moments (or a random ``share``) in every mode; where chance decides, ``draws`` images."""
    states = [call.data for call in log if call.kind == "ack"]
    acknowledged, images, wrong = 0, 0, []
    modes = [mode for mode in MODES for _ in range(draws if mode in ("random", "torn") else 1)]
    for moment in range(1, len(log) + 1):
        acknowledged += log[moment - 1].kind == "ack"
        for mode in modes:
            if rng.random() >= share:
                continue
            images += 1
            allowed = states[max(acknowledged - 1, 0) : acknowledged + 1]
            problem = judge(image(log, moment, mode, rng, folder), allowed, first=acknowledged == 0)
            if problem is not None:
                wrong.append(f"moment {moment} of {len(log)}, {mode}: {problem}")
    return Found(images, wrong)


def image(log: list[Call], moment: int, mode: str, rng: random.Random, folder: Path) -> Path:
    """The disk as it may be found after the power went at ``moment``."""
    synced: dict[str, int] = {}
    for number in range(moment):
        if log[number].kind == "sync":
            synced[log[number].file] = number
    latest = max(synced.values(), default=-1)  # a journalled file system writes a delete with any later sync

    def durable(number: int) -> bool:
        call = log[number]
        return number < (latest if call.kind == "delete" else synced.get(call.file, -1))

    changes = [n for n in range(moment) if log[n].kind in ("write", "truncate", "delete")]
    loose = [n for n in changes if not durable(n)]
    kept = {"none": [], "all": loose, "torn": loose, "random": [n for n in loose if rng.random() < 0.5]}[mode]
    writes = [n for n in loose if log[n].kind == "write"]
    torn = rng.choice(writes) if mode == "torn" and writes else None
    survived = set(kept)
    files: dict[str, bytearray] = {}
    for number in changes:
        if durable(number) or number in survived:
            _apply(files, log[number], rng if number == torn else None)
    for suffix in ("", "-wal", "-journal", "-shm"):
        path = folder / f"image.db{suffix}"
        path.unlink(missing_ok=True)
        if suffix in files and (files[suffix] or suffix == ""):
            path.write_bytes(files[suffix])
    return folder / "image.db"


def _apply(files: dict[str, bytearray], call: Call, torn: random.Random | None) -> None:
    if call.kind == "delete":
        files.pop(call.file, None)
        return
    content = files.setdefault(call.file, bytearray())
    if call.kind == "truncate":
        del content[call.offset :]
        return
    data = call.data
    if torn is not None:
        data = data[: SECTOR_BYTES * torn.randrange(len(data) // SECTOR_BYTES + 1)]
    if len(content) < call.offset:
        content.extend(bytes(call.offset - len(content)))
    content[call.offset : call.offset + len(data)] = data


def judge(path: Path, allowed: list[bytes], first: bool = False) -> str | None:
    """What is wrong with an image, or None. ``first``: nothing was acknowledged yet, so it may hold nothing."""
    if not path.exists():
        return None if first else "the database is gone"
    store = SqliteStore(f"sqlite:///{path}", str(path))
    try:
        connection = store._open_writer()
        (answer,) = next(connection.execute("PRAGMA integrity_check"))
        if answer != "ok":
            return f"corrupt: {answer}"
        broken = [name for name, _, findings in store.check() if findings]
        if broken:
            return f"invariants broken: {', '.join(broken)}"
        if first or fingerprint(connection) in allowed:
            return None
        return "neither the acknowledged state nor the one under way"
    except apsw.Error as problem:
        return f"corrupt: {problem}"
    finally:
        store.close()


def fingerprint(connection: apsw.Connection) -> bytes:
    """A hash over all rows of all tables."""
    hashed = hashlib.sha256()
    for row in _rows(connection):
        hashed.update(repr(row).encode())
    return hashed.digest()


def _rows(connection: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    for table in TABLES:
        yield (table,)
        yield from sorted(connection.execute(f"SELECT * FROM fanin_{table}"), key=repr)
