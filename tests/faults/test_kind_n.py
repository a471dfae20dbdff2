"""Kind N: the part rows are the authority. What does not fit them is repaired, what cannot be known is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import fanin
from fanin.domain.repairs import Repaired
from fanin.protocol import lease
from fanin.runtime.repair import repair
from fanin.stores.base import Bell, Store
from tests.faults.scale import scaled
from tests.protocol.helpers import THEN, claim_all, done, ending, events, job, make, run_all, say, settle, successors
from tests.runtime.working import until, working


class Deaf(Bell):
    """A bell that hears nothing: every dispatch signal is lost."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._bell.wait(left)
        return False

    def ring(self) -> None:
        pass

    def close(self) -> None:
        self._bell.close()


def findings(store: Store) -> dict[str, list[str]]:
    """The rules that are broken, with their jobs."""
    return {
        name: [str(row.row.get("job_id", row.row.get("id"))) for row in rows] for name, _, rows in store.check() if rows
    }


def logged(store: Store, job_id: str) -> list[tuple[str, str, str]]:
    return [
        (str(what), str(before), str(after))
        for what, before, after in say(
            store,
            "SELECT what, before, after FROM fanin.repair WHERE job_id = :job_id ORDER BY at, what",
            job_id=job_id,
        )
    ]


@contextmanager
def repairing(store: Store, many: int = 1) -> Iterator[list[Repaired]]:
    """Repairs in a loop without a pause, for the time of the block. What each pass found."""
    passes: list[Repaired] = []
    problems: list[BaseException] = []
    stop = threading.Event()

    def loop() -> None:
        try:
            while not stop.is_set():
                passes.append(repair(store))
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=loop, name=f"repair-{n}") for n in range(many)]
    for thread in threads:
        thread.start()
    try:
        yield passes
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not problems, problems


def joined(of: fanin.Job) -> object:
    """The result of what follows a job, when both have ended."""
    successor = of.wait(90).successor
    assert successor is not None
    return successor.wait(90).result()


# F093


DRIFT = {
    "one more": "created = created + 1, remaining = remaining + 1",
    "one less": "created = created - 1, remaining = remaining - 1",
    "zero": "created = created - remaining, remaining = 0",
    "nothing counted": "created = 0, remaining = 0, succeeded = 0, failed = 0",
}
"""A counter cannot be NULL: the schema refuses it. Nothing counted at all is what comes nearest."""


@pytest.mark.plants_corruption
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_F093_a_drift_in_either_direction_is_repaired_in_one_pass_and_logged(store: Store, busy: bool) -> None:
    jobs: dict[str, str] = {}
    for number in range(scaled(25)):
        for drift, text in DRIFT.items():
            job_id = make(store, 4, then=THEN, queue=f"q{number}")
            jobs[job_id] = drift
            if drift == "zero" or busy:
                held = claim_all(store, queue=f"q{number}")
                settle(store, *map(done, [one for one in held if one.job_id == job_id][:2]))
            say(store, f"UPDATE fanin.job_stripe SET {text} WHERE job_id = '{job_id}'")
    found = repair(store)
    assert (found.looked, found.repaired, found.ended, found.damaged) == (len(jobs), len(jobs), 0, 0)
    for job_id in jobs:
        ((what, before, after),) = logged(store, job_id)
        assert what == "stripe"
        assert before != after
    assert findings(store) == {}
    assert repair(store).repaired == 0
    say(store, "UPDATE fanin.part SET due_at = 0 WHERE status = 'running'")
    while store.run(lambda: lease.wake(0)).queues:
        pass
    for number in range(scaled(25)):
        run_all(store, queue=f"q{number}")
    for job_id in jobs:
        assert ending(store, job_id) == ("completed", "all_ok")
        assert len(successors(store, job_id)) == 1


@pytest.mark.plants_corruption
def test_F093_jobs_that_drift_beside_busy_workers_end_once_with_all_of_their_parts(app: fanin.App) -> None:
    """Workers report while counters are set wrong and repaired again and again. A counter that is too high is repaired
    before it does harm; one that is too low may end a job early, which no repair takes back."""

    @app.task
    def echo(x: int) -> int:
        return x

    @app.task
    def total(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    jobs = [app.map(echo, range(40), then=total) for _ in range(scaled(10))]
    store = app.store
    drift = (
        "UPDATE fanin.job_stripe SET created = created + 3, remaining = remaining + 3 "
        "WHERE job_id IN (SELECT id FROM fanin.job WHERE status = 'running')"
    )
    with repairing(store, 2) as passes, working(app, concurrency=4):
        for _ in range(20):
            say(store, drift)
            time.sleep(0)
        assert [joined(one) for one in jobs] == [sum(range(40))] * len(jobs)
    repair(store)
    assert sum(one.repaired for one in passes) > 0
    assert sum(one.damaged for one in passes) == 0
    for one in jobs:
        assert len(events(store, one.id)) == 1
        assert len(successors(store, one.id)) == 1
    for (job_id,) in say(store, "SELECT id FROM fanin.job"):
        repair(store, str(job_id))  # one may have ended between the look at it and the drift
    assert findings(store) == {}


# F094


@pytest.mark.plants_corruption
def test_F094_parts_that_have_all_ended_without_an_end_of_the_job_end_it_once(store: Store) -> None:
    jobs = []
    for _ in range(scaled(50)):
        jobs.append(make(store, 3, then=THEN))
        settle(store, *map(done, claim_all(store)[:2]))
        say(store, "UPDATE fanin.part SET status = 'succeeded', result = '1', ready = false "
            "WHERE status = 'running' AND task = 't'")  # fmt: skip
    assert {"c1", "l2"} <= set(findings(store))
    with repairing(store, 2) as passes:
        until(lambda: all(job(store, job_id).ended for job_id in jobs), "all jobs ended")
    assert sum(one.ended for one in passes) == len(jobs)
    for job_id in jobs:
        assert ending(store, job_id) == ("completed", "all_ok")
        assert len(successors(store, job_id)) == 1
    assert findings(store) == {}


# F095


def test_F095_parts_of_which_every_signal_was_lost_are_found_by_polling(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell = app.store.bell
    monkeypatch.setattr(app.store, "bell", lambda queues: Deaf(bell(queues)))

    @app.task
    def echo(x: int) -> int:
        return x

    with working(app, concurrency=50):
        app.map(echo, range(5)).wait(90)


@pytest.mark.plants_corruption
def test_F095_parts_that_no_worker_can_find_are_found_after_a_repair(app: fanin.App) -> None:
    """5 of 50 parts were taken out of the index by which workers find them, and wait for what does not come."""

    @app.task
    def echo(x: int) -> int:
        return x

    found = app.map(echo, range(50))
    say(app.store, "UPDATE fanin.part SET ready = false, due_at = due_at + 1e9 WHERE idx < 5")
    with working(app, concurrency=8):
        until(lambda: found.progress().succeeded == 45, "45 parts ended")
        assert "i7" in findings(app.store)
        assert app.repair().parts == 5
        assert found.wait(90).status == "completed"


# F096


def test_F096_repairs_without_a_pause_beside_workers_find_nothing_and_change_nothing(app: fanin.App) -> None:
    """Jobs of every kind: retries, failures, growing, streams, nested, flows, cancels, pauses, redrives."""

    @app.task(attempts=3, backoff=0)
    def flaky(x: int) -> int:
        if fanin.current().attempt < 2 and x % 3 == 0:
            raise ValueError(x)
        return x

    @app.task(attempts=1)
    def odd(x: int) -> int:
        if x % 2:
            raise fanin.Permanent(x)
        return x

    @app.task
    def total(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task
    def tree(levels: int) -> object:
        return 1 if levels == 0 else fanin.current().fan_out(tree, [levels - 1] * 3, then=total)

    @app.task
    def grow(x: int) -> int:
        fanin.current().spawn([more for more in (2 * x, 2 * x + 1) if more < 64])
        return x

    @app.task
    def numbers(x: int) -> list[int]:
        return list(range(x))

    with repairing(app.store, 2) as passes, working(app, concurrency=16):
        for _ in range(scaled(2)):
            plain = app.map(flaky, range(300), then=total)
            some = app.map(odd, range(100), tolerate=60, then=total)
            bad = app.map(odd, range(50), fail_fast=True)
            stream = app.map(flaky, range(100), stream=True, then=total)
            nested = app.map(tree, [3, 2], then=total)
            grown = app.map(grow, [1], grows=100)
            flow = app.flow("sum")
            found = flow.step(numbers, 20)
            flow.step(total, after=flow.map(flaky, found))
            flowing = flow.start()
            dropped = app.map(flaky, range(200), delay="1h")
            assert dropped.cancel()
            halted = app.map(flaky, range(50))
            halted.pause()
            halted.resume()
            assert joined(plain) == sum(range(300))
            assert joined(some) == sum(range(0, 100, 2))
            assert bad.wait(90).status == "failed"
            bad.redrive(attempts=1)
            assert bad.wait(90).status == "failed"
            assert joined(stream) == sum(range(100))
            assert joined(nested) == 27 + 9
            assert sorted(grown.wait(90).results()) == list(range(1, 64))
            assert flowing.wait(90).result() == sum(range(20))
            assert halted.wait(90).status == "completed"
        until(lambda: len(passes) > 20, "more than 20 passes")
    assert sum(one.looked for one in passes) > 20
    assert [one.repairs for one in passes if one.repairs or one.repaired or one.damaged] == []
    assert [app.repair(str(job_id)) for (job_id,) in say(app.store, "SELECT id FROM fanin.job")].count(
        Repaired(looked=1)
    ) == len(say(app.store, "SELECT id FROM fanin.job"))
    assert say(app.store, "SELECT count(*) FROM fanin.repair") == [(0,)]
    assert findings(app.store) == {}


# F097


@pytest.mark.plants_corruption
@pytest.mark.parametrize("rows", [9, 11])
@pytest.mark.parametrize("ended", [True, False], ids=["all succeeded", "pending"])
def test_F097_planned_and_present_differ_and_nothing_completes(app: fanin.App, rows: int, ended: bool) -> None:
    store = app.store
    job_id = make(store, 10, then=THEN)
    if rows == 9:
        say(store, "DELETE FROM fanin.part WHERE idx = 9")
    else:
        columns = (
            "bucket, job_id, stripe, status, ready, queue, task, priority, turn, attempt, attempts_allowed, due_at"
        )
        say(store, f"INSERT INTO fanin.part ({columns}, payload, idx) SELECT {columns}, payload, 10 FROM fanin.part "
            "WHERE idx = 0")  # fmt: skip
    if ended:
        say(store, "UPDATE fanin.part SET status = 'succeeded', result = '1', ready = false")
    for number in range(5):
        found = app.repair()
        assert (found.repaired, found.ended, found.damaged) == (0, 0, 1)
        assert f"10 parts were planned, {rows} are there" in str(found.repairs[0])
        assert len(logged(store, job_id)) == 1, f"told again in pass {number}"
    assert claim_all(store) == [], "it needs attention: nobody goes on with it"
    assert (job(store, job_id).status, events(store, job_id), successors(store, job_id)) == ("running", [], [])
    timeline = app.job(job_id).explain().timeline
    assert [moment.what for moment in timeline if moment.what in ("damaged", "paused")] == ["paused", "damaged"]
    assert job_id in findings(store)["c2"]
    assert app.job(job_id).cancel()
    assert ending(store, job_id) == ("cancelled", "cancelled")


@pytest.mark.plants_corruption
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("UPDATE fanin.job_stripe SET created = created + 1, remaining = remaining + 1", "c1"),
        ("UPDATE fanin.job_stripe SET created = created - 1, remaining = remaining - 1", "c1"),
        ("UPDATE fanin.job SET planned_parts = planned_parts + 1, sealed_parts = sealed_parts + 1", "c2"),
        ("DELETE FROM fanin.part WHERE idx = 0", "c1"),
    ],
    ids=["counter too high", "counter too low", "planned one more", "one row less"],
)
def test_F093_F097_drift_is_reported_with_the_job(store: Store, wrong: str, found: str) -> None:
    job_id = make(store, 10, then=THEN)
    say(store, wrong)
    assert job_id in findings(store)[found]
