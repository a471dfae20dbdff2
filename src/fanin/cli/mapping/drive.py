"""From the plan to the exit code: find or create the job, work on it, show it, and finish what is left to finish."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

import fanin
from fanin.cli import exits
from fanin.cli.mapping.ending import Ending, complete_results
from fanin.cli.mapping.inputs import Item
from fanin.cli.mapping.landing import Landing
from fanin.cli.mapping.outputs import Scratch
from fanin.cli.mapping.plan import Plan, latest_key
from fanin.cli.mapping.process import Guardian
from fanin.cli.mapping.report import Reporter
from fanin.cli.mapping.runner import Runner
from fanin.cli.mapping.screen import Screen
from fanin.cli.tables import short
from fanin.domain import identity
from fanin.domain.errors import KeyConflict, Unavailable
from fanin.domain.model import JobRow, Progress, Report, Settled, Verdict
from fanin.protocol import read
from fanin.runtime.progress import Rate, line
from fanin.runtime.worker import Worker

LOST_WORKERS = 20
"""A part may lose its worker so often (kill -9, power) on top of the failures that --attempts allows its command."""
LOOK_SECONDS = 0.1
DRAIN_SECONDS = 7 * 86_400.0
STOP_SECONDS = 4.0


class Options(msgspec.Struct, frozen=True):
    """How to work on the job; none of these makes it another job."""

    jobs: int
    attempts: int
    timeout: float | None
    lease: float
    again: bool
    redrive: bool
    keep_order: bool
    results: str | None


class Drive:
    """One run of ``fanin map``."""

    def __init__(self, app: fanin.App, plan: Plan, options: Options, screen: Screen) -> None:
        self.app = app
        self.plan = plan
        self.options = options
        self.screen = screen
        base = plan.base_key()
        self.key = latest_key(base, lambda key: self._row(key) is not None, self._ended, options.again)
        self.job_id = identity.keyed_job_id(self.key)
        self.scratch = Scratch(plan.outdir, self.job_id)
        self.reporter = Reporter(plan, self.scratch, screen, options.results)
        self.guardian = Guardian()
        self.runner = Runner(plan, self.scratch, self.guardian, options.attempts, options.timeout, self._run_now)
        self.landing = Landing(app.store, self.job_id, self.scratch, self.reporter, self.runner, options.keep_order)
        self._register()
        self._news = threading.Event()
        self._interrupts = 0
        self._started = time.monotonic()
        self._worker: Worker | None = None
        self._problem: BaseException | None = None

    def run(self) -> int:
        """Everything. Returns the exit code."""
        try:
            job = self._find_or_create()
            if self.options.redrive:
                self._redrive(job)
            self.landing.tidy()
            if not self._over(job, job.progress()):
                self._work(job)
            return self._finish(job)
        finally:
            self.guardian.close()
            self.screen.close()

    # The job.

    def _register(self) -> None:
        queue = f"map-{self.job_id}"
        allowance = self.options.attempts + LOST_WORKERS
        lease = self.options.lease
        self.part = self.app.task(name="fanin.map", queue=queue, attempts=allowance, lease=lease)(self.runner.run_part)
        self.then = self.app.task(name="fanin.map.then", queue=queue, attempts=1 + LOST_WORKERS, lease=lease)(
            self.runner.run_then
        )

    def _find_or_create(self) -> fanin.Job:
        row = self._row(self.key)
        if row is None:
            with contextlib.suppress(KeyConflict):  # another terminal was first, with other --attempts
                self.app.map(
                    self.part, (Item.of(item) for item in self.plan.items), key=self.key,
                    then=self.then if self.plan.then else None, tolerate=self.plan.tolerate,
                    fail_fast=True if self.plan.fail_fast else None, give_up_after=self.plan.give_up_after,
                    meta=self.plan.meta(),
                )  # fmt: skip
            row = self._row(self.key)
        assert row is not None
        self._check_same(row)
        return fanin.Job(self.app, row.id)

    def _check_same(self, row: JobRow) -> None:
        meta = msgspec.json.decode(row.meta) if row.meta else {}
        if meta.get("fingerprint") != self.plan.fingerprint():
            raise KeyConflict(
                f"the key {self.key!r} stands for another command or other inputs ({meta.get('command')!r}, "
                f"{row.planned_parts} parts): choose another --key, or give the same command line to go on with it"
            )

    def _redrive(self, job: fanin.Job) -> None:
        """The failed parts again; or, if the parts are well, the --then command."""
        progress = job.progress()
        if not progress.ended:
            self.screen.note("the job has not ended; --redrive is for failed parts of an ended one, going on")
            return
        then = job.successor if self.plan.then and progress.status == "completed" else None
        if progress.failed + progress.abandoned > 0:
            run = job.redrive()
            self.screen.note(
                f"run {run}: trying {progress.failed + progress.abandoned} parts again (job {short(job.id)})"
            )
        elif then is not None and then.progress().status == "failed":
            then.redrive()
            self.screen.note("starting the --then command again")
        else:
            self.screen.note("nothing to redrive: no part has failed")

    # The work.

    def _work(self, job: fanin.Job) -> None:
        self._worker = worker = Worker(
            self.app, queues=[f"map-{self.job_id}"], concurrency=self.options.jobs, grace=DRAIN_SECONDS,
            on_part=self._on_part,
        )  # fmt: skip
        thread = threading.Thread(target=self._run_worker, args=(worker,), name="fanin-map-worker", daemon=True)
        with self._signals():
            thread.start()
            try:
                self._follow(job, thread)
            finally:
                if self._interrupts == 0:
                    worker.stop(now=True)
                while thread.is_alive():  # a join without a limit would not let signals in
                    thread.join(0.2)
                self.runner.wait_idle(STOP_SECONDS)
        if self._problem is not None:
            raise self._problem

    def _run_worker(self, worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as problem:
            self._problem = problem
        finally:
            self._news.set()

    def _follow(self, job: fanin.Job, thread: threading.Thread) -> None:
        rate = Rate()
        while thread.is_alive():
            self._news.wait(LOOK_SECONDS)
            self._news.clear()
            if self.screen.broken.is_set() and not self._interrupts:
                self._interrupts = 1  # nobody reads what the commands print: stop at once
                self._interrupt()
            try:
                progress = job.progress()
                self._show(progress, rate.add(progress.total - progress.remaining))
                if self.options.keep_order:
                    self.landing.tell_in_order()
                if self._over(job, progress):
                    if progress.status != "completed":
                        self.runner.stopping.set()
                    return
            except Unavailable as problem:
                self.screen.note(f"{problem}; trying again")
                time.sleep(1.0)

    def _over(self, job: fanin.Job, progress: Progress) -> bool:
        """Whether the job has ended, and its --then command, if there is one to come."""
        if not progress.ended:
            return False
        if progress.status != "completed" or self.plan.then is None:
            return True
        then = job.successor  # created by the very transaction that completed this run
        return then is not None and then.progress().ended

    def _on_part(self, report: Report, settled: Settled) -> None:
        """In the worker's thread. The follower need not wait for its next look when the run has ended."""
        self.landing.settled(report, settled)
        if settled.verdict is Verdict.LAST:
            self._news.set()

    # Signals.

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        # What our parent has set to be ignored stays so: nohup, and background jobs of a script.
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        numbers = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                # One more Ctrl-C, while we say how to go on, must not end in a traceback.
                signal.signal(number, signal.SIG_IGN if self._interrupts else handler)

    def _on_signal(self, number: int, frame: Any) -> None:
        if number == signal.SIGHUP and self._interrupts == 0:
            self._interrupts = 1
        self._interrupt()

    def _interrupt(self) -> None:
        """First: no new parts. Second: end the commands. Third: leave; the guardian ends what is left."""
        self._interrupts += 1
        assert self._worker is not None
        if self._interrupts == 1:
            self._worker.stop()
            threading.Thread(
                target=self.screen.note, args=("finishing the running commands; Ctrl-C again stops them",), daemon=True
            ).start()  # a handler must not wait for the lock that the interrupted code holds
        elif self._interrupts == 2:
            self.runner.stopping.set()
            self._worker.stop(now=True)
        else:
            os._exit(exits.INTERRUPTED)

    def _finish(self, job: fanin.Job) -> int:
        progress = job.progress()
        if self.options.keep_order and progress.ended:
            self.landing.tell_in_order()
        if self.options.results is not None:
            complete_results(self.app, job, self.reporter)
        over = self._over(job, progress)
        seconds = max(time.monotonic() - self._started, 1e-9)
        ending = Ending(
            job=job, key=self.key, progress=progress, over=over,
            then=job.successor if over and progress.status == "completed" and self.plan.then else None,
            then_is_ours=self.runner.ran_then or self.options.keep_order,
            worked=self._worker is not None or self.options.redrive,
            rate=(self._worker.settled if self._worker else 0) / seconds,
        )  # fmt: skip
        code = ending.tell(self.screen, self.reporter, self.scratch)
        self.landing.tidy()
        return exits.FAILED if self.landing.unplaced and code == exits.OK else code

    def _show(self, progress: Progress, rate: float) -> None:
        tail = f"    (job {short(self.job_id)})"
        if progress.ended and self.plan.then is not None and progress.status == "completed":
            tail = "    running --then" + tail
        self.screen.progress(line(progress, rate) + tail, progress.failed)

    def _row(self, key: str) -> JobRow | None:
        job_id = identity.keyed_job_id(key)
        bucket = self.app.store.bucket(job_id)
        return self.app.store.read(lambda: read.job(bucket, job_id))

    def _ended(self, key: str) -> bool:
        row = self._row(key)
        return row is not None and row.ended

    def _run_now(self) -> int:
        return fanin.Job(self.app, self.job_id).row().run
