"""The schema changes: applied once, by whoever is first, and judged at every opening."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import apsw
import psycopg
import pytest

from fanin.domain.errors import SchemaMismatch
from fanin.domain.identity import bucket_of, new_claim_id
from fanin.protocol import finish, lease
from fanin.stores import migrate, open_store
from fanin.stores.base import Store
from tests.protocol.helpers import TASK, done, make, publish, say
from tests.support.postgres import Server

NEWEST = migrate.migrations("pg")[-1].version


def apply(url: str, buckets: int = 1) -> list[int]:
    address, _, schema = url.partition("?fanin_schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        return migrate.postgres(connection, schema, url, buckets)


def test_both_databases_have_the_same_numbers() -> None:
    pg, lite = migrate.migrations("pg"), migrate.migrations("lite")
    assert [(m.version, m.name) for m in pg] == [(m.version, m.name) for m in lite]
    assert [m.version for m in pg] == list(range(1, NEWEST + 1))


def test_a_schema_is_made_once_and_a_second_call_does_nothing(pg_server: Server, pg_url: str) -> None:
    assert apply(pg_url) == list(range(1, NEWEST + 1))
    assert apply(pg_url) == []
    store = open_store(pg_url)
    assert say(store, "SELECT version FROM fanin.migration ORDER BY version") == [(n,) for n in range(1, NEWEST + 1)]
    store.close()


def test_a_file_is_made_by_its_first_use(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    make(store, 1)
    store.close()
    again = open_store(sqlite_url)
    assert say(again, "SELECT count(*) FROM fanin.part") == [(1,)]
    assert say(again, "SELECT version FROM fanin.migration") == [(n,) for n in range(1, NEWEST + 1)]
    again.close()


def test_what_is_applied_has_its_name_its_checksum_and_its_time(store: Store) -> None:
    dialect = store.dialect
    rows = say(store, "SELECT version, name, checksum, applied_at > 1700000000 FROM fanin.migration")
    assert rows == [(m.version, m.name, m.checksum, True) for m in migrate.migrations(dialect)]


def test_a_database_without_the_schema_names_the_command(pg_server: Server, pg_url: str) -> None:
    with pytest.raises(SchemaMismatch, match=r"has no fanin schema, this fanin needs .*: run `fanin migrate --url '"):
        say(open_store(pg_url), "SELECT 1")


def test_a_newer_schema_is_refused_and_says_to_upgrade(store_url: str, store: Store) -> None:
    say(
        store,
        "INSERT INTO fanin.migration (version, name, checksum, applied_at) VALUES (999, 'future', '', 0)",
    )
    store.close()
    said = f"has schema version 999, this fanin knows up to {NEWEST}: upgrade fanin here"
    with pytest.raises(SchemaMismatch, match=said):
        say(open_store(store_url), "SELECT 1")
    if store_url.startswith("postgresql"):
        with pytest.raises(SchemaMismatch, match=said):
            apply(store_url)
        with psycopg.connect(store_url.partition("?")[0], autocommit=True) as connection:
            schema = store_url.partition("fanin_schema=")[2]
            connection.execute(f'DELETE FROM "{schema}".migration WHERE version = 999')
    else:
        connection_ = apsw.Connection(store_url.removeprefix("sqlite:///"))
        connection_.execute("DELETE FROM fanin_migration WHERE version = 999")
        connection_.close()


@pytest.mark.parametrize(
    ("applied", "said"),
    [
        ([], "has no fanin schema, this fanin needs"),
        ([0], "has no fanin schema"),
        ([NEWEST, NEWEST + 1], f"has schema version {NEWEST + 1}, this fanin knows up to {NEWEST}"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(applied: list[int], said: str) -> None:
    migrate.judge(list(range(1, NEWEST + 1)), "postgresql://h/d")
    with pytest.raises(SchemaMismatch, match=said) as caught:
        migrate.judge(applied, "postgresql://me:s3cret@h/d")
    assert "s3cret" not in str(caught.value)


PG = """
import json, sys, psycopg
from fanin.stores import migrate
address, _, schema = sys.argv[1].partition("?fanin_schema=")
with psycopg.connect(address, autocommit=True, options=sys.argv[2]) as connection:
    connection.execute("SELECT 1")
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(migrate.postgres(connection, schema, sys.argv[1])))
"""

LITE = """
import json, sys, apsw
from fanin.stores import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
list(store.check())
store.close()
print("[]")
"""


def together(program: str, *arguments: str, count: int = 4) -> list[Any]:
    """Run so many processes that all have come as far as `ready` before one goes on."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(count)
    ]  # fmt: skip
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    found = []
    for process in started:
        said, problem = process.communicate(timeout=60)
        assert process.returncode == 0, problem
        found.append(json.loads(said))
    return found


@pytest.mark.parametrize(
    "options",
    ["", "-c default_transaction_isolation=serializable", "-c default_transaction_read_only=on"],
    ids=["plain", "serializable", "read only"],
)
def test_processes_that_migrate_at_once_apply_each_change_once(pg_server: Server, pg_url: str, options: str) -> None:
    found = together(PG, pg_url, options)
    assert sorted(n for applied in found for n in applied) == list(range(1, NEWEST + 1))
    store = open_store(pg_url)
    make(store, 1)
    store.close()


def test_a_migration_that_waited_for_another_sees_what_that_one_did(pg_server: Server, pg_url: str) -> None:
    """The snapshot of a serializable transaction is older than the lock that it waited for."""
    address, _, schema = pg_url.partition("?fanin_schema=")
    first = subprocess.Popen(
        [sys.executable, "-c", PG, pg_url, "-c default_transaction_isolation=serializable"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    with psycopg.connect(address, autocommit=True) as holder, holder.transaction():
        holder.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", ["fanin migrate " + schema])
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while holder.execute(waiting).fetchone() == (0,):
            assert first.poll() is None
        holder.execute(migrate.script("pg", schema, []))
    said, problem = first.communicate(timeout=60)
    assert first.returncode == 0, problem
    assert json.loads(said) == []


def test_processes_that_open_a_new_file_at_once_make_its_tables_once(sqlite_url: str) -> None:
    together(LITE, sqlite_url, count=6)
    store = open_store(sqlite_url)
    assert say(store, "SELECT version FROM fanin.migration") == [(n,) for n in range(1, NEWEST + 1)]
    assert say(store, "SELECT count(*) FROM fanin.setting WHERE name = 'buckets'") == [(1,)]
    store.close()


def test_the_printed_script_makes_what_the_program_expects(store_url: str) -> None:
    if store_url.startswith("postgresql"):
        address, _, schema = store_url.partition("?fanin_schema=")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(migrate.script("pg", schema, []))
    else:
        connection_ = apsw.Connection(store_url.removeprefix("sqlite:///"))
        connection_.create_scalar_function("fanin_clock", lambda *_: 1.8e9, 0)
        for _ in connection_.execute(migrate.script("lite", "", [])):
            pass
        connection_.close()
    store = open_store(store_url)
    make(store, 1)
    store.close()


def test_a_script_for_an_up_to_date_schema_changes_nothing(store: Store) -> None:
    known = [m.version for m in migrate.migrations(store.dialect)]
    schema = getattr(store, "schema", "")
    text = migrate.script(store.dialect, schema, known)
    assert "CREATE TABLE IF NOT EXISTS" in text
    assert "INSERT" not in text


def test_a_schema_of_many_buckets_keeps_each_job_in_its_own(pg_server: Server, pg_url: str) -> None:
    apply(pg_url, buckets=16)
    store = open_store(pg_url)
    assert store.buckets == 16
    jobs = [make(store, 2) for _ in range(40)]
    assert len({bucket_of(job_id, 16) for job_id in jobs}) > 8
    rows = say(store, "SELECT bucket, job_id FROM fanin.part")
    assert {(bucket, job_id) for bucket, job_id in rows} == {(store.bucket(j), j) for j in jobs}
    ended = 0
    for bucket in range(16):
        leases = {TASK: 60.0}
        held = store.run(lambda b=bucket, c=leases: lease.claim(b, "q", c, 256, new_claim_id(), "w"))  # type: ignore[misc]
        if held:
            reports = [done(c) for c in held]
            answers = store.run(lambda b=bucket, r=reports: finish.settle(b, r))  # type: ignore[misc]
            ended += sum(a.verdict.value == "last" for a in answers)
    assert ended == 80
    assert not any(found for _, _, found in store.check())
    store.close()


OLD_EVENTS = (
    "INSERT INTO {0}outbox (bucket, event_key, job_id, seq, type, payload, at, published_at) VALUES "
    "(0, 'sent', '01980000-0000-7000-8000-000000000001', 1, 'job.finished', '{{}}', 5, 7), "
    "(0, 'unsent', '01980000-0000-7000-8000-000000000002', 1, 'job.finished', '{{}}', 6, NULL)"
)


def test_events_that_were_written_before_there_were_relays_are_delivered_unless_they_had_left(store_url: str) -> None:
    later = list(range(2, NEWEST + 1))
    if store_url.startswith("postgresql"):
        address, _, schema = store_url.partition("?fanin_schema=")
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(migrate.script("pg", schema, later))
            connection.execute(OLD_EVENTS.format(f'"{schema}".'))
        assert apply(store_url) == later
    else:
        connection_ = apsw.Connection(store_url.removeprefix("sqlite:///"))
        connection_.create_scalar_function("fanin_clock", lambda *_: 1.8e9, 0)
        for text in (migrate.script("lite", "", later), OLD_EVENTS.format("fanin_")):
            for _ in connection_.execute(text):
                pass
        connection_.close()
    store = open_store(store_url)
    rows = say(store, "SELECT event_key, status, due_at FROM fanin.outbox ORDER BY event_key")
    assert rows == [("sent", "published", 5.0), ("unsent", "waiting", 6.0)]
    assert publish(store) == ["unsent"]
    store.close()
