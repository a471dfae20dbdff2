"""The bell of an SQLite file: whoever waits for it hears of a commit, whether the kernel tells or not."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fanin.stores import open_store
from fanin.stores.sqlite import SqliteStore
from fanin.stores.sqlite_bell import SqliteBell
from fanin.stores.sqlite_watch import FileWatch
from tests.protocol.helpers import make

PATIENCE_SECONDS = 60.0


@pytest.fixture
def file(sqlite_url: str) -> Iterator[SqliteStore]:
    store = open_store(sqlite_url)
    assert isinstance(store, SqliteStore)
    make(store)
    yield store
    store.close()


@pytest.fixture(params=["told", "not told"])
def bell(file: SqliteStore, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteBell]:
    if request.param == "not told":
        monkeypatch.setattr(FileWatch, "__init__", lambda watch, path: setattr(watch, "fd", None))
    bell = SqliteBell(file)
    yield bell
    bell.close()


def test_a_commit_is_heard_each_time(file: SqliteStore, bell: SqliteBell) -> None:
    assert not bell.wait(0)
    for _ in range(3):
        make(file)
        assert bell.wait(PATIENCE_SECONDS)
    assert not bell.wait(0)


def test_a_ring_before_the_wait_is_not_forgotten_and_counts_once(bell: SqliteBell) -> None:
    bell.ring()
    bell.ring()
    assert bell.wait(PATIENCE_SECONDS)
    assert not bell.wait(0)


def test_a_ring_after_the_end_is_harmless(file: SqliteStore) -> None:
    bell = SqliteBell(file)
    bell.close()
    bell.ring()


def test_linux_tells_of_a_write(file: SqliteStore) -> None:
    watch = FileWatch(file.path + "-wal")
    assert watch.fd is not None
    assert not watch.told()
    make(file)
    assert watch.told()
    assert not watch.told()
    watch.close()
    assert not watch.told()


def test_a_file_that_is_not_there_is_not_watched(file: SqliteStore) -> None:
    before = set(os.listdir("/dev/fd"))
    assert FileWatch(file.path + "-nothing").fd is None
    assert set(os.listdir("/dev/fd")) == before
