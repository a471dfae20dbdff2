"""Every transaction of the protocol on a disk that refuses its n-th call, for every n.

A call is any of the file system: opening the file, its log or its journal, reading, writing, truncating, syncing,
deleting. A life of the file is one refusal: it is opened as a crash has left it, the transaction is said, it is closed.
The short form takes a share of the lives, ``FANIN_POWERLOSS_SHARE=1`` all of them.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from fanin.domain import limits
from fanin.domain.errors import Unavailable
from fanin.protocol import submit
from fanin.protocol.steps import Txn, TxnFactory
from fanin.stores.sqlite import SqliteStore
from fanin.testing import invariants
from fanin.testing.invariants import Judge, Seen, violations
from fanin.testing.powerloss import KINDS, Disk, RecordingStore
from fanin.testing.state import dump
from tests.crashes.repairing import TABLE
from tests.crashes.table import every_second_row
from tests.races.stage import Stage
from tests.support.figures import record

SHARE = float(os.environ.get("FANIN_POWERLOSS_SHARE", "0.06"))
SEED = int(os.environ.get("FANIN_POWERLOSS_SEED", "1"))
NOON = 1_700_000_000.0
WAYS: list[tuple[type[apsw.Error], tuple[str, ...], bool]] = [
    (apsw.FullError, ("write", "truncate", "sync", "open"), False),
    (apsw.FullError, ("write", "truncate", "sync", "open"), True),
    (apsw.IOError, KINDS, False),
    (apsw.IOError, KINDS, True),
    (apsw.CantOpenError, ("open",), False),
]
"""The error, the calls that it may meet, and whether the disk refuses one call or all from then on."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where the machine has such a place: the lives are many, and the disk is not what is tested."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as name:
        yield Path(name)


class Image:
    """A database as a crash has left it: what was written last stands in its log alone. Or none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        places = {suffix: Path(f"{path}{suffix}") for suffix in ("", "-wal")}
        self._files = {suffix: place.read_bytes() for suffix, place in places.items() if place.exists()}

    def restore(self) -> None:
        for suffix in ("", "-wal", "-journal", "-shm"):
            place = Path(f"{self.path}{suffix}")
            place.unlink(missing_ok=True)
            if suffix in self._files:
                place.write_bytes(self._files[suffix])


def healthy(path: Path) -> SqliteStore:
    return SqliteStore(f"sqlite:///{path}", str(path), lambda: NOON)


def said_on(path: Path, disk: Disk, factory: TxnFactory[Any]) -> bool:
    """Whether the transaction was acknowledged. Raises everything but `Unavailable`."""
    store = RecordingStore(str(path), disk)
    store.clock = lambda: NOON
    try:
        store.run(factory)
        return True
    except Unavailable:
        return False
    finally:
        store.close()


def judged(store: SqliteStore, judge: Judge) -> Seen:
    """The state of a file on a healthy disk, and what is wrong with it."""
    (answer,) = next(store._open_writer().execute("PRAGMA integrity_check"))
    seen = judge.look(store)
    return seen if answer == "ok" else Seen(seen.rows, [str(answer), *seen.broken])


@pytest.mark.parametrize("name", every_second_row(1))
@pytest.mark.timeout(1800)
# apsw tells of what a file system in Python has raised, also where SQLite goes on as it does with any other.
@pytest.mark.filterwarnings("ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning")
def test_a_transaction_on_a_disk_that_refuses_has_happened_or_not_and_is_said_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)  # neighbours on different counters
    path = folder / "life.db"
    store = healthy(path)
    list(store.check())
    invariants.install(store)
    factory = TABLE[name].stage(Stage(store))
    judge = Judge()
    image, before = Image(path), judged(store, judge)
    store.run(factory)
    after = judged(store, judge)
    store.close()
    assert (before.rows != after.rows, after.broken) == (True, TABLE[name].left(before.broken))

    dice = random.Random(f"{SEED} {name}")
    hits: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for error, kinds, once in WAYS:
        calls = counted(image, kinds, factory)
        assert calls > 0
        for at in range(1, calls + 1):
            if dice.random() >= SHARE:
                continue
            where = f"{error.__name__} at call {at} of {calls}, {'once' if once else 'from then on'}, seed {SEED}"
            image.restore()
            disk = Disk()
            disk.fail(at, error, kinds, once)
            acknowledged = said_on(path, disk, factory)
            assert disk.hits, where
            hits += disk.hits
            store = healthy(path)
            state = judged(store, judge)
            assert state == after if acknowledged else state in (before, after), where
            outcomes["acknowledged" if acknowledged else "refused, had happened" if state == after else "refused"] += 1
            store.run(factory)
            assert judged(store, judge) == after, f"{where}, then said again"
            store.close()
    assert SHARE < 1 or set(hits) == set(KINDS)
    record("powerloss", refusals=dict(hits), lives_on_a_bad_disk=outcomes.total(), outcomes=dict(outcomes), corrupt=0)


@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:Exception ignored in. None:pytest.PytestUnraisableExceptionWarning")
def test_a_file_whose_making_is_refused_is_made_by_the_next_try(folder: Path) -> None:
    """The first use of a file makes its tables, with a journal, before it has a log."""
    path = folder / "new.db"
    image = Image(path)
    job = Stage(healthy(path)).new(stripes=2)

    def factory() -> Txn[bool]:
        return submit.create(job, 3, lambda: [["1", "2"], ["3"]])

    dice = random.Random(f"{SEED} a new file")
    hits: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for error, kinds, once in WAYS:
        calls = counted(image, kinds, factory)
        for at in range(1, calls + 1):
            if dice.random() >= SHARE:
                continue
            where = f"{error.__name__} at call {at} of {calls}, {'once' if once else 'from then on'}, seed {SEED}"
            image.restore()
            disk = Disk()
            disk.fail(at, error, kinds, once)
            acknowledged = said_on(path, disk, factory)
            assert disk.hits, where
            hits += disk.hits
            store = healthy(path)
            assert sound(store), where
            assert len(dump(store)["job"]) == 1 or not acknowledged, where
            outcomes["acknowledged" if acknowledged else "refused"] += 1
            store.run(factory)
            assert sound(store), where
            assert [len(dump(store)[table]) for table in ("job", "job_stripe", "part")] == [1, 2, 3], where
            store.close()
    record("powerloss", refusals=dict(hits), lives_on_a_bad_disk=outcomes.total(), outcomes=dict(outcomes), corrupt=0)


def sound(store: SqliteStore) -> bool:
    """Of a file that has no witness."""
    (answer,) = next(store._open_writer().execute("PRAGMA integrity_check"))
    return (answer, violations(store)) == ("ok", [])


def counted(image: Image, kinds: tuple[str, ...], factory: TxnFactory[Any]) -> int:
    """How many calls of these kinds the life makes when nothing is refused."""
    image.restore()
    disk = Disk()
    disk.fail(1_000_000, kinds=kinds)
    assert said_on(image.path, disk, factory)
    return disk.calls
