"""Fifty jobs at a time, while the workers are killed and paused at random moments.

``FANIN_LONG=1`` kills 500 times; ``FANIN_STORM_SEED`` draws other moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

import pytest

import fanin
from tests.faults import tasks
from tests.runtime.rows import execute
from tests.support import invariants
from tests.support.figures import record

JOBS = 50
WORKERS = 4
KILLS, PAUSES = (500, 100) if os.environ.get("FANIN_LONG") == "1" else (8, 8)
"""At least so many."""
CALM_SECONDS = 240.0
"""A hang guard, like the time-out of the test: the storm is over when a zombie was refused after enough harm."""


@dataclass
class Fleet:
    """Worker processes: whoever is killed is replaced, whoever is paused goes on later as a zombie."""

    url: str
    dice: random.Random
    said: IO[bytes]
    alive: list[subprocess.Popen[bytes]] = field(default_factory=list)
    paused: list[tuple[float, subprocess.Popen[bytes]]] = field(default_factory=list)
    leaving: list[subprocess.Popen[bytes]] = field(default_factory=list)
    kills: int = 0
    pauses: int = 0

    @property
    def did_enough(self) -> bool:
        return self.kills >= KILLS and self.pauses >= PAUSES

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.faults.tasks", self.url]
        self.alive.append(subprocess.Popen(command, stderr=self.said))

    def kill(self) -> None:
        victim = self.alive.pop(self.dice.randrange(len(self.alive)))
        victim.kill()
        victim.wait(90)
        self.kills += 1
        self.start()

    def pause(self, holders: set[int]) -> None:
        """One that holds parts, if there is one: it comes back as their zombie."""
        victim = self.dice.choice([worker for worker in self.alive if worker.pid in holders] or self.alive)
        self.alive.remove(victim)
        victim.send_signal(signal.SIGSTOP)
        self.paused.append((time.monotonic() + tasks.LEASE_SECONDS * self.dice.uniform(2.0, 4.0), victim))
        self.pauses += 1
        self.start()

    def resume(self, *, all_of_them: bool = False) -> None:
        for entry in list(self.paused):
            until, process = entry
            if all_of_them or time.monotonic() >= until:
                self.paused.remove(entry)
                process.send_signal(signal.SIGCONT)
                self.alive.append(process)

    def shrink(self) -> None:
        """Zombies come back beside their replacements; the surplus is asked to leave."""
        while len(self.alive) > WORKERS + 1:
            leaving = self.alive.pop(0)
            leaving.terminate()
            self.leaving.append(leaving)

    def all_have_left(self) -> None:
        for process in self.leaving:
            assert process.wait(CALM_SECONDS) in (0, -signal.SIGTERM)  # the latter before it had begun to listen

    def stop(self) -> None:
        for _, process in self.paused:
            process.send_signal(signal.SIGCONT)
        for process in [*self.alive, *self.leaving, *(process for _, process in self.paused)]:
            process.kill()
            process.wait(90)


@contextmanager
def fleet(url: str, seed: int) -> Iterator[Fleet]:
    with tempfile.TemporaryFile() as said:
        made = Fleet(url, random.Random(seed), said)
        try:
            for _ in range(WORKERS):
                made.start()
            yield made
        finally:
            made.stop()


def holders(app: fanin.App) -> set[int]:
    """The processes that hold parts; a worker's name is host-pid-random."""
    rows = execute(app.store, "SELECT DISTINCT worker FROM {part} WHERE status = 'running'")
    return {int(name.split("-")[-2]) for (name,) in rows}


def counted(app: fanin.App) -> dict[str, int]:
    return dict(execute(app.store, "SELECT what, count(*) FROM {attempt_log} GROUP BY what"))


def parts_of(n: int) -> int:
    return 14 + n % 13


def submit(app: fanin.App, first: int) -> list[fanin.Job]:
    jobs = []
    for n in range(first, first + JOBS):
        if n % 10 == 9:
            jobs.append(app.map(tasks.split, [3, 4], then=tasks.gather_ids, key=f"job {n}"))
        else:
            task = tasks.part_async if n % 3 == 0 else tasks.part
            jobs.append(app.map(task, range(parts_of(n)), then=tasks.gather, key=f"job {n}", stripes=1 + n % 3))
    return jobs


@pytest.mark.slow
@pytest.mark.timeout(600 if KILLS < 100 else 7200)
def test_every_job_ends_once_while_workers_are_killed_and_paused(migrated_url: str) -> None:
    """F005, F023, F024, F027, F042, F048: SIGKILL and SIGSTOP past the lease, seeded"""
    seed = int(os.environ.get("FANIN_STORM_SEED", "20240229"))
    app = tasks.use(migrated_url)
    with app, fleet(migrated_url, seed) as workers:
        jobs = submit(app, 0)
        while not workers.did_enough or not {"refused", "lease_lost"} <= counted(app).keys():
            if all(row.ended for row in app.jobs(limit=500)):
                jobs += submit(app, len(jobs))
            time.sleep(workers.dice.uniform(0.1, 0.4))
            workers.resume()
            if not holders(app) & {worker.pid for worker in workers.alive}:
                continue  # nobody has come so far that there was anything to lose
            if workers.dice.random() < 0.4:
                workers.kill()
            else:
                workers.pause(holders(app))
            workers.shrink()
        workers.resume(all_of_them=True)

        deadline = time.monotonic() + CALM_SECONDS
        while left := [row for row in app.jobs(limit=500) if not row.ended]:
            assert time.monotonic() < deadline, f"seed {seed}: these jobs have not ended: {left}"
            time.sleep(0.05)
        workers.all_have_left()
        workers.said.seek(0)
        assert workers.said.read().decode() == "", "what the workers logged as an error"
        check_ends(app, jobs)
        said = counted(app)
        assert "failed" not in said, f"no part had to fail for good: {said}"
        ((parts,),) = execute(app.store, "SELECT count(*) FROM {part}")
        database = app.store.dialect
    assert invariants.violations(migrated_url) == []
    record(
        "kills", kills={database: workers.kills}, zombies={database: workers.pauses}, jobs={database: len(jobs)},
        stale_reports_refused={database: said["refused"]}, leases_lost={database: said["lease_lost"]},
        parts={database: parts}, lost=0, counted_twice=0, seed=str(seed),
    )  # fmt: skip


def check_ends(app: fanin.App, jobs: list[fanin.Job]) -> None:
    """Each job of each level: completed, one event, one successor where one is due, and the right results."""
    for n, job in enumerate(jobs):
        follower = check_one(app, job)
        if n % 10 == 9:
            assert follower == 2
            children = job.children()
            assert [child.id for child in children] == sorted(
                {str(r) for r in job.results()}, key=[c.id for c in children].index
            )
            for child in children:
                parts = child.progress().total
                check_results(app, child, parts)
                assert check_one(app, child) == {"sum": sum(x * x for x in range(parts)), "count": parts, "failed": 0}
        else:
            parts = parts_of(n)
            check_results(app, job, parts)
            assert follower == {"sum": sum(x * x for x in range(parts)), "count": parts, "failed": 0}


def check_results(app: fanin.App, job: fanin.Job, parts: int) -> None:
    """The squares, each found by the attempt that holds the part to this day: no zombie was heard."""
    holders = execute(app.store, f"SELECT attempt FROM {{part}} WHERE job_id = '{job.id}' ORDER BY idx")
    assert list(job.results()) == [(x * x, holder) for x, (holder,) in zip(range(parts), holders, strict=True)]


def check_one(app: fanin.App, job: fanin.Job) -> object:
    """One end, one event, one successor; the successor's result."""
    row = job.row()
    assert (row.status, row.outcome, row.run) == ("completed", "all_ok", 1), (row.reason, job.failures())
    account = job.account()
    assert (account["events"], account["successors"]) == (1, 1)
    follower = job.successor
    assert follower is not None
    assert follower.account()["events"] == 1
    return follower.result(1)
