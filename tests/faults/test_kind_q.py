"""Kind Q: several versions and several operators at once."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

import fanin
from fanin.stores import open_store
from tests.faults.crew import ROOT
from tests.protocol.helpers import make, say
from tests.runtime.working import until, working


def test_F111_a_worker_leaves_alone_what_it_does_not_know(app: fanin.App, migrated_url: str) -> None:
    """no attempt is used up, its own work goes on beside it, and a deadline still ends the unknown job"""
    other = fanin.App(migrated_url)

    @other.task(name="unknown")
    def unknown(x: int) -> int:
        return x

    @app.task
    def known(x: int) -> int:
        return x

    waiting = other.map(unknown, range(300), priority=1)
    doomed = other.map(unknown, range(3), give_up_after=0.5)
    with working(app):
        assert app.map(known, range(50)).wait(90).progress().succeeded == 50
        doomed.wait(90)
        assert doomed.row().outcome == "gave_up"
        assert say(app.store, "SELECT max(attempt) FROM fanin.part WHERE task = 'unknown'") == [(0,)]
        assert waiting.progress().remaining == 300
        with working(other):
            waiting.wait(90)
    assert waiting.progress().succeeded == 300
    other.close()


def test_F111_a_successor_that_nobody_could_run_is_refused_at_submit(app: fanin.App, migrated_url: str) -> None:
    elsewhere = fanin.App(migrated_url)

    @elsewhere.task
    def after(found: fanin.Joined[int]) -> int:
        return 0

    @app.task
    def work(x: int) -> int:
        return x

    with pytest.raises(fanin.UnknownTask, match="after"):
        app.map(work, [1], then=after)
    assert app.jobs() == []
    elsewhere.close()


def test_F112_work_of_dead_workers_counts_against_nothing(app: fanin.App) -> None:
    """a worker that works until nothing is left waits for the leases of dead ones, then does what they held"""
    from fanin.domain.identity import new_claim_id
    from fanin.protocol import lease

    @app.task
    def work(x: int) -> int:
        return x

    job = app.map(work, range(6))
    for _ in range(2):
        app.store.run(lambda: lease.claim(0, "default", {work.name: 1.0}, 2, new_claim_id(), "dead"))
    app.run_worker(until_idle=True, concurrency=2)
    assert job.progress().succeeded == 6
    assert [entry["what"] for entry in job.history()] == ["lease_lost"] * 4


STARTER = """
import os, signal, sys
killed = sys.argv[2] == "killed"
url = sys.argv[1]

def die(text):
    if killed and "CREATE INDEX" in text:
        os.kill(os.getpid(), signal.SIGKILL)

if url.startswith("sqlite"):
    from fanin.stores import open_store
    from fanin.stores.sqlite import SqliteStore
    bare = SqliteStore.open
    def traced(self):
        connection = bare(self)
        connection.exec_trace = lambda cursor, text, bindings: die(text) or True
        return connection
    SqliteStore.open = traced
    print("ready", flush=True)
    sys.stdin.readline()
    store = open_store(url)
    list(store.check())
    store.close()
else:
    import psycopg
    from fanin.stores import migrate
    address, _, schema = url.partition("?fanin_schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        if killed:
            script = migrate.script
            migrate.script = lambda *a: script(*a) + "; SELECT pg_terminate_backend(pg_backend_pid());"
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            migrate.postgres(connection, schema, url)
        except psycopg.OperationalError:
            if killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise
"""


def test_F113_one_of_many_that_make_the_tables_dies_in_the_middle(store_url: str) -> None:
    """one of the others makes them whole; there is never a part of a schema"""

    def start(way: str) -> Any:
        return subprocess.Popen(
            [sys.executable, "-c", STARTER, store_url, way], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    first = start("killed")
    first.communicate("\n", timeout=60)
    assert first.returncode == -signal.SIGKILL
    starters = [start(way) for way in ("whole", "killed", "whole", "whole")]
    for starter in starters:
        assert starter.stdout.readline() == "ready\n"
    for starter in starters:
        starter.stdin.write("\n")
        starter.stdin.flush()
    for starter in starters:
        _, problem = starter.communicate(timeout=60)
        assert starter.returncode in (0, -signal.SIGKILL), problem
    store = open_store(store_url)
    make(store, 3)
    ((applied, last),) = say(store, "SELECT count(*), max(version) FROM fanin.migration")
    assert applied == last >= 1
    assert all(not findings for _, _, findings in store.check())
    until(lambda: say(store, "SELECT count(*) FROM fanin.part") == [(3,)], "the tables work")
    store.close()
