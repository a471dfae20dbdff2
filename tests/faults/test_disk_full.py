"""A PostgreSQL server that cannot write any more: it says so, loses nothing, and all goes on when it can.

Two ways that need no rights and no file system of their own. A file that is in truth ``/dev/full`` refuses every write
with ENOSPC, as a full disk does. A limit on the size of files refuses with EFBIG what goes beyond, in the middle of a
file; the server has no name for that (nor for a quota that is used up) and answers with an internal error.
Whoever writes to the log and cannot ends the server; the operator makes room and starts it again.
"""

from __future__ import annotations

import base64
import logging
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import fanin
from tests.faults.witness import Witness
from tests.runtime.working import Working, until
from tests.support import invariants
from tests.support.databases import migrate_database
from tests.support.figures import record
from tests.support.postgres import Server

SCHEMA = "fanin"
FULL = Path("/dev/full")
PARTS = 150
RESULT_CHARS = 200_000
SEGMENT_BYTES = 16 << 20
"""Of the server's log, as PostgreSQL makes it if nobody says otherwise."""


def postmaster(server: Server) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])


def limit_files(server: Server, size: int) -> None:
    """From now on no process of the server writes beyond ``size`` bytes of a file (-1: no limit)."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()").fetchall()
    pids = [postmaster(server), *(pid for (pid,) in rows)]
    child = os.fork()
    if child == 0:  # as the server's own user, who may do that without any right
        code = 1
        try:
            if server.account.switch:
                os.setgroups([])
                os.setgid(server.account.gid)
                os.setuid(server.account.uid)
            for pid in pids:
                try:
                    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))
                except ProcessLookupError:
                    continue  # a session that has ended
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def ask(server: Server, text: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        row = connection.execute(text.encode()).fetchone()
    return str(row[0]) if row else ""


def end(server: Server) -> None:
    """It may have ended by itself, or be about to, or recover and end again and again."""
    try:
        server.stop("immediate")
    except RuntimeError:
        until(lambda: not server.running(), "the server has ended")


@contextmanager
def no_space_for_events(server: Server) -> Iterator[None]:
    """The table of events, still empty, is on a device that is full."""
    place = server.data / ask(server, f"SELECT pg_relation_filepath('{SCHEMA}.outbox')")
    server.stop()
    assert place.stat().st_size == 0
    kept = place.with_name("kept")
    place.rename(kept)
    place.symlink_to(FULL)
    server.start()
    yield
    server.stop()
    kept.replace(place)
    server.start()


@contextmanager
def no_space_for_the_log(server: Server) -> Iterator[None]:
    """The next file of the log is on a device that is full: the server ends when it comes there."""
    current = ask(server, "SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
    full = [server.data / "pg_wal" / f"{current[:16]}{int(current[16:], 16) + n:08X}" for n in (1, 2, 3)]
    for file in full:
        file.unlink(missing_ok=True)  # it may have been made ahead
        file.symlink_to(FULL)
    yield
    end(server)
    for file in full:
        file.unlink()
    server.start()


@contextmanager
def no_quota_for_tables(server: Server) -> Iterator[None]:
    """The log goes on, the results of parts do not fit."""
    limit_files(server, SEGMENT_BYTES + (1 << 20))
    yield
    limit_files(server, -1)


@contextmanager
def no_quota_for_the_log(server: Server) -> Iterator[None]:
    limit_files(server, 4 << 20)
    yield
    end(server)
    server.start()  # with the limits of this process, not of the one that has ended


WAYS = {
    "no-space-table": (no_space_for_events, "No space left on device"),
    "no-space-log": (no_space_for_the_log, "No space left on device"),
    "quota-table": (no_quota_for_tables, "File too large"),
    "quota-log": (no_quota_for_the_log, "File too large"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_cannot_write_costs_time_and_nothing_else(
    own_pg: Callable[..., Server], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F067: what was acknowledged is there, nothing failed; and where no session was ended, no handler is run again"""
    server = own_pg(fsync=True)
    url = server.url(SCHEMA)
    migrate_database(url)
    full, words = WAYS[way]
    app = fanin.App(url)
    begun: list[int] = []
    whole = way == "quota-table"
    # A session that is ended may have committed a claim of which nobody heard: such parts wait for their lease.
    options: Any = {"lease": 3600, "attempts": 1} if whole else {"lease": 5, "attempts": 1000}

    @app.task(name="work", **options)
    def work(x: int) -> str:
        begun.append(x)
        return base64.b64encode(random.Random(x).randbytes(RESULT_CHARS * 3 // 4)).decode()  # does not compress

    @app.task(name="after", **options)
    def after(found: fanin.Joined[str]) -> int:
        return sum(len(text) for text in found)

    witness = Witness()
    with app:
        job = app.map(work, range(PARTS), then=after)
        patience, app.store.tries = app.store.tries, 2  # to hear of it soon
        with full(server):
            worker = Working(app, concurrency=2, on_part=witness.on_part)
            with caplog.at_level(logging.WARNING, "fanin"):
                worker.thread.start()
                until(lambda: len(refused(caplog)) >= 3 and said_no(server, words), "three tries have failed")
            assert worker.problem is None
        app.store.tries = patience
        until(lambda: job.successor and job.successor.row().ended, "the successor has ended")
        worker.stop(now=True)
        worker.join()
        if whole:
            assert sorted(begun) == list(range(PARTS))
            assert job.history() == []
            assert witness.count == PARTS + 1
        assert set(begun) == set(range(PARTS))
        assert {entry["what"] for entry in job.history()} <= {"released", "lease_lost", "refused"}
        assert job.account()["events"] == 1
        assert job.successor is not None
        assert job.successor.result() == PARTS * RESULT_CHARS
        assert (witness.twice, witness.missing(app.store)) == ([], [])
    assert invariants.violations(url) == []
    record(
        "database", case=way, refused_writes=said_no(server, words), acknowledged=witness.count, missing=0,
        run_again=len(begun) - PARTS, postgres=server_version(server),
    )  # fmt: skip


def said_no(server: Server, words: str) -> int:
    """How often the server's log says why it cannot write."""
    return server.log.read_text("utf-8", "replace").count(words)


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "trying again" in r.getMessage()]


def server_version(server: Server) -> str:
    return ask(server, "SHOW server_version").split()[0]
