"""A PostgreSQL server without a free connection: workers wait for one, and nothing is lost by it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import psycopg
import pytest

import fanin
from tests.faults.scale import scaled
from tests.faults.witness import Witness
from tests.runtime.working import until, working
from tests.support import invariants
from tests.support.databases import migrate_database
from tests.support.figures import record
from tests.support.postgres import Server

SCHEMA = "fanin"
CONNECTIONS = 14
REFUSED = "too many clients"


class Hog:
    """Takes every connection of a server, those of others too."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._taken: list[psycopg.Connection[object]] = []

    def take_all(self) -> int:
        """Until no session is anybody else's. Returns how many sessions were ended for it."""
        ended = 0
        while True:
            try:
                self._taken.append(psycopg.connect(self._server.url(), autocommit=True, application_name="hog"))
            except psycopg.OperationalError as problem:
                if REFUSED not in str(problem):
                    raise
            if not self._taken:
                continue
            rows = (
                self._taken[0]
                .execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE backend_type = 'client backend' AND application_name <> 'hog'"
                )
                .fetchall()
            )
            ended += len(rows)
            if not rows and len(self._taken) == CONNECTIONS:
                return ended

    def let_go(self) -> None:
        while self._taken:
            self._taken.pop().close()


@pytest.mark.timeout(900)
def test_workers_that_find_no_free_connection_wait_for_one(
    own_pg: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    """F063: also a caller's own submit goes through when there is one again, and is the same job"""
    server = own_pg(settings={"max_connections": str(CONNECTIONS), "superuser_reserved_connections": "0"})
    url = server.url(SCHEMA)
    migrate_database(url)
    hog = Hog(server)
    witness = Witness()
    app, other = fanin.App(url), fanin.App(url)

    @app.task(name="square", lease=5, attempts=1000)
    def square(x: int) -> int:
        return x * x

    @app.task(name="gather", lease=5, attempts=1000)
    def gather(found: fanin.Joined[int]) -> int:
        return sum(found)

    other.tasks.update(app.tasks)
    app.store.tries = other.store.tries = 2
    rounds, ended, jobs = scaled(3), 0, []
    with app, other, caplog.at_level(logging.WARNING, "fanin"):
        with (
            working(app, concurrency=2, on_part=witness.on_part),
            working(other, concurrency=2, on_part=witness.on_part),
        ):
            for n in range(rounds):
                job = until(lambda n=n: submitted(other, f"job {n}"), "it is submitted")  # type: ignore[misc]
                seen = witness.count
                until(lambda seen=seen: witness.count > seen + 20, "they work")  # type: ignore[misc]
                ended += hog.take_all()
                said = refusals(caplog)
                until(lambda said=said: refusals(caplog) >= said + 4, "workers are refused")  # type: ignore[misc]
                # Connections that had been put by are found to be dead first.
                until(lambda n=n: REFUSED in unavailable(app, f"job {n}"), "the caller is refused")  # type: ignore[misc]
                hog.let_go()
                assert until(lambda n=n: submitted(app, f"job {n}"), "it is the same").id == job.id  # type: ignore[misc]
                jobs.append(job)
            app.store.tries = other.store.tries = 12
            for job in jobs:
                until(lambda job=job: job.successor and job.successor.row().ended, "the successor has ended")  # type: ignore[misc]
        for job in jobs:
            assert list(job.results()) == [x * x for x in range(300)]
            assert job.successor is not None
            assert job.successor.result() == sum(x * x for x in range(300))
            assert {entry["what"] for entry in job.history()} <= {"released", "lease_lost", "refused"}
        assert (witness.twice, witness.missing(app.store)) == ([], [])
    assert invariants.violations(url) == []
    record(
        "database", case="no free connection", rounds=rounds, sessions_ended=ended, refused=refusals(caplog),
        acknowledged=witness.count, missing=0,
    )  # fmt: skip


def submitted(app: fanin.App, key: str) -> fanin.Job | None:
    try:
        return app.map(app.tasks["square"], range(300), then=app.tasks["gather"], key=key)
    except fanin.Unavailable:
        return None


def unavailable(app: fanin.App, key: str) -> str:
    """What a caller is told, who cannot submit now."""
    with pytest.raises(fanin.Unavailable) as told:
        app.map(app.tasks["square"], range(300), then=app.tasks["gather"], key=key)
    return str(told.value)


def refusals(caplog: pytest.LogCaptureFixture) -> int:
    return sum(REFUSED in entry.getMessage() for entry in caplog.records)
