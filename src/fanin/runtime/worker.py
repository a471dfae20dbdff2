"""The worker: claim, run, commit, in batches; one transaction settles what is done and claims what comes next.

Threads, each with one thing to wait for: this loop (the database), the handlers' executors, the heart, the upkeep and
the bell. The loop waits when there is nothing to settle and nothing to claim.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption, Unavailable, shown
from fanin.domain.model import Claim, Report, Settled
from fanin.protocol import lease, read
from fanin.protocol.steps import Txn
from fanin.runtime import purge, sweeper
from fanin.runtime.children import refuse_while_starting
from fanin.runtime.executors import KINDS, Loop, Processes, Running, Threads, require_pebble, timed_out
from fanin.runtime.expand import tasks_of
from fanin.runtime.heart import Heart
from fanin.runtime.outcome import Outcome
from fanin.runtime.pace import HOARD_SECONDS, LINGER_SECONDS, Pace
from fanin.runtime.performer import Performer
from fanin.runtime.schedule import schedulers
from fanin.runtime.settling import Settling, tell
from fanin.runtime.task import Application, check_name
from fanin.runtime.upkeep import Upkeep
from fanin.stores.base import Bell

log = logging.getLogger("fanin")

POLL_SECONDS = 2.0
GRACE_SECONDS = 10.0
ALONE_SECONDS = 10.0
"""A part that is to be run alone waits so long for the others to end, then it is given back."""

OnPart = Callable[[Report, Settled], None]


def _queues(app: Application) -> list[str]:
    return sorted({"default", *(task.queue for task in app.tasks.values())})


def _named(queues: Any) -> list[str]:
    """The queues that a worker was given. Raises `BadOption`."""
    if isinstance(queues, str) or not isinstance(queues, Sequence) or not queues:
        like = [queues] if isinstance(queues, str) and queues else ["default"]
        raise BadOption(f"queues={shown(queues)}: give a list of names, as in queues={shown(like)}, or None for all")
    return [check_name(queue, "queue of queues=") for queue in queues]


def _own_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{random.randrange(16**4):04x}"


class Worker:
    """Runs the parts of an application's tasks.

    queues: names, served in turn; default all queues of the tasks and ``default``. concurrency: handlers at once.
    batch: most parts in one transaction. on_part: called after each commit, in the worker's loop, for every report.
    retain: seconds after which ended jobs are purged; None: never.
    """

    def __init__(
        self,
        app: Application,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 4,
        name: str | None = None,
        batch: int = limits.CLAIM_PARTS,
        grace: Duration = GRACE_SECONDS,
        on_part: OnPart | None = None,
        retain: Duration | None = None,
    ) -> None:
        refuse_while_starting("no worker was started")
        if type(concurrency) is not int or concurrency < 1:
            raise BadOption(f"concurrency={shown(concurrency)}: at least 1 handler must be able to run, give a number")
        if type(batch) is not int or not 1 <= batch <= limits.CLAIM_PARTS:
            raise BadOption(f"batch={shown(batch)}: give 1 to {limits.CLAIM_PARTS}")
        if not app.tasks and not app.effects:
            raise BadOption("the application has no tasks: decorate a function with @app.task before starting a worker")
        if any(task.mode == "process" for task in app.tasks.values()):
            require_pebble()
        self.store = app.store
        self._schedules = app.schedules
        self.tasks = tasks_of(app)
        self.queues = _queues(app) if queues is None else _named(queues)
        self.concurrency = concurrency
        self.name = _own_name() if name is None else check_name(name, "worker name")
        self.batch = batch
        self.grace = seconds(grace, "grace")
        self.on_part = on_part
        self.retain = None if retain is None else seconds(retain, "retain")
        leases = {task.name: task.lease for task in self.tasks.values()}
        self._performer = Performer(self.store, app.effects, self.name) if app.effects else None
        self._settling = Settling(self.store, self.queues, leases, self.name)
        self._held: dict[tuple[str, int, int], Running] = {}
        self._done: deque[tuple[Running, Outcome]] = deque()
        self._alone: deque[Running] = deque()
        self._suspects = 0
        self._gave_back: set[tuple[str, int]] = set()
        """Parts that waited here in vain to be alone. One that comes back is run with company: nobody else took it."""
        self._saying = threading.Lock()
        self._news = threading.Event()
        self._draining = threading.Event()
        self._at_once = threading.Event()
        self._bell: Bell | None = None
        self._executors: dict[str, Threads | Loop | Processes] = {}
        self._broken: BaseException | None = None
        self._pace = Pace(concurrency, batch, ahead=not any(task.mode == "process" for task in app.tasks.values()))
        self._resting = False
        self._looked = 0.0
        self._bucket = 0
        self.settled = 0
        self.lost = 0

    # What others call, from any thread.

    def stop(self, *, now: bool = False) -> None:
        """Drain: claim nothing more, give running handlers the grace time, give back the rest without costing an
        attempt. ``now``: give everything back at once."""
        if now:
            self._at_once.set()
        self._draining.set()
        self._wake()

    def run(self, *, until_idle: bool = False, until: Callable[[], bool] | None = None) -> None:
        """Work until `stop`, or until nothing is left in the queues, or until ``until()`` is true (asked when there is
        a pause). A database that is away is waited for. Interrupted by Ctrl-C in this thread, it gives back what it
        holds before the exception goes on."""
        if not self._open():
            return
        try:
            failures = 0
            while not self._draining.is_set():
                try:
                    if self._round(until_idle, until):
                        break
                    failures = 0
                except Unavailable as problem:
                    failures += 1
                    pause = min(0.1 * 2**failures, 5.0) * random.uniform(0.5, 1.0)
                    log.warning("worker %s: %s; trying again in %.1f s", self.name, problem, pause)
                    self._draining.wait(pause)
            self._drain()
        except KeyboardInterrupt:
            self.stop(now=True)
            self._drain()
            raise
        finally:
            self._close()

    # The loop.

    def _open(self) -> bool:
        """False if it was stopped before the database came."""
        if not self._patiently():
            return False
        self._heart = Heart(self.store, lambda: list(self._held.values()), self._stop_work, self._overdue, self.name)
        self._upkeep = Upkeep(self.store, self._wake)
        self._tending = [
            self._upkeep.background,
            sweeper.background(self.store),
            *schedulers(self.store, self._schedules, self._wake),
        ]
        if self.retain is not None:
            self._tending.append(purge.background(self.store, self.retain))
        self._heart.start()
        for thread in self._tending:
            thread.start()
        if self._performer is not None:
            self._performer.start()
        log.info("worker %s serves %s, %d at once", self.name, ", ".join(self.queues), self.concurrency)
        return True

    def _patiently(self) -> bool:
        """A worker may start before its database does."""
        pause = 0.2
        while not self._draining.is_set():
            try:
                self._bell = self.store.bell(self.queues)
                return True
            except Unavailable as problem:
                log.warning("worker %s: %s; trying again in %.1f s", self.name, problem, pause)
                self._draining.wait(pause)
                pause = min(pause * 2, 5.0)
        return False

    def _close(self) -> None:
        if self._performer is not None:
            self._performer.close(0.0 if self._at_once.is_set() else self.grace)
        self._heart.close()
        for thread in self._tending:
            thread.close()
        if self._bell is not None:
            self._bell.close()
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()

    def _round(self, until_idle: bool, until: Callable[[], bool] | None) -> bool:
        """Settle, claim, or wait. True when the work is over."""
        if self._broken is not None:
            raise RuntimeError(f"worker {self.name}: a handler's thread has ended") from self._broken
        self._give_back()
        self._begin_alone()
        if self._done:
            if self._ripe():
                self._exchange(self._room())
            else:
                self._news.wait(LINGER_SECONDS)
                self._news.clear()
            return False
        room = self._room()
        if room > 0 and self._peek() and self._exchange(room):
            return False
        if until is not None and until():
            return True
        if until_idle and not self._held and not self.store.read(self._backlog) and self._performed():
            return True
        self._rest(busy=bool(self._held), poll=0.2 if until_idle or until else POLL_SECONDS)
        return False

    def _rest(self, busy: bool, poll: float) -> None:
        """Nothing to do: until a handler is done, or the bell rings. Both call `_wake`, which rings our bell."""
        self._resting = True
        try:
            if self._done:
                return  # said after we had looked, by somebody who could not know that we rest
            if busy and self._room() <= 0:
                self._news.wait(min(poll, HOARD_SECONDS / 4))
            elif self._bell is not None and not self._news.is_set() and self._bell.wait(poll):
                self._upkeep.working()  # what has come may wait for a moment, which is nothing to claim
        finally:
            self._resting = False
            self._news.clear()

    def _performed(self) -> bool:
        return self._performer is None or self._performer.idle()

    def _backlog(self) -> Txn[bool]:
        return read.backlog(range(self.store.buckets), self.queues, list(self.tasks))

    def _peek(self) -> bool:
        def anything() -> Txn[bool]:
            many = self.store.buckets
            # Not always from the first: it may hold nothing but tasks that are unknown here.
            for bucket in (n % many for n in range(self._bucket, self._bucket + many)):
                for queue in self.queues:
                    if (yield from lease.any_ready(bucket, queue)):
                        self._bucket = bucket
                        return True
            return False

        return self.store.read(anything)

    def _room(self) -> int:
        """How many parts to claim: what the free handlers can start, and a little ahead of them."""
        if not self._heart.well:
            return 0  # what cannot be renewed would only be started to be stopped
        if self._suspects:
            return 0  # it is to have no company
        return self._pace.room(self._waiting())

    def _waiting(self) -> int:
        """Parts in hand whose handlers have not returned."""
        return len(self._held) - len(self._done)

    def _ripe(self) -> bool:
        return self._pace.ripe(self._waiting(), len(self._done))

    def _give_back(self) -> None:
        """Parts that wait behind slow handlers are for other workers. Costs no attempt."""
        now = time.monotonic()
        if now < self._looked + HOARD_SECONDS / 4:
            return
        self._looked = now
        for running in list(self._held.values()):
            patience = ALONE_SECONDS if running.claim.alone else HOARD_SECONDS
            if running.started is None and not running.said and now - running.claimed >= patience:
                self._pace.slow()
                if running.claim.alone:
                    self._gave_back.add(running.claim.key)
                if self._say(running, Outcome("release")):  # before anybody can say that it was stopped
                    self._executors[running.task.mode].stop_work(running, replace=False)

    def _exchange(self, room: int) -> int:
        """One transaction: settle what is done, claim up to ``room``. Returns the number of parts claimed."""
        taken = self._take_done()
        buckets: dict[int, list[tuple[Running, Report]]] = {}
        for running, found in taken:
            if found.verb not in ("lost", "waits"):
                buckets.setdefault(running.claim.bucket, []).append((running, running.report(found)))
        target = self._bucket
        self._bucket = (self._bucket + 1) % self.store.buckets
        claimed: list[Claim] = []
        try:
            for bucket in sorted({*buckets, *([target] if room > 0 else [])}):
                want = room if bucket == target else 0
                sent = time.monotonic()
                answers, claims = self._settling.transact(bucket, buckets.pop(bucket, []), want)
                self._let_go(running for running, _ in taken if running.claim.bucket == bucket)
                claimed += claims
                for claim in claims:
                    self._begin(claim, sent)
                if claims:
                    self._upkeep.working()
                for report, answer in answers:
                    self._settle(report, answer)
        except Unavailable:
            for running, found in reversed(taken):
                if self._key(running.claim) in self._held:
                    running.sent = False  # a COMMIT that was cut leaves it
                    self._done.appendleft((running, found))
            raise
        self._let_go(running for running, _ in taken)
        self.lost += sum(found.verb == "lost" for _, found in taken)
        self._pace.dry = len(claimed) < room
        return len(claimed)

    def _take_done(self) -> list[tuple[Running, Outcome]]:
        """A batch: so many outcomes that one transaction can write them, and the parts that they spawn."""
        taken: list[tuple[Running, Outcome]] = []
        spawned = 0
        while self._done and len(taken) < self.batch and spawned < limits.SPAWN_PARTS:
            taken.append(self._done.popleft())
            spawned += len(taken[-1][1].spawns)
        return taken

    def _let_go(self, settled: Iterable[Running]) -> None:
        for running in settled:
            if self._held.pop(self._key(running.claim), None) is not None:
                self._suspects -= running.claim.alone

    @staticmethod
    def _key(claim: Claim) -> tuple[str, int, int]:
        return claim.job_id, claim.idx, claim.attempt

    def _begin(self, claim: Claim, sent: float) -> None:
        task = self.tasks[claim.task]
        running = Running(claim, task, self.store, sent)
        executor = self._executors.get(task.mode)
        if executor is None:
            executor = self._executors[task.mode] = KINDS[task.mode](self.concurrency, self._finished, self.store)
        self._held[self._key(claim)] = running  # from here on the heart may stop it
        self._suspects += claim.alone
        if claim.alone and claim.key not in self._gave_back:
            self._alone.append(running)
        else:
            self._gave_back.discard(claim.key)
            executor.submit(running)

    def _begin_alone(self) -> None:
        """A part that may kill its worker has its last attempt when nothing else is held here, which would be lost too.

        Others of its kind are given back first, to come one by one.
        """
        while self._alone and self._alone[0].said:  # given back meanwhile
            self._alone.popleft()
        while len(self._alone) > 1:
            self._say(self._alone.pop(), Outcome("release"))
        if self._alone and len(self._held) == 1:
            running = self._alone.popleft()
            self._executors[running.task.mode].submit(running)

    def _finished(self, running: Running, found: Outcome) -> None:
        """Called by an executor's thread. A fault here ends the worker: the thread would be missing for ever."""
        try:
            self._note(running, found)
        except BaseException as problem:
            self._broken = problem
            self._wake()
            raise

    def _note(self, running: Running, found: Outcome) -> None:
        if not self._say(running, found):
            return
        if running.started is not None:
            self._pace.took(time.monotonic() - running.started)
        if not self._news.is_set() and (self._resting or self._ripe()):
            self._wake()

    def _say(self, running: Running, found: Outcome) -> bool:
        """The first outcome of a part counts: its handler's, its time-out or its release. Whether this was it."""
        with self._saying:
            if running.said:
                return False
            running.said = True
            if not self._done:
                self._pace.oldest = time.monotonic()
            self._done.append((running, found))
            return True

    def _wake(self) -> None:
        self._news.set()
        if self._bell is not None:
            self._bell.ring()

    def _settle(self, report: Report, answer: Settled) -> None:
        self.settled += 1
        self.lost += tell(report, answer)
        if report.effects and self._performer is not None:
            self._performer.wake()
        if self.on_part is not None:
            try:
                self.on_part(report, answer)
            except Exception:  # the part is settled, and the others of its batch must be told too
                log.exception("worker %s: on_part failed", self.name)

    # Called by the heart.

    def _stop_work(self, running: Running, reason: str) -> None:
        claim = running.claim
        log.info("job %s part %d attempt %d: stopping: %s", claim.job_id, claim.idx, claim.attempt, reason)
        self._executors[running.task.mode].stop_work(running, replace=False)

    def _overdue(self, running: Running) -> None:
        """Only threads have their time kept here; the loop and the processes keep their own."""
        if self._say(running, timed_out(running)):
            self._executors["thread"].stop_work(running, replace=True)
            self._wake()

    # The end.

    def _drain(self) -> None:
        """Settle what is done, wait out the grace, give back the rest. Costs no attempt."""
        for executor in self._executors.values():
            for running in executor.take_back():
                self._say(running, Outcome("release"))
        for running in self._alone:
            self._say(running, Outcome("release"))
        deadline = time.monotonic() + self.grace
        while self._held:
            rest = [running for running in self._held.values() if not running.said]
            if rest and (self._at_once.is_set() or time.monotonic() >= deadline):
                for running in rest:
                    if self._say(running, Outcome("release")):  # before its handler can say that it was stopped
                        self._executors[running.task.mode].stop_work(running, replace=False)
            try:
                if self._done:
                    self._exchange(0)
                    continue
            except Unavailable as problem:
                log.warning("worker %s: cannot settle its last parts: %s", self.name, problem)
                if self._at_once.is_set() or time.monotonic() >= deadline + self.grace:
                    return  # their leases will end
            self._news.wait(0.05)
            self._news.clear()
