"""Statements whose answers nobody waits for: what the server makes of them is what it makes of one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import errors
from psycopg.pq import TransactionStatus

from fanin.protocol.exchange import exchange
from fanin.protocol.steps import Query, Statement, Txn
from fanin.stores import open_store
from fanin.stores.pg_wire import Line, Wire, numbered
from fanin.stores.postgres import PostgresStore
from fanin.testing.proxy import PgProxy
from tests.protocol.helpers import QUEUE, TASK, claim, done, make
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
