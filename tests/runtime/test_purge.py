"""A purge from outside: files, portions, other buckets, another purge's leftovers, workers that do it by themselves."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fanin
from fanin.protocol import purge as room
from fanin.runtime import outputs
from fanin.runtime import purge as loop
from fanin.runtime.relay import Relay
from fanin.runtime.worker import Worker
from fanin.testing.state import dump
from tests.relay.receipts import Receiver
from tests.runtime.working import until, working


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(outputs.VARIABLE, str(tmp_path / "outputs"))
    return tmp_path / "outputs"


def files(root: Path) -> list[str]:
    return sorted(name for _, _, names in os.walk(root) for name in names)


def left(app: fanin.App) -> dict[str, int]:
    return {table: len(rows) for table, rows in dump(app.store).items() if rows}


def publish(app: fanin.App) -> None:
    Relay(app.store, Receiver()).run(until_idle=True)


def with_files(app: fanin.App) -> None:
    """Three parts that each leave a file and a large result, and a job that follows."""

    @app.task
    def page(n: int) -> str:
        fanin.current().put("page.txt", f"page {n}")
        return "x" * 1_100_000

    @app.task
    def bind(pages: fanin.Joined[str]) -> int:
        return len(list(pages))

    job = app.map(page, range(3), then=bind)
    app.run_worker(until_idle=True)
    publish(app)
    assert job.status == "completed"


def test_files_stay_where_they_lie_and_large_results_go(app: fanin.App, root: Path) -> None:
    with_files(app)
    assert files(root) == [".result"] * 3 + ["page.txt"] * 3
    seen = app.purge(0, dry_run=True)
    assert (seen.trees, seen.jobs, seen.parts, seen.events, seen.outputs) == (1, 2, 4, 2, 6)
    assert len(files(root)) == 6
    found = app.purge(0)
    assert (found.jobs, found.parts, found.events, found.outputs) == (2, 4, 2, 6)
    assert (found.objects_removed, found.objects_left, found.unreachable) == (3, 3, 0)
    assert files(root) == ["page.txt"] * 3
    assert left(app) == {}


def test_files_go_too_where_that_is_asked_for(app: fanin.App, root: Path) -> None:
    with_files(app)
    assert app.purge(0, outputs=True).objects_removed == 6
    assert files(root) == []
    assert left(app) == {}


def test_what_cannot_be_reached_is_left_to_the_next_purge(app: fanin.App, root: Path) -> None:
    """A purge on a host that does not see the folder: the job is gone, its rows wait for one that does."""
    with_files(app)
    away = root.with_name("away")
    root.rename(away)
    outputs_left = app.purge(0, outputs=True)
    assert (outputs_left.jobs, outputs_left.objects_removed, outputs_left.unreachable) == (2, 0, 6)
    assert app.jobs() == []
    assert left(app)["leftover"] == 1
    away.rename(root)
    again = app.purge(30 * 86_400.0)
    assert (again.jobs, again.objects_removed, again.unreachable) == (0, 6, 0)
    assert files(root) == []
    assert left(app) == {}


def test_a_key_waits_for_a_file_below_its_job_that_cannot_be_reached(app: fanin.App, root: Path) -> None:
    """The purge removes all other rows. A new job would make the job below again, with the same id."""

    @app.task
    def one(n: int) -> int:
        return n

    @app.task
    def add(parts: fanin.Joined[int]) -> str:
        fanin.current().put("sum.txt", str(sum(parts)))
        return "x" * 1_100_000

    def asked() -> fanin.Job:
        return app.map(one, [1, 2], then=add, key="nightly")

    first = asked()
    app.run_worker(until_idle=True)
    publish(app)
    away = root.with_name("away")
    root.rename(away)
    assert app.purge(0, outputs=True).unreachable == 2
    assert left(app) == {"leftover": 2, "part": 1, "staged_output": 2}
    for _ in range(2):
        with pytest.raises(fanin.NotAllowedNow, match="'nightly' was purged, and its rows are still being removed"):
            asked()
        assert app.purge(0).unreachable == 2
    away.rename(root)
    assert app.purge(0).objects_removed == 2
    assert left(app) == {}
    again = asked()
    app.run_worker(until_idle=True)
    assert (again.id, again.status, files(root)) == (first.id, "completed", [".result", "sum.txt"])


def test_a_purge_that_comes_late_leaves_the_files_of_a_new_job_of_the_same_key(
    app: fanin.App, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen the job among those that are gone; then another has removed all, and the key was used again."""

    @app.task
    def work(n: int) -> str:
        return "x" * 1_100_000

    def done() -> fanin.Job:
        job = app.map(work, [1], key="nightly")
        app.run_worker(until_idle=True)
        publish(app)
        return job

    job = done()

    class Cut(Exception):
        pass

    def cut(found: fanin.Purged) -> None:
        raise Cut

    with pytest.raises(Cut):
        loop.purge(app.store, 0.0, outputs=True, tell=cut)
    clear = loop._clear_job

    def stalls(*said: Any) -> None:
        monkeypatch.setattr(loop, "_clear_job", clear)
        app.purge(30 * 86_400)
        assert done().id == job.id
        clear(*said)

    monkeypatch.setattr(loop, "_clear_job", stalls)
    app.purge(30 * 86_400)
    assert list(job.results()) == ["x" * 1_100_000]
    assert files(root) == [".result"]


def test_a_purge_that_was_cut_is_finished_by_the_next(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PORTION_PARTS", 10)

    @app.task
    def work(n: int) -> int:
        return n

    app.map(work, range(25))
    app.run_worker(until_idle=True)
    publish(app)

    class Cut(Exception):
        pass

    def cut(found: fanin.Purged) -> None:
        raise Cut

    with pytest.raises(Cut):
        loop.purge(app.store, 0.0, tell=cut)
    assert left(app) == {"leftover": 1, "part": 25}
    assert app.purge(86_400).jobs == 0
    assert left(app) == {}


def test_what_stays_is_told_by_its_reason(app: fanin.App) -> None:
    @app.task
    def work(n: int) -> int:
        return n

    app.map(work, range(2))
    app.run_worker(until_idle=True)
    app.map(work, range(2))
    found = app.purge(0)
    assert (found.trees, found.kept) == (0, {"live": 0, "flow": 0, "events": 1, "outputs": 0, "effects": 0})
    found = app.purge(0, unsent=True)
    assert (found.trees, found.events, found.events_unsent) == (1, 1, 1)
    assert len(app.jobs()) == 1


def test_jobs_that_parts_have_started_go_with_the_tree_from_whichever_bucket(pg_url: str) -> None:
    from fanin.stores import migrate

    schema = pg_url.rpartition("fanin_schema=")[2]
    import psycopg

    with psycopg.connect(pg_url.partition("?")[0]) as connection:
        migrate.postgres(connection, schema, pg_url, 16)
    with fanin.App(pg_url) as app:

        @app.task
        def leaf(n: int) -> int:
            return n

        @app.task
        def branch(n: int) -> None:
            app.map(leaf, range(n))

        jobs = [app.map(branch, [1, 2, 3]) for _ in range(3)]
        app.run_worker(until_idle=True)
        publish(app)
        buckets = {row.bucket for row in app.jobs(limit=100)}
        assert len(buckets) > 3
        members = app.store.read(lambda: room.tree(range(16), (app.store.bucket(jobs[0].id), jobs[0].id)))
        assert len(members) == 4
        found = app.purge(0)
        assert (found.trees, found.jobs, found.parts) == (3, 12, 27)
        assert left(app) == {}


def test_a_flow_waits_for_what_is_left_of_its_jobs_in_other_buckets(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fanin.stores import migrate

    schema = pg_url.rpartition("fanin_schema=")[2]
    import psycopg

    with psycopg.connect(pg_url.partition("?")[0]) as connection:
        migrate.postgres(connection, schema, pg_url, 16)
    with fanin.App(pg_url) as app:

        @app.task
        def leaf(n: int) -> int:
            return n

        @app.task
        def branch(n: int) -> None:
            for one in range(n):
                app.map(leaf, range(one + 1))

        def asked() -> fanin.FlowRun:
            flow = app.flow("tree", key="nightly")
            flow.step(branch, 5)
            return flow.start()

        run = asked()
        app.run_worker(until_idle=True)
        publish(app)
        home = (app.store.bucket(run.id), run.id)
        members = app.store.read(lambda: room.flow_tree(range(16), home))
        assert app.store.run(lambda: room.purge(range(16), members, 0.0, flow=home)).kept is None
        away = [home_of for home_of in members if home_of[0] != home[0]]
        assert len(away) > 1
        for one in [*(home_of for home_of in members if home_of not in away), *away]:
            with pytest.raises(fanin.NotAllowedNow, match="'nightly' was purged, and its rows are still being removed"):
                asked()
            going: room.Member | None = one
            while going is not None:
                going = app.store.run(lambda going=going: room.portion(16, going))  # type: ignore[misc]
        assert left(app) == {}
        assert asked().id == run.id
        app.run_worker(until_idle=True)
        assert (run.status, len(app.jobs())) == ("completed", 6)


def test_a_worker_purges_by_itself_where_it_is_told_how_long_to_retain(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop.random, "uniform", lambda low, high: low)  # type: ignore[attr-defined]
    caplog.set_level(logging.INFO, "fanin")

    @app.task
    def work(n: int) -> int:
        return n

    job = app.map(work, range(3))
    app.run_worker(until_idle=True)
    publish(app)
    assert job.status == "completed"
    with working(app, retain=0.0):
        until(lambda: left(app) == {}, "the job is purged")
    assert "purge: 1 jobs with 3 parts were removed" in caplog.text


def test_without_being_told_a_worker_purges_nothing(app: fanin.App) -> None:
    @app.task
    def work(n: int) -> int:
        return n

    assert Worker(app).retain is None
    app.map(work, range(3))
    app.run_worker(until_idle=True)
    publish(app)
    assert left(app)["job"] == 1


def test_the_handler_of_a_purged_job_starts_no_other(app: fanin.App) -> None:
    """A zombie of a cancelled job, which nobody could stop."""
    seen: list[Any] = []

    @app.task
    def work(n: int) -> None:
        part = fanin.current()
        app.job(part.job_id).cancel()
        until(lambda: not app.store.read(lambda: room.assess([(0, part.job_id)], 0.0, True)).kept, "it is swept")
        assert app.purge(0, unsent=True).jobs == 1
        try:
            app.map(work, [1])
        except fanin.NotAllowedNow as problem:
            seen.append(str(problem))

    job = app.map(work, [0])
    with working(app):
        until(lambda: seen, "it was refused")
    assert seen == [f"job {job.id}, whose handler asks for this one, has ended and was purged"]
    assert app.jobs() == []


def test_a_purge_can_be_told_as_json(app: fanin.App) -> None:
    assert msgspec.to_builtins(app.purge("30d"))["kept"]["live"] == 0


def test_a_flow_goes_as_a_whole_and_one_that_waits_for_a_person_stays(app: fanin.App) -> None:
    @app.task
    def pages(n: int) -> list[int]:
        return list(range(n))

    @app.task
    def work(n: int) -> int:
        if n > 2:
            raise fanin.Permanent("no")
        return n

    def started(n: int) -> fanin.FlowRun:
        flow = app.flow("pages")
        found = flow.step(pages, n, undo=fanin.manual("call") if n > 3 else None)
        flow.map(work, found)
        return flow.start()

    good, bad = started(3), started(4)
    app.run_worker(until_idle=True)
    publish(app)
    assert (good.status, bad.status) == ("completed", "needs_attention")
    seen = app.purge(0, dry_run=True)
    found = app.purge(0)
    assert (seen.trees, seen.flows, seen.jobs) == (found.trees, found.flows, found.jobs) == (1, 1, 3)
    assert found.kept["flow"] == 1
    assert [row.id for row in app.flows()] == [bad.id]
    bad.abandon_undo("pages", "never mind")
    publish(app)
    assert app.purge(0).flows == 1
    assert (app.flows(), left(app)) == ([], {})
