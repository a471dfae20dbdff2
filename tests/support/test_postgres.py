"""The servers that the tests run on: private, unprivileged, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import Server, own_server
from tests.support.schemas import discard, make, schema_of_its_own

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.pg_versions
def test_the_shared_server_answers_and_does_not_run_as_root(pg_server: Server) -> None:
    with psycopg.connect(pg_server.url()) as connection:
        assert connection.execute("SHOW data_directory").fetchone() == (str(pg_server.data),)
    assert pg_server.data.stat().st_uid != 0


@pytest.mark.pg_versions
def test_each_test_has_an_empty_schema_name_of_its_own(pg_url: str, pg_server: Server) -> None:
    schema = pg_url.rpartition("=")[2]
    with psycopg.connect(pg_server.url()) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is None


def test_a_schema_is_dropped_after_the_test_that_used_it(pg_server: Server) -> None:
    with (
        psycopg.connect(pg_server.url(), autocommit=True) as connection,
        schema_of_its_own(pg_server) as schema,
    ):
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.t AS SELECT 1")
    with psycopg.connect(pg_server.url()) as connection:
        assert connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is None


def test_a_transaction_left_open_is_reported_and_does_not_block_the_others(pg_server: Server) -> None:
    leaky = psycopg.connect(pg_server.url())
    leaky.execute("CREATE SCHEMA t_leaky")
    leaky.execute("CREATE TABLE t_leaky.t (x int)")
    leaky.commit()
    leaky.execute("SELECT * FROM t_leaky.t")
    assert discard(pg_server.url(), "t_leaky") == ["idle in transaction: SELECT * FROM t_leaky.t"]
    leaky.close()


def test_a_server_of_its_own_survives_a_crash_and_is_gone_afterwards(pg_server: Server, database: str) -> None:
    with own_server(database, fsync=True, settings={"work_mem": "1MB"}) as server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS x")
        server.restart("immediate")
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SELECT x FROM kept").fetchone() == (7,)
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW work_mem").fetchone() == ("1MB",)
    assert not server.directory.exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(server.url())


def test_no_server_outlives_a_process_that_was_killed(pg_server: Server) -> None:
    program = (
        "from tests.support.postgres import own_server\n"
        "import time\n"
        "with own_server() as server:\n"
        "    print(server.directory, server.url(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    directory, url = child.stdout.readline().split()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.close()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 30
    while Path(directory).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(directory).exists()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def _tables_of(url: str) -> int:
    with psycopg.connect(url.partition("?")[0]) as connection:
        schema = url.rpartition("=")[2]
        found = connection.execute(f"SELECT '\"{schema}\".job'::regclass::oid").fetchone()
    assert found is not None
    return int(found[0])


def test_emptied_tables_get_a_new_name_and_changed_ones_are_dropped(pg_server: Server) -> None:
    made = []
    for change in (
        "INSERT INTO {}.leftover VALUES (0, gen_random_uuid(), true, 0)",
        "SELECT 1",
        "UPDATE {}.setting SET value = '7'",
        "ALTER TABLE {}.job ALTER COLUMN reason SET STATISTICS 7",
        "DROP INDEX {}.part_orphaning",
        "ANALYZE {}.setting",
        "SELECT 1",
    ):
        with schema_of_its_own(pg_server) as schema:
            url = pg_server.url(schema)
            make(url)
            made.append(_tables_of(url))
            with psycopg.connect(pg_server.url(), autocommit=True) as connection:
                for table in ("leftover", "job", "part", "outbox"):
                    assert connection.execute(f'SELECT count(*) FROM "{schema}".{table}').fetchone() == (0,)
                connection.execute(change.format(f'"{schema}"'))
    assert made[0] == made[1] == made[2]
    assert len(set(made)) == 5
