"""What any worker does for all jobs it does for each, whatever another one's rows look like."""

from __future__ import annotations

import pytest

import fanin
from fanin.domain import identity, limits
from fanin.protocol import deeds, lease, pause
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.stores.base import Bell
from fanin.testing.state import execute, select


@pytest.mark.plants_corruption
def test_a_damaged_job_does_not_hold_up_the_others(app: fanin.App) -> None:
    """A job whose open counters are wrong can be ended by nobody; the lost part of another one fails all the same."""

    @app.task(attempts=1)
    def work(number: int) -> int:
        return number

    damaged, sound = app.map(work, [1]), app.map(work, [1])
    overdue = app.map(work, [1], give_up_after=0.001, delay=60)
    assert (
        len(app.store.run(lambda: lease.claim(0, "default", {work.name: -1.0}, 2, identity.new_claim_id(), "w"))) == 2
    )
    execute(app.store, f"UPDATE fanin.job SET open_stripes = 0 WHERE id = '{damaged.id}'")
    while overdue.status == "running":
        upkeep.once(app.store, 0)
    assert (damaged.status, sound.status, overdue.status) == ("running", "failed", "failed")
    assert overdue.progress().abandoned == 1


def test_workers_go_on_with_a_pause_whose_operator_died(app: fanin.App) -> None:
    """Only the job row was written then. A round does one portion of each job, so that it never takes long."""

    @app.task
    def work(number: int) -> int:
        return number

    job = app.map(work, range(limits.CHUNK_PARTS + 1))
    bucket, store = app.store.bucket(job.id), app.store
    for verb, ready in ((pause.pause, 0), (pause.resume, limits.CHUNK_PARTS + 1)):
        store.run(lambda verb=verb: verb(bucket, job.id, deeds.deed()))  # type: ignore[misc]
        rounds = 0
        while upkeep.once(store, bucket):
            rounds += 1
        found = select(store, f"SELECT count(*) AS n FROM fanin.part WHERE job_id = '{job.id}' AND ready")
        assert found[0]["n"] == ready
        assert rounds <= 2
    assert job.cancel()


class Telling(Bell):
    """A bell that says the next of these."""

    def __init__(self, *said: bool) -> None:
        self.said = list(said)

    def wait(self, seconds: float) -> bool:
        return self.said.pop(0)

    def ring(self) -> None: ...

    def close(self) -> None: ...


def test_it_looks_soon_when_a_worker_hears_its_bell(app: fanin.App) -> None:
    """What has come may be a delayed part, or a deadline: there is nothing to claim, and a moment to be kept."""

    @app.task
    def work(number: int) -> int:
        return number

    worker = Worker(app)
    worker._upkeep = upkeep.Upkeep(app.store, lambda: None)
    worker._bell = Telling(False, True)
    assert worker._upkeep.step() > upkeep.PERIOD_SECONDS
    worker._rest(busy=False, poll=2.0)
    silent = worker._upkeep.background.stirred
    app.map(work, [1], delay=60, give_up_after=0.001)
    worker._rest(busy=False, poll=2.0)
    assert (silent, worker._upkeep.background.stirred) == (False, True)


def test_it_looks_less_often_where_nothing_waits_until_a_worker_claims(app: fanin.App) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    tending = upkeep.Upkeep(app.store, lambda: None)
    tending.working()
    early = tending.background.stirred
    assert not early, "it has not looked yet: it will"
    assert tending.step() > upkeep.PERIOD_SECONDS
    tending.working()
    assert tending.background.stirred
    app.map(work, [1], delay=60)
    assert tending.step() <= upkeep.PERIOD_SECONDS
