"""The process that submits, cancels and redrives; it is killed like the others, and goes on where its journal ends."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import msgspec

import fanin
from fanin.domain.errors import KeyConflict, NotAllowedNow, Refused, Unavailable
from fanin.flow import FlowRun
from fanin.job import Job
from fanin.testing.torture import plan, trips
from fanin.testing.torture.app import Tasks, open_app, open_points
from fanin.testing.torture.journal import Journal, Reader
from fanin.testing.torture.plan import Shape

AT_ONCE = 24
TICK_SECONDS = 0.05


class DriverSpec(msgspec.Struct, frozen=True):
    url: str
    folder: str
    name: str
    seed: int
    postgres: bool
    clock_file: str | None = None
    crash: str = ""
    jobs: int | None = None


def calm_file(folder: str) -> str:
    """When this file exists, nothing new is submitted, and what is under way is brought to its end."""
    return os.path.join(folder, "calm")


class _Active:
    """A submitted job that may still be cancelled or redriven, or a flow that was started."""

    def __init__(self, wanted: Shape, job: Job | None, flow: FlowRun | None = None) -> None:
        self.wanted = wanted
        self.job = job
        self.flow = flow
        self.cancelled = False
        self.redriven = 0


class Driver:
    def __init__(self, spec: DriverSpec) -> None:
        self._spec = spec
        self._journal = Journal(spec.folder, f"driver-{spec.name}")
        self._app: fanin.App
        self._tasks: Tasks
        points = open_points(spec.folder, spec.crash)
        self._app, self._tasks = open_app(
            spec.url, spec.folder, self._journal, f"driver-{spec.name}", spec.clock_file, points
        )
        self._active: dict[int, _Active] = {}
        self._next = 0

    def run(self) -> None:
        self._remember()
        while True:
            calm = os.path.exists(calm_file(self._spec.folder))
            try:
                self._round(calm)
            except Unavailable as problem:
                self._journal.write(e="unavailable", why=str(problem)[:200])
            if calm and not self._active:
                self._journal.write(e="finished")
                self._app.close()
                return
            time.sleep(TICK_SECONDS)

    def _round(self, calm: bool) -> None:
        more = self._spec.jobs is None or self._next < self._spec.jobs
        if not calm and more and len(self._active) < AT_ONCE:
            self._submit(self._next)
            self._next += 1
        for number, active in list(self._active.items()):
            if self._look(active):
                del self._active[number]
                self._journal.write(e="done", n=number)

    def _remember(self) -> None:
        """What earlier drivers of this run have begun is said again; the keys see to it that nothing is doubled."""
        begun: set[int] = set()
        done: set[int] = set()
        redriven: dict[int, int] = {}
        for line in Reader(self._spec.folder, "driver-").news():
            if line["e"] in ("submit", "trip"):
                begun.add(line["n"])
            elif line["e"] == "done":
                done.add(line["n"])
            elif line["e"] == "redrive":
                redriven[line["n"]] = redriven.get(line["n"], 0) + 1
        self._next = max(begun, default=-1) + 1
        for number in sorted(begun - done):
            while True:
                try:
                    self._submit(number)
                    break
                except Unavailable:
                    time.sleep(TICK_SECONDS)
            self._active[number].redriven = redriven.get(number, 0)

    def _submit(self, number: int) -> None:
        wanted = plan.shape(self._spec.seed, number, self._spec.postgres)
        if wanted.kind == "flow":
            self._start(wanted)
            return
        self._journal.write(e="submit", n=number, k=wanted.key, w=wanted.width)
        for _ in range(2 if wanted.again else 1):
            try:
                job = self._map(wanted)
            except KeyConflict as problem:
                self._journal.write(e="wrong", n=number, why=f"the same submit was refused: {problem}")
                return
            self._journal.write(e="submitted", n=number, j=job.id, w=wanted.width)
            self._active[number] = _Active(wanted, job)

    def _start(self, wanted: Shape) -> None:
        trip = trips.trip(self._spec.seed, wanted.number)
        self._journal.write(e="trip", n=trip.number, k=trip.key, doomed=trip.doomed, parts=trip.parts)
        for _ in range(2 if wanted.again else 1):
            try:
                flow = self._tasks.trips.start(self._spec.seed, trip)
            except KeyConflict as problem:
                self._journal.write(e="wrong", n=trip.number, why=f"the same flow was refused: {problem}")
                return
            self._journal.write(e="started", n=trip.number, f=flow.id)
            self._active[trip.number] = _Active(wanted, None, flow)

    def _map(self, wanted: Shape) -> Job:
        items = plan.items(self._spec.seed, wanted)
        then = self._tasks.join if wanted.then else None
        work = self._tasks.work_async if wanted.on_loop else self._tasks.work
        return self._app.map(work, items, key=wanted.key, then=then, **wanted.options)

    def _look(self, active: _Active) -> bool:
        """Do to a job what its shape says. True if that is over."""
        wanted, job = active.wanted, active.job
        if job is None:
            return active.flow is None or active.flow.row().ended
        progress = job.progress()
        if not progress.ended:
            if wanted.cancel_at is not None and not active.cancelled and progress.fraction >= wanted.cancel_at:
                active.cancelled = True
                self._journal.write(e="cancel", n=wanted.number, j=job.id, won=job.cancel("torture"))
            return False
        if wanted.cancel_late and not active.cancelled:
            active.cancelled = True
            self._journal.write(e="cancel", n=wanted.number, j=job.id, won=job.cancel("too late"))
        if active.redriven >= wanted.redrives or progress.failed + progress.abandoned + progress.remaining == 0:
            return True
        active.redriven += 1
        try:
            run = job.redrive(attempts=random.randrange(2, 12))
            self._journal.write(e="redrive", n=wanted.number, j=job.id, seen=progress.run, run=run)
        except NotAllowedNow as problem:
            self._journal.write(e="refused", n=wanted.number, j=job.id, why=str(problem)[:200])
        except Refused as problem:
            self._journal.write(e="wrong", n=wanted.number, why=f"redrive: {problem}"[:300])
            return True
        return False


def drive(spec: DriverSpec, ready: Callable[[], None]) -> None:
    """Submit until the calm, then bring everything to its end. ``ready`` is called when the work begins."""
    driver = Driver(spec)
    ready()
    driver.run()
