"""Workers whose database restarts, hangs up, refuses, comes late, or stands behind a pooler."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fanin
from fanin.cli import exits
from fanin.runtime.worker import Worker
from tests.faults.scale import scaled
from tests.faults.witness import Witness
from tests.runtime.rows import execute
from tests.runtime.working import Renewals, Working, until, working
from tests.support import invariants
from tests.support.databases import migrate_database
from tests.support.figures import record
from tests.support.postgres import Server, free_port

SCHEMA = "fanin"


@contextmanager
def application(url: str) -> Iterator[fanin.App]:
    app = fanin.App(url)

    @app.task(name="square", lease=5, attempts=20)
    def square(x: int) -> int:
        time.sleep(0.002)
        return x * x

    @app.task(name="gather", lease=5, attempts=20)
    def gather(found: fanin.Joined[int]) -> int:
        return sum(found)

    with app:
        yield app


def no_failure_was_recorded(app: fanin.App) -> None:
    """I11"""
    rows = execute(app.store, "SELECT what, error FROM {attempt_log} WHERE what IN ('failed', 'retried')")
    assert rows == []


def check_all(app: fanin.App, jobs: list[fanin.Job], parts: int) -> None:
    for job in jobs:
        assert list(job.results()) == [x * x for x in range(parts)]
        account = job.account()
        assert (account["events"], account["successors"]) == (1, 1)
        assert job.successor is not None
        assert job.successor.result() == sum(x * x for x in range(parts))
    no_failure_was_recorded(app)
    assert invariants.violations(app.url) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_server_that_restarts_under_working_workers_loses_nothing(own_pg: Callable[..., Server]) -> None:
    """F062"""
    server = own_pg(fsync=True)
    url = server.url(SCHEMA)
    migrate_database(url)
    restarts = ["immediate", "fast", "immediate"] * scaled(1)
    witness = Witness()
    with application(url) as app, application(url) as other:
        jobs = []
        with working(app, on_part=witness.on_part), working(other, on_part=witness.on_part):
            for mode in restarts:
                jobs.append(app.map(app.tasks["square"], range(300), then=app.tasks["gather"]))
                before = witness.count
                until(lambda before=before: witness.count > before + 40, "they work")  # type: ignore[misc]
                server.restart(mode)
            for job in jobs:
                until(lambda job=job: job.successor and job.successor.row().ended, "the successor has ended")  # type: ignore[misc]
        check_all(app, jobs, 300)
        assert (witness.twice, witness.missing(app.store)) == ([], [])
    counts = {mode: restarts.count(mode) for mode in ("immediate", "fast")}
    record("database", case="restarts", restarts=counts, acknowledged=witness.count, missing=0)


def end_sessions(server: Server, where: str) -> int:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        rows = connection.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            f"AND backend_type = 'client backend' AND {where}"
        ).fetchall()
    return len(rows)


@pytest.mark.timeout(1800)
def test_sessions_that_are_ended_again_and_again_lose_nothing(own_pg: Callable[..., Server]) -> None:
    """F063"""
    server = own_pg()
    url = server.url(SCHEMA)
    migrate_database(url)
    with application(url) as app, application(url) as other:
        jobs = []
        witness = Witness()
        with working(app, concurrency=2, on_part=witness.on_part) as worker:
            ended = 0
            for _ in range(scaled(8)):
                jobs.append(other.map(other.tasks["square"], range(75), then=other.tasks["gather"]))
                seen = worker.settled
                until(lambda seen=seen: worker.settled > seen + 20, "it works")  # type: ignore[misc]
                ended += end_sessions(server, "true")
            for job in jobs:
                until(lambda job=job: job.successor and job.successor.row().ended, "the successor has ended")  # type: ignore[misc]
        assert ended > 5
        check_all(app, jobs, 75)
        assert (witness.twice, witness.missing(app.store)) == ([], [])
    record("database", case="sessions ended", sessions_ended=ended, acknowledged=witness.count, missing=0)


def test_a_worker_whose_listening_connection_is_ended_hears_again(
    own_pg: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """F071"""
    server = own_pg()
    url = server.url(SCHEMA)
    migrate_database(url)
    listening = "query LIKE 'LISTEN%'"
    with application(url) as app, working(app) as worker:
        app.map(app.tasks["square"], [1]).wait(90)
        until(lambda: sessions(server, listening), "it listens")
        assert end_sessions(server, listening) == 1
        assert app.map(app.tasks["square"], [2]).result(90) == 4  # found by looking, if not by listening
        until(lambda: sessions(server, listening), "it listens again")
        monkeypatch.setattr("fanin.runtime.worker.POLL_SECONDS", 3600.0)  # it must hear, or nothing is found
        app.map(app.tasks["square"], [3]).wait(90)  # found by the last poll, perhaps
        for _ in range(5):
            until(lambda: worker._resting, "it rests")
            app.map(app.tasks["square"], [3]).wait(90)


def sessions(server: Server, where: str) -> int:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute(
            f"SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND {where}"
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_worker_may_start_before_its_database(own_pg: Callable[..., Server]) -> None:
    server = own_pg()
    url = server.url(SCHEMA)
    migrate_database(url)
    server.stop()
    with application(url) as app:
        worker = Working(app)
        worker.thread.start()
        until(lambda: hasattr(worker, "_heart"), "it has begun")
        server.start()
        try:
            job = until(lambda: submitted(app), "the database is back")
            assert job.result(60) == 9
        finally:
            worker.stop(now=True)
            worker.join()


def submitted(app: fanin.App) -> fanin.Job | None:
    try:
        return app.map(app.tasks["square"], [3], key="k")
    except fanin.Unavailable:
        return None


def test_a_worker_without_a_database_can_be_stopped(own_pg: Callable[..., Server], tmp_path: Path) -> None:
    server = own_pg()
    url = server.url(SCHEMA)
    migrate_database(url)
    server.stop()
    for address in (url, f"sqlite:///{tmp_path / 'no such folder' / 'fanin.db'}"):
        with application(address) as app:
            worker = Working(app)
            worker.thread.start()
            time.sleep(0.3)  # whatever it is doing then
            worker.stop(now=True)
            worker.join(90)


def test_handlers_are_told_that_the_database_is_gone(own_pg: Callable[..., Server]) -> None:
    """F035 (b): by the worker's own clock, while its heartbeat waits for an answer"""
    server = own_pg()
    url = server.url(SCHEMA)
    migrate_database(url)
    begun, told = threading.Event(), threading.Event()
    with application(url) as app:

        @app.task(lease=3, attempts=20)
        def work(x: int) -> int:
            part = fanin.current()
            if part.attempt == 1:
                begun.set()
                until(lambda: part.cancelled, "told")
                told.set()
            return x

        job = app.map(work, [7])
        with working(app) as worker:
            assert begun.wait(90)
            server.stop("immediate")
            assert told.wait(90)
            server.start()
            job.wait(60)  # the same worker serves again
            assert worker.problem is None
        assert list(job.results()) == [7]
        no_failure_was_recorded(app)
        assert invariants.violations(url) == []


def test_leases_are_renewed_while_the_job_is_locked_by_somebody(
    app: fanin.App, migrated_url: str, renewals: Renewals
) -> None:
    """F038: on PostgreSQL; then everything is committed, nothing was run twice"""
    if app.store.dialect == "lite":
        lock: Any = None
    else:
        lock = psycopg.connect(migrated_url.partition("?")[0])
    calls: list[int] = []
    go_on = threading.Event()

    @app.task
    def work(x: int) -> int:
        calls.append(x)
        assert go_on.wait(90)
        return x

    job = app.map(work, range(8))
    with working(app, concurrency=8):
        until(lambda: len(calls) == 8, "all are running")
        if lock is not None:
            schema = migrated_url.rpartition("=")[2]
            lock.execute(f'SELECT 1 FROM "{schema}".job_stripe FOR UPDATE')
        renewals.clear()
        until(lambda: all(renewals.of(job.id, n) >= 3 for n in range(8)), "all are renewed again and again")
        go_on.set()
        if lock is not None:
            lock.commit()
            lock.close()
        job.wait(90)
    assert sorted(calls) == list(range(8))
    assert job.account()["attempts"] == 8


def test_every_handler_may_hold_a_connection_and_the_heart_still_beats(app: fanin.App, renewals: Renewals) -> None:
    """F037"""

    @app.task(attempts=1)
    def work(x: int) -> int:
        part = fanin.current()
        until(lambda: app.jobs() and renewals.enough(part), "it is renewed", pause=0)  # always in a query
        return x

    job = app.map(work, range(10))
    with working(app, concurrency=10):
        assert job.result(60) == list(range(10))
    assert job.account()["attempts"] == 10


def test_the_settings_of_a_pooled_url_work_without_a_pooler(pg_url: str) -> None:
    """F064"""
    migrate_database(pg_url)
    with application(f"{pg_url}&fanin_pooler=transaction") as app:
        job = app.map(app.tasks["square"], range(50), then=app.tasks["gather"])
        app.run_worker(until_idle=True)
        assert job.successor is not None
        assert job.successor.result() == sum(x * x for x in range(50))
    assert invariants.violations(pg_url) == []


@contextmanager
def pgbouncer(server: Server, folder: Path) -> Iterator[int]:
    port = free_port()
    folder.chmod(0o755)
    (folder / "users").write_text('"fanin" ""\n')
    (folder / "pgbouncer.ini").write_text(
        textwrap.dedent(f"""
        [databases]
        * = host=127.0.0.1 port={server.port}
        [pgbouncer]
        listen_addr = 127.0.0.1
        listen_port = {port}
        unix_socket_dir =
        auth_type = trust
        auth_file = {folder / "users"}
        pool_mode = transaction
        default_pool_size = 3
        max_client_conn = 100
        ignore_startup_parameters = extra_float_digits
        """)
    )
    binary = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    assert binary is not None
    # It refuses to run as root; "nobody" can read what stands here.
    import os

    options: dict[str, Any] = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and parent != parent.parent and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    process = subprocess.Popen(
        [binary, str(folder / "pgbouncer.ini")], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, **options
    )
    try:

        def answers() -> bool:
            assert process.poll() is None, process.communicate()[1].decode()
            try:
                psycopg.connect(f"postgresql://fanin@127.0.0.1:{port}/fanin", connect_timeout=2).close()
            except psycopg.OperationalError as problem:
                print(problem)  # shown when it never comes
                return False
            return True

        until(answers, "pgbouncer answers")
        yield port
    finally:
        process.kill()
        process.communicate(timeout=90)


HAS_PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin") is not None


if HAS_PGBOUNCER:  # in CI a test must not be skipped; where there is no pgbouncer there is no such test

    def test_workers_work_behind_a_pooler_in_transaction_mode(pg_server: Server, pg_url: str, tmp_path: Path) -> None:
        """F064: three server connections for all"""
        migrate_database(pg_url)
        folder = tmp_path / "pgbouncer"
        folder.mkdir()
        with pgbouncer(pg_server, folder) as port:
            pooled = pg_url.replace(f":{pg_server.port}/", f":{port}/") + "&fanin_pooler=transaction"
            with application(pooled) as app, application(pooled) as other:
                jobs = [app.map(app.tasks["square"], range(150), then=app.tasks["gather"]) for _ in range(3)]
                with working(app, concurrency=8), working(other, concurrency=8):
                    for job in jobs:
                        job.wait(60)
                        until(lambda job=job: job.successor and job.successor.row().ended, "its successor")  # type: ignore[misc]
                for job in jobs:
                    assert list(job.results()) == [x * x for x in range(150)]
                    assert job.account()["attempts"] == 150
        assert invariants.violations(pg_url) == []


def test_a_worker_of_many_buckets_finds_what_is_in_each(pg_url: str) -> None:
    """F111: also where the first bucket holds only what it does not know"""
    from fanin.domain.identity import keyed_job_id
    from fanin.stores import migrate

    address, _, schema = pg_url.partition("?fanin_schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        migrate.postgres(connection, schema, pg_url, buckets=4)
    with application(pg_url) as app, application(pg_url) as other:
        other.task(name="unknown")(lambda x: x)
        places = {f"k{n}": app.store.bucket(keyed_job_id(f"k{n}")) for n in range(40)}
        strange = [other.map(other.tasks["unknown"], range(5), key=k) for k, bucket in places.items() if bucket != 3]
        keys = [key for key, bucket in places.items() if bucket == 3]
        jobs = [app.map(app.tasks["square"], range(20), key=key) for key in keys]
        Worker(app, concurrency=4).run(until_idle=True)
        assert all(list(job.results()) == [x * x for x in range(20)] for job in jobs)
        assert all(job.account()["attempts"] == 0 for job in strange)


def test_a_bucket_that_cannot_be_written_does_not_hold_up_what_was_settled_in_another(pg_url: str) -> None:
    """What was settled before the failure is let go; what was not is said again, once."""
    from fanin.protocol.steps import TxnFactory
    from fanin.stores import migrate, open_store
    from fanin.stores.base import Store

    address, _, schema = pg_url.partition("?fanin_schema=")
    with psycopg.connect(address, autocommit=True) as connection:
        migrate.postgres(connection, schema, pg_url, buckets=2)

    class EverySecondFails:
        def __init__(self, store: Store) -> None:
            self.store = store
            self.count = 0
            self.on = False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

        def run(self, factory: TxnFactory[Any]) -> Any:
            self.count += self.on
            if self.on and self.count % 2 == 0:
                raise fanin.StoreUnreachable("as if it were away")
            return self.store.run(factory)

    with application(pg_url) as app:
        store = EverySecondFails(open_store(pg_url))
        holder: Any = type(
            "Holder",
            (),
            {
                "store": store,
                "tasks": app.tasks,
                "url": app.url,
                "schedules": app.schedules,
                "effects": app.effects,
                "max_parts": app.max_parts,
            },
        )()
        jobs = [app.map(app.tasks["square"], range(30)) for _ in range(6)]
        assert {app.store.bucket(job.id) for job in jobs} == {0, 1}
        store.on = True
        Worker(holder, concurrency=8).run(until_idle=True)
        store.store.close()
        assert all(list(job.results()) == [x * x for x in range(30)] for job in jobs)
        no_failure_was_recorded(app)
        assert invariants.violations(pg_url) == []
        assert all(job.account()["attempts"] == 30 for job in jobs)


TASKS = """
import os, time, fanin
app = fanin.App()
@app.task(name="quick")
def quick(x: int) -> int:
    return x
@app.task(name="slow", attempts=1)
def slow(x: int) -> int:
    open(f"begun-{x}", "w").close()
    while not os.path.exists(f"go-{x}"):
        time.sleep(0.01)
    return x
"""


def test_sigterm_drains_the_command_and_costs_no_attempt(app: fanin.App, migrated_url: str, tmp_path: Path) -> None:
    """F040, F041: what ends within the grace counts, what a second signal ends goes back"""
    (tmp_path / "tasks.py").write_text(TASKS)

    @app.task(name="slow", attempts=1)
    def slow(x: int) -> int:
        return x

    job = app.map(slow, range(3))
    command = [
        sys.executable,
        "-m",
        "fanin",
        "work",
        "tasks:app",
        "--concurrency=2",
        "--grace=1h",
        f"--url={migrated_url}",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        running = f"SELECT idx FROM {{part}} WHERE job_id = '{job.id}' AND status = 'running'"
        until(lambda: len(execute(app.store, running)) == 2, "two are running")
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "two handlers have begun")
        process.terminate()
        (tmp_path / "go-0").touch()
        until(lambda: job.progress().succeeded == 1, "the first ends within the grace")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=90)
    finally:
        process.kill()
        process.wait(90)
    assert process.returncode == exits.INTERRUPTED, said.decode()
    parts = execute(
        app.store, f"SELECT idx, status, attempts_allowed - attempt FROM {{part}} WHERE job_id = '{job.id}'"
    )
    assert sorted(parts) == [(0, "succeeded", 0), (1, "pending", 1), (2, "pending", 1)]
    assert {e["what"] for e in job.history()} == {"released"}
    job.cancel()
    from fanin.runtime import upkeep

    until(lambda: upkeep.once(app.store, 0) or job.progress().remaining == 0, "swept")
