"""Statements whose answers nobody waits for: what the server makes of them is what it makes of one after the other."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import TransactionStatus

from fanin.protocol.exchange import exchange
from fanin.protocol.steps import Query, Statement, Txn
from fanin.stores import open_store, pg_wire
from fanin.stores.pg_wire import Line, Wire, numbered
from fanin.stores.postgres import PostgresStore
from fanin.testing.proxy import PgProxy
from tests.protocol.helpers import QUEUE, TASK, claim, done, make
from tests.runtime.working import until
from tests.support.databases import migrate_database
from tests.support.postgres import Server


def said(text: str, **values: Any) -> Statement:
    return Query("test", "say", (), {"pg": text, "lite": text})(**values)


@pytest.fixture(params=[True, False], ids=["prepared", "unprepared"])
def line(pg_server: Server, request: pytest.FixtureRequest) -> Iterator[Line]:
    with Line.connect(pg_server.url(), autocommit=True) as line:
        line.wire = Wire(line, prepare=request.param)
        line.execute("CREATE TEMP TABLE t (x int PRIMARY KEY)")
        yield line


def in_table(line: Line) -> list[int]:
    return [x for (x,) in line.execute("SELECT x FROM t ORDER BY x")]


def test_rows_come_when_they_are_looked_at_whatever_was_sent_meanwhile(line: Line) -> None:
    answers = [line.wire.send(said("SELECT :n::int", n=n), "s") for n in (1, 2, 300_000, 2**40 // 2**20)]
    assert [list(answer) for answer in answers] == [[(1,)], [(2,)], [(300_000,)], [(2**20,)]]
    assert line.info.transaction_status == TransactionStatus.IDLE


def test_an_error_is_raised_where_somebody_looks_and_nothing_after_it_has_run(line: Line) -> None:
    line.wire.begin("BEGIN")
    line.wire.send(said("INSERT INTO t VALUES (:x)", x=1), "s")
    wrong = line.wire.send(said("INSERT INTO t VALUES (:x) RETURNING x", x=1), "s")
    after = line.wire.send(said("SELECT pg_notify('wire', :x::text)", x=2), "s")
    with pytest.raises(errors.UniqueViolation, match="t_pkey"):
        list(after)
    with pytest.raises(AssertionError, match="failed"):
        list(wrong)
    assert line.info.transaction_status == TransactionStatus.INERROR
    line.execute("ROLLBACK")
    assert in_table(line) == []


def test_what_was_not_prepared_because_of_an_error_before_is_prepared_later(line: Line) -> None:
    line.wire.send(said("SELECT 1/:x::int", x=0), "s")
    line.wire.send(said("INSERT INTO t VALUES (:x)", x=7), "s")
    with pytest.raises(errors.DivisionByZero):
        line.wire.settle()
    line.wire.send(said("INSERT INTO t VALUES (:x)", x=7), "s")
    line.wire.settle()
    assert in_table(line) == [7]


def test_large_statements_go_out_at_once_and_none_is_held_back(line: Line) -> None:
    line.wire.begin("BEGIN")
    for x in range(20):  # together more than the server's and the client's buffers hold
        line.wire.send(said("INSERT INTO t SELECT :x::int + length(:long::text) * 0", x=x, long="x" * 2_000_000), "s")
        assert line.pgconn.flush() == 0
    assert line.wire.commit() == "COMMIT"
    assert in_table(line) == list(range(20))


def test_an_error_among_large_statements_is_the_one_that_is_raised(line: Line) -> None:
    line.wire.begin("BEGIN")
    for x in (1, 2, 1, 3):
        line.wire.send(said("INSERT INTO t SELECT :x::int + length(:long::text) * 0", x=x, long="x" * 2_000_000), "s")
    with pytest.raises(errors.UniqueViolation, match="t_pkey"):
        line.wire.commit()
    line.execute("ROLLBACK")
    assert in_table(line) == []


def test_a_value_that_cannot_be_sent_leaves_the_line_as_it_was(line: Line) -> None:
    with pytest.raises(psycopg.DataError, match="NUL"):
        line.wire.send(said("SELECT :x::text", x="\0"), "s")
    assert list(line.wire.send(said("SELECT :x::text", x="é"), "s")) == [("é",)]


def test_more_than_both_sides_can_hold_is_sent_and_fetched(line: Line) -> None:
    big = "x" * 2_000_000
    answers = [line.wire.send(said("SELECT :x::text", x=big), "s") for _ in range(8)]
    assert all(rows == [(big,)] for rows in answers)


def test_a_lost_connection_is_an_operational_error(line: Line) -> None:
    with pytest.raises(psycopg.OperationalError):
        list(line.wire.send(said("SELECT pg_terminate_backend(pg_backend_pid())"), "s"))
    with pytest.raises(psycopg.OperationalError):
        list(line.wire.send(said("SELECT 1"), "s"))


def test_a_placeholder_that_stands_twice_is_sent_once() -> None:
    assert numbered("SELECT %(a)s, %(b)s, %(a)s, 5 %% 2") == ("SELECT $1, $2, $1, 5 % 2", ("a", "b"))


def test_a_batch_of_successes_and_the_next_claim_take_two_journeys(pg_url: str) -> None:
    """One for all statements, one for COMMIT, however many counters are counted."""
    migrate_database(pg_url)
    parts = urlsplit(pg_url)
    assert parts.hostname
    assert parts.port
    with PgProxy((parts.hostname, parts.port)) as proxy:
        store = open_store(parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}").geturl())
        assert isinstance(store, PostgresStore)
        make(store, 400)
        held = claim(store, 256)
        before = proxy.counts["rounds"]

        def both() -> Txn[Any]:
            return exchange(0, [done(part) for part in held], [QUEUE], {TASK: 60.0}, 100, held[0].claim_id, "w")

        answers, claims = store.run(both)
        assert {answer.verdict.value for answer in answers} == {"ok"}
        assert len(claims) == 100
        assert proxy.counts["rounds"] - before == 2
        store.close()


# A line that is left in the middle, and one that cannot go on


@pytest.fixture
def keeper(pg_url: str) -> Iterator[PostgresStore]:
    migrate_database(pg_url)
    store = open_store(pg_url)
    assert isinstance(store, PostgresStore)
    yield store
    store.close()


def saying(text: str) -> Any:
    def txn() -> Txn[list[Any]]:
        return list((yield said(text)))

    return txn


def test_a_transaction_that_is_interrupted_while_it_waits_holds_no_lock_afterwards(
    pg_server: Server, keeper: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = "FROM pg_locks WHERE locktype = 'advisory' AND objid = 7710 AND NOT granted"

    def interrupted(socket: int, events: int) -> int:
        until(lambda: other.execute(f"SELECT count(*) {waits}").fetchone() == (1,), "the statement waits")
        raise KeyboardInterrupt

    with psycopg.connect(pg_server.url(), autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(7710)")
        monkeypatch.setattr(pg_wire, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            keeper.run(saying("SELECT set_config('lock_timeout', '0', true), pg_advisory_lock(7710)::text"))
        monkeypatch.undo()
        until(lambda: other.execute(f"SELECT count(*) {waits}").fetchone() == (0,), "nobody waits")
    assert keeper.read(saying("SELECT 1")) == [(1,)]


def test_a_line_that_was_left_before_its_first_statement_is_used_no_more(
    keeper: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Wire._begin

    def interrupted(wire: Wire) -> None:
        begin(wire)
        raise KeyboardInterrupt

    monkeypatch.setattr(Wire, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        keeper.read(saying("SELECT 1"))
    monkeypatch.undo()
    assert keeper.table(said("SELECT 1 AS x")) == [{"x": 1}]


def test_what_a_session_has_forgotten_is_prepared_in_a_new_one(keeper: PostgresStore) -> None:
    assert keeper.run(saying("SELECT 1")) == [(1,)]
    with keeper.connection() as connection:
        connection.execute("DEALLOCATE ALL")
    assert keeper.run(saying("SELECT 1")) == [(1,)]


def test_what_was_prepared_before_a_column_changed_is_prepared_again(keeper: PostgresStore) -> None:
    keeper.run(saying(f'CREATE TABLE "{keeper.schema}".kept AS SELECT 1 AS x'))
    reading = saying("SELECT x FROM fanin.kept")
    assert keeper.run(reading) == [(1,)]
    keeper.run(saying(f'ALTER TABLE "{keeper.schema}".kept ALTER x TYPE bigint'))
    assert keeper.run(reading) == [(1,)]


def test_sessions_that_are_not_ours_alone_are_told_with_the_way_out(pg_server: Server) -> None:
    with Line.connect(pg_server.url(), autocommit=True) as line:
        line.wire = Wire(line, prepare=True)
        line.execute("PREPARE fanin_1 AS SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="fanin_pooler=transaction"):
            list(line.wire.send(said("SELECT 1"), "s"))
        assert line.closed


def test_a_process_with_many_open_files_sends_and_hears_as_well(pg_url: str) -> None:
    """The system's oldest way to wait for a socket knows 1024 files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        migrate_database(pg_url)
        store = open_store(pg_url)
        with contextlib.closing(store):
            bell = store.bell([QUEUE])
            with contextlib.closing(bell):
                assert bell.wait(60)  # it has begun to listen
                make(store, ["x" * 1_000_000] * 16)
                assert bell.wait(60)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
