"""Run the parts of an application in the test's own thread: no worker, no sleep, time skipped.

    inline = Inline(app)
    job = app.map(charge, orders, then=receipt)
    inline.run_until_idle()                       # or attempt by attempt: inline.claim(), .run(), .commit()

Everything goes through the same transactions as in a worker; only threads, heartbeats and waiting are missing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import fanin
from fanin.domain import identity, limits
from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Claim, Report, Settled, Verdict
from fanin.protocol import effect, finish, lease
from fanin.runtime import outcome, part, upkeep
from fanin.runtime.effects import MARGIN_SECONDS, perform
from fanin.runtime.executors import run_handler
from fanin.runtime.expand import tasks_of
from fanin.runtime.joined import join
from fanin.runtime.outcome import Outcome
from fanin.runtime.part import Part
from fanin.runtime.task import Task
from fanin.testing.clock import Clock

WORKER = "inline"
MOST_ATTEMPTS = 100_000
_A_MOMENT_SECONDS = 0.001


class Attempt:
    """One attempt at a part, in the hands of the test. It lasts until it is committed, or for ever."""

    def __init__(self, inline: Inline, claim: Claim) -> None:
        self._inline = inline
        self._claim = claim
        self.found: Outcome | None = None

    @property
    def job_id(self) -> str:
        return self._claim.job_id

    @property
    def idx(self) -> int:
        return self._claim.idx

    @property
    def number(self) -> int:
        """The fencing number of this attempt, from 1."""
        return self._claim.attempt

    @property
    def last(self) -> bool:
        """Whether the part is allowed no further attempt."""
        return self._claim.attempt >= self._claim.attempts_allowed

    def run(self) -> Attempt:
        """Run the handler, here and now. What it raises becomes its outcome, as in a worker. Returns itself."""
        self.found = self._inline._handle(self._claim)
        return self

    def commit(self) -> Verdict:
        """Report the outcome, also again, also late. Raises `NotAllowedNow` before `run`."""
        if self.found is None:
            raise NotAllowedNow(f"part {self.idx} of job {self.job_id}: call run() first, there is nothing to report")
        if self.found.verb in ("lost", "waits"):
            return Verdict.LOST
        found = self.found
        report = Report(self._claim, found.verb, found.result, found.error, found.delay, found.effects, found.spawns)
        settled: list[Settled] = self._inline.app.store.run(lambda: finish.settle(self._claim.bucket, [report], WORKER))
        return settled[0].verdict

    def __repr__(self) -> str:
        return f"<attempt {self.number} of part {self.idx} of job {self.job_id}>"


class Inline:
    """The application's parts, one at a time. The clock of its database is moved; `close` sets it right again."""

    def __init__(self, app: fanin.App) -> None:
        self.app = app
        self.clock = Clock(app.store)
        self.ahead = 0.0
        """Seconds by which the clock has been moved."""
        self._tasks = tasks_of(app)
        self._leases = {task.name: task.lease for task in self._tasks.values()}
        self._queues = sorted({"default", *(task.queue for task in app.tasks.values())})

    def claim(self) -> Attempt | None:
        """Claim the next ready part, in the order in which a worker would. None if none is ready now."""
        self._keep_up()
        for bucket in range(self.app.store.buckets):
            for queue in self._queues:
                claim_id = identity.new_claim_id()
                taken = self.app.store.run(lambda: lease.claim(bucket, queue, self._leases, 1, claim_id, WORKER))
                if taken:
                    return Attempt(self, taken[0])
        return None

    def skip(self, seconds: float) -> None:
        """Move the clock: leases run out, delays and deadlines pass."""
        self.ahead += seconds
        self.clock.advance(self.ahead)
        self._keep_up()

    def lose(self, attempt: Attempt) -> None:
        """Let the attempt's lease run out, as if its worker had died or stalled. Its handler's deeds remain."""
        self.skip(self._tasks[attempt._claim.task].lease + _A_MOMENT_SECONDS)

    def run_until_idle(self, *, deliver_twice: bool = False, most: int = MOST_ATTEMPTS) -> int:
        """Run parts until none is left, skipping over every delay. Returns the number of attempts.

        deliver_twice: each part's handler is run by a first worker that stalls before its report, and by a second one
        that reports; then the first one reports too, and must be refused. Parts with a single attempt are left out.
        Raises RuntimeError after ``most`` attempts: the parts create more than they finish.
        """
        attempts = 0
        stalled: dict[tuple[str, int], Attempt] = {}
        while True:
            attempt = self.claim()
            if attempt is None:
                if not self.perform_effects() and not self._skip_to_next():
                    return attempts
                continue
            attempts += 1
            if attempts > most:
                raise RuntimeError(f"{most} attempts were run and {attempt!r} is still ready")
            attempt.run()
            if deliver_twice and attempt.number == 1 and not attempt.last:
                self.lose(attempt)
                stalled[attempt.job_id, attempt.idx] = attempt
                continue
            attempt.commit()
            if (overtaken := stalled.pop((attempt.job_id, attempt.idx), None)) is not None:
                late = overtaken.commit()
                refused = late in (Verdict.LOST, Verdict.CLOSED)
                assert refused, f"{overtaken!r} was overtaken, and its report was answered with {late}"

    def perform_effects(self) -> int:
        """Call what accepted parts want done (`Part.effect`) and is due now, here, one after the other. How many."""
        store, calls = self.app.store, 0
        for bucket in range(store.buckets):
            for name, handler in sorted(self.app.effects.items()):
                caller_id = identity.new_claim_id()
                limit = handler.timeout + MARGIN_SECONDS
                taken = store.run(partial(effect.take, bucket, name, limits.CLAIM_EFFECTS, caller_id, WORKER, limit))
                for call in taken:
                    calls += 1
                    store.run(partial(effect.settle, bucket, [perform(handler, call).said(call)]))
        return calls

    def close(self) -> None:
        """The true time again."""
        self.clock.reset()

    def _keep_up(self) -> None:
        for bucket in range(self.app.store.buckets):
            while upkeep.once(self.app.store, bucket):
                pass

    def _skip_to_next(self) -> bool:
        """Move the clock to the next part or effect that comes due. False if none waits."""
        buckets, names = range(self.app.store.buckets), sorted(self.app.effects)
        looks = [self.app.store.read(partial(lease.look, n)).due_in for n in buckets]
        looks += [self.app.store.read(partial(effect.due_in, n, names)) for n in buckets]
        waits = [wait for wait in looks if wait is not None]
        if not waits:
            return False
        self.skip(max(min(waits), 0.0) + _A_MOMENT_SECONDS)
        return True

    def _handle(self, claim: Claim) -> Outcome:
        task = self._tasks[claim.task]
        own = Part(claim, task.lease, self.app.store, task)
        if task.mode != "async":
            return run_handler(task, claim, own, self.app.store)
        return asyncio.run(self._handle_async(task, claim, own))

    async def _handle_async(self, task: Task[..., Any], claim: Claim, own: Part) -> Outcome:
        token = part.enter(own)
        try:
            args, kwargs = task.signature.decode(claim.payload, lambda facts, hint: join(self.app.store, facts, hint))
            found = outcome.succeeded(task, await task.function(*args, **kwargs), own)
            return outcome.complete(found, own) if outcome.unfinished(found) else found
        except BaseException as problem:  # as in a worker: whatever a handler raises is its outcome
            return outcome.failed(task, problem, claim.attempt)
        finally:
            part.leave(token)
