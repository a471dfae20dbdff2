"""Kind K: one file, one writer, and surprising lock rules."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

import fanin
from fanin.domain.errors import StoreBusy, Unavailable, UnsafeStore
from fanin.domain.model import Verdict
from fanin.protocol import finish, lease
from fanin.stores import open_store, sqlite
from fanin.stores.sqlite import SqliteStore
from tests.faults.crew import ROOT, build
from tests.faults.scale import scaled
from tests.protocol.helpers import cancel, claim, done, failed, make, part, settle
from tests.runtime.working import working


@pytest.fixture
def store(sqlite_url: str) -> Any:
    opened = open_store(sqlite_url)
    assert isinstance(opened, SqliteStore)
    yield opened
    assert all(not findings for _, _, findings in opened.check())
    opened.close()


def test_F076_every_transaction_that_writes_begins_as_a_writer(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """traced on every connection, through a job's life and the work of a worker"""
    wrong: list[str] = []
    begun: dict[int, str] = {}
    writes = Counter[str]()
    bare = SqliteStore.open

    def traced(self: SqliteStore) -> apsw.Connection:
        connection = bare(self)

        def trace(cursor: Any, statement: str, bindings: Any) -> bool:
            word = statement.split(maxsplit=1)[0].upper()
            if word == "BEGIN":
                begun[id(connection)] = statement
            elif word in ("INSERT", "UPDATE", "DELETE") or (word == "WITH" and "RETURNING" in statement):
                writes[word] += 1
                if not connection.in_transaction or begun.get(id(connection)) != "BEGIN IMMEDIATE":
                    wrong.append(statement)
            return True

        connection.exec_trace = trace
        return connection

    monkeypatch.setattr(SqliteStore, "open", traced)
    app = fanin.App(store.url)

    @app.task(backoff=0, attempts=2, lease=0.5)
    def work(x: int) -> int:
        if x == 1:
            raise ValueError(x)
        if x == 2:
            fanin.current().checkpoint(x)
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> int:
        return found.succeeded

    job = app.map(work, range(20), then=after, tolerate=1, give_up_after=60, stream=True)
    with working(app):
        job.wait(90)
        job.redrive()
        job.wait(90)
        app.map(work, range(5), delay=60).cancel()
    app.close()
    assert wrong == []
    assert all(writes[word] > 0 for word in ("INSERT", "UPDATE", "WITH"))


RUNNER = """
import sys
from pathlib import Path
from tests.faults.crew import build
app = build(sys.argv[1], Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
app.run_worker(until_idle=True, concurrency=2)
app.close()
"""


def test_F077_several_processes_never_take_the_same_part(sqlite_url: str, tmp_path: Path) -> None:
    """every part is one call of its handler, and nobody meets an error"""
    app = build(sqlite_url, tmp_path)
    parts = scaled(800)
    job = app.map(app.tasks["quick"], range(parts))
    runners = [
        subprocess.Popen(
            [sys.executable, "-c", RUNNER, sqlite_url, str(tmp_path)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(4)
    ]  # fmt: skip
    for runner in runners:
        assert runner.stdout is not None
        assert runner.stdout.readline() == "ready\n"
    for runner in runners:
        _, said = runner.communicate("\n", timeout=scaled(90))
        assert (runner.returncode, said) == (0, "")
    lines = (tmp_path / "calls").read_text().splitlines()
    assert sorted(lines) == sorted(f"quick {n} 1" for n in range(parts))
    assert job.progress().succeeded == parts
    assert job.history() == []
    app.close()


def test_F078_many_writers_queue_up_behind_one_that_holds_the_lock(sqlite_url: str, tmp_path: Path) -> None:
    """twice two seconds; leases are kept and nothing fails, though a part claimed ahead may be given back"""
    app = build(sqlite_url, tmp_path)
    job = app.map(app.tasks["quick"], range(400))
    slow = app.map(app.tasks["gated"], range(3))
    workers = [fanin.App(sqlite_url) for _ in range(3)]
    for made in workers:
        made.tasks.update(app.tasks)
    hog = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    hog.set_busy_timeout(10_000)
    with working(workers[0]), working(workers[1]), working(workers[2]):
        for _ in range(2):
            hog.execute("BEGIN IMMEDIATE")
            release = threading.Timer(2.0, hog.execute, ["COMMIT"])
            release.start()
            release.join()
        for attempt in range(1, 10):
            (tmp_path / f"go-{attempt}").touch()
        job.wait(60)
        slow.wait(60)
    hog.close()
    for made in workers:
        made.close()
    assert [x for x, _ in slow.results()] == [0, 1, 2]
    assert job.progress().succeeded == 400
    assert {entry["what"] for entry in job.history() + slow.history()} <= {"released"}
    app.close()


@pytest.mark.parametrize("blocked", ["fanin.db-shm", "fanin.db-wal", "fanin.db-queue"])
def test_F079_a_file_whose_helper_files_cannot_be_made_is_refused_with_the_reason(tmp_path: Path, blocked: str) -> None:
    (tmp_path / blocked).mkdir()
    store = open_store(f"sqlite:///{tmp_path / 'fanin.db'}")
    store.tries = 2
    with pytest.raises((Unavailable, UnsafeStore), match=r"fanin\.db"):
        make(store, 1)
    (tmp_path / blocked).rmdir()
    make(store, 1)
    store.close()


def test_F080_the_pragmas_hold_on_every_connection(store: SqliteStore) -> None:
    """of the writer, of readers in threads, of the bell, of heartbeats, after a close and in a forked child"""
    expected = {"journal_mode": "wal", "foreign_keys": 1, "synchronous": 2, "busy_timeout": 10_000}

    def of(connection: Any) -> dict[str, Any]:
        return {name: connection.pragma(name) for name in expected}

    found: list[dict[str, Any]] = []

    def all_of(store: SqliteStore) -> None:
        found.append(of(store._open_writer()))
        found.append(of(store._reader()))
        thread = threading.Thread(target=lambda: found.append(of(store._reader())))
        thread.start()
        thread.join()
        bell = store.bell(["q"])
        found.append(of(bell._connection))  # type: ignore[attr-defined]
        bell.close()

    all_of(store)
    reserved = store.reserve()
    assert isinstance(reserved, SqliteStore)
    all_of(reserved)
    reserved.close()
    store.close()
    all_of(store)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            all_of(store)
            code = int(any(pragmas != expected for pragmas in found))
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert found == [expected] * 12
    job_id = make(store, 3)
    with pytest.raises(apsw.ConstraintError):
        store.connect().execute(
            "INSERT INTO fanin_job_stripe (bucket, job_id, stripe, created, remaining, succeeded, failed, abandoned, "
            "sealed, closed, judged) VALUES (0, 'nobody', 0, 0, 0, 0, 0, 0, 1, 0, 0)"
        )
    assert part(store, job_id, 2)["status"] == "pending"


def test_F081_a_lock_that_outlasts_the_busy_time_is_never_a_failure_of_the_work(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """at claim, heartbeat, checkpoint, completion, failure, cancel and upkeep: StoreBusy, and nothing has changed"""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.02)
    monkeypatch.setattr(sqlite, "TURN_SECONDS", 0.02)
    store.close()
    store.tries = 2
    job_id = make(store, 3, attempts=2)
    (first,) = claim(store, 1)
    hog = apsw.Connection(store.path)
    operations = [
        lambda: claim(store),
        lambda: store.run(lambda: lease.renew(0, [(first, 60.0)])),
        lambda: store.run(lambda: lease.checkpoint(first, 60.0, "1")),
        lambda: settle(store, done(first)),
        lambda: settle(store, failed(first)),
        lambda: cancel(store, job_id),
        lambda: store.run(lambda: lease.wake(0)),
        lambda: store.run(lambda: lease.reap(0)),
        lambda: make(store, 2),
    ]
    for operation in operations:
        hog.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy):
            operation()
        hog.execute("COMMIT")
        assert part(store, job_id, 0)["status"] == "running"
    hog.close()
    held = claim(store)
    answers = store.run(lambda: finish.settle(0, [done(first), *map(done, held)]))
    assert [answer.verdict for answer in answers] == [Verdict.LAST] * 3


def test_F081_a_worker_waits_out_a_lock_and_fails_nothing(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.02)
    monkeypatch.setattr(sqlite, "TURN_SECONDS", 0.02)
    app = fanin.App(sqlite_url)
    app.store.tries = 2
    begun = threading.Event()

    @app.task(attempts=1, lease=30)
    def work(x: int) -> int:
        begun.set()
        return x

    job = app.map(work, range(50))
    hog = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    hog.set_busy_timeout(5_000)
    with working(app):
        for _ in range(3):
            hog.execute("BEGIN EXCLUSIVE")
            release = threading.Timer(0.4, hog.execute, ["COMMIT"])
            release.start()
            release.join()
        job.wait(60)
    hog.close()
    assert job.progress().succeeded == 50
    assert job.history() == []
    app.close()


def test_F081_a_lock_while_the_tables_are_made_is_waited_for_too(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """a first try that found the file locked does not leave a store that believes in its tables"""
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.02)
    store = open_store(sqlite_url)
    store.tries = 1
    hog = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    hog.pragma("journal_mode", "wal")
    hog.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        make(store, 1)
    hog.execute("COMMIT")
    hog.close()
    make(store, 1)
    store.close()
