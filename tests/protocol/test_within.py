"""A transaction of the protocol inside the caller's own: it stands or falls with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import apsw
import psycopg
import pytest
from psycopg.rows import dict_row

from fanin.domain.errors import BadOption, KeyConflict, SchemaMismatch, UnsafeStore
from fanin.domain.model import NewJob
from fanin.protocol import finish, submit
from fanin.protocol.steps import Txn
from fanin.stores import open_store
from fanin.stores.base import Store
from tests.protocol.helpers import claim, done, ending, make, new_job, run_all, say, settle
from tests.support.postgres import Server


def create(job: NewJob) -> Txn[bool]:
    return submit.create(job, 2, lambda: [["1", "2"]])


class Stop(Exception):
    """What makes the caller roll back."""


@contextmanager
def theirs(store: Any) -> Iterator[Any]:
    """The caller's own connection, inside a transaction that an exception rolls back, with a table of theirs."""
    if store.dialect == "pg":
        with psycopg.connect(store.target.conninfo, row_factory=dict_row) as connection:
            connection.execute("CREATE TEMP TABLE theirs (n int)")
            connection.commit()
            with connection.transaction():
                yield connection
        return
    mine = apsw.Connection(store.path)
    mine.execute("CREATE TABLE IF NOT EXISTS theirs (n int)")
    with mine:
        yield mine
    mine.close()


def test_a_job_made_within_a_transaction_stands_when_it_commits(store: Store) -> None:
    wanted = new_job(store)
    with theirs(store) as connection:
        connection.execute("INSERT INTO theirs VALUES (1)")
        assert store.run_in(connection, create(wanted)) is True
        if store.dialect == "pg":
            assert say(store, "SELECT count(*) FROM fanin.job") == [(0,)]
    assert [v.value for v in run_all(store)] == ["last", "last"]
    assert ending(store, wanted.id) == ("completed", "all_ok")


def test_a_job_made_within_a_transaction_is_gone_when_it_rolls_back(store: Store) -> None:
    wanted = new_job(store)
    with suppress(Stop), theirs(store) as connection:
        store.run_in(connection, create(wanted))
        raise Stop
    assert say(store, "SELECT count(*) FROM fanin.job") == [(0,)]
    assert say(store, "SELECT count(*) FROM fanin.part") == [(0,)]
    assert claim(store) == []


def test_a_refusal_within_a_transaction_leaves_the_rest_of_it_usable(store: Store) -> None:
    make(store, 2, key="album", request_hash="h1")
    other = new_job(store)
    with theirs(store) as connection:
        with pytest.raises(KeyConflict):
            store.run_in(connection, create(new_job(store, key="album", request_hash="h2")))
        assert store.run_in(connection, create(other)) is True
    assert say(store, "SELECT count(*) FROM fanin.job") == [(2,)]


def test_a_part_can_be_settled_within_the_transaction_that_holds_its_effect(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    with suppress(Stop), theirs(store) as connection:
        store.run_in(connection, finish.settle(0, [done(held)]))
        raise Stop
    assert ending(store, job_id) == ("running", None)
    with theirs(store) as connection:
        store.run_in(connection, finish.settle(0, [done(held)]))
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_connection_that_commits_by_itself_opens_a_transaction_with_the_call(pg_server: Server, store: Any) -> None:
    with psycopg.connect(store.target.conninfo) as connection:
        store.run_in(connection, create(new_job(store)))
        assert say(store, "SELECT count(*) FROM fanin.job") == [(0,)]
        connection.commit()
        assert say(store, "SELECT count(*) FROM fanin.job") == [(1,)]


def test_the_callers_isolation_level_is_kept(pg_server: Server, store: Any) -> None:
    with psycopg.connect(store.target.conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        store.run_in(connection, create(new_job(store)))
        connection.commit()
    assert len(claim(store)) == 2


def test_a_connection_of_another_kind_is_refused_with_the_kind_that_is_needed(store: Store) -> None:
    wanted = "psycopg.Connection" if store.dialect == "pg" else "apsw or sqlite3 connection"
    with pytest.raises(BadOption, match=rf"within=builtins\.object: .*{wanted}"):
        store.run_in(object(), create(new_job(store)))


def test_an_autocommit_connection_outside_a_transaction_is_refused(pg_server: Server, store: Any) -> None:
    with psycopg.connect(store.target.conninfo, autocommit=True) as connection:
        with pytest.raises(BadOption, match="commits every statement: put the call in `with connection"):
            store.run_in(connection, create(new_job(store)))
        with connection.transaction():
            assert store.run_in(connection, create(new_job(store))) is True


def test_a_failed_transaction_is_refused(pg_server: Server, store: Any) -> None:
    with psycopg.connect(store.target.conninfo) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1/0")
        with pytest.raises(BadOption, match="transaction has failed; roll it back first"):
            store.run_in(connection, create(new_job(store)))


@pytest.fixture
def file_store(sqlite_url: str) -> Iterator[Any]:
    store = open_store(sqlite_url)
    list(store.check())
    yield store
    store.close()


def test_an_apsw_connection_outside_a_transaction_is_refused(file_store: Any) -> None:
    connection = apsw.Connection(file_store.path)
    with pytest.raises(BadOption, match="not in a transaction: put the call in `with connection:`"):
        file_store.run_in(connection, create(new_job(file_store)))
    connection.close()


@pytest.mark.parametrize("other", ["another.db", ":memory:"])
def test_an_apsw_connection_to_another_database_is_refused(file_store: Any, tmp_path: Any, other: str) -> None:
    connection = apsw.Connection(other if other == ":memory:" else str(tmp_path / other))
    with connection, pytest.raises(BadOption, match="both must be the same file"):
        file_store.run_in(connection, create(new_job(file_store)))
    connection.close()


def test_a_file_without_tables_names_the_command_that_makes_them(sqlite_url: str) -> None:
    store: Any = open_store(sqlite_url)
    connection = apsw.Connection(store.path)
    with connection, pytest.raises(SchemaMismatch, match=f"run `fanin migrate --url {sqlite_url}` once"):
        store.run_in(connection, create(new_job(store)))
    connection.close()


def test_the_stdlib_is_refused_where_this_process_has_the_file_open_through_apsw(file_store: Any) -> None:
    import sqlite3

    connection = sqlite3.connect(file_store.path)
    with pytest.raises(UnsafeStore, match=r"opened .* through apsw already, and sqlite3 is another copy"):
        file_store.run_in(connection, create(new_job(file_store)))
    connection.close()


STDLIB = """
import sqlite3, sys
from fanin.domain.errors import BadOption, UnsafeStore
from fanin.stores import open_store
from tests.protocol.test_within import create
from tests.protocol.helpers import new_job, make

store = open_store(sys.argv[1])
connection = sqlite3.connect(store.path)
first, second = new_job(store), new_job(store)
with connection:
    assert store.run_in(connection, create(first)) is True
    assert store.run_in(connection, create(second)) is True
try:
    with connection:
        store.run_in(connection, create(new_job(store)))
        raise KeyError
except KeyError:
    pass
assert connection.execute("SELECT count(*) FROM fanin_job").fetchall() == [(2,)]
memory = sqlite3.connect(":memory:")
try:
    store.run_in(memory, create(new_job(store)))
    raise AssertionError("a database in memory was taken")
except BadOption as refused:
    assert "a database in memory" in str(refused)
try:
    make(store, 1)
    raise AssertionError("the file was opened through a second copy of SQLite")
except UnsafeStore as refused:
    assert "through sqlite3 already, and apsw is another copy" in str(refused)
print(first.id)
"""


def test_a_process_that_uses_the_stdlib_alone_may_make_jobs_within_its_transactions(file_store: Any) -> None:
    done_by = subprocess.run([sys.executable, "-c", STDLIB, file_store.url], capture_output=True, text=True, timeout=60)
    assert done_by.returncode == 0, done_by.stderr
    first = done_by.stdout.strip()
    assert len(run_all(file_store)) == 4
    assert ending(file_store, first) == ("completed", "all_ok")


def test_settling_after_the_call_goes_on_as_ever(store: Store) -> None:
    with theirs(store) as connection:
        store.run_in(connection, create(new_job(store)))
    held = claim(store)
    assert [a.verdict.value for a in settle(store, *map(done, held))] == ["last", "last"]
