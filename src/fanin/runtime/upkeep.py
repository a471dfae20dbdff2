"""What any worker does for all: due parts become claimable, spent ones fail, deadlines fire, closed jobs are swept.

Every step is safe however many workers do it at once; the guards of the protocol decide.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter

from fanin.domain import limits
from fanin.domain.errors import Unavailable
from fanin.protocol import close, finish, flow, lease, nest, pause, progress
from fanin.protocol.steps import TxnFactory
from fanin.runtime.background import Background
from fanin.stores.base import Store

log = logging.getLogger("fanin")

PERIOD_SECONDS = 1.0
REST_SECONDS = 2.5
SOONEST_SECONDS = 0.02


def once(store: Store, bucket: int) -> bool:
    """One round over one bucket. True if anything was found to do."""
    return tend(store, bucket, store.read(lambda: lease.look(bucket)))


def tend(store: Store, bucket: int, look: lease.Look) -> bool:
    """Do what a look has shown to be due. True if there was anything."""
    busy = False
    if look.due_in is not None and look.due_in <= 0:
        while woken := store.run(lambda: lease.wake(bucket)):
            busy = True
            for job_id, idx, attempt, worker in woken.lost:
                log.info("job %s part %d: attempt %d lost its lease, %s had it", job_id, idx, attempt, worker)
        while _reap(store, bucket):
            busy = True
    if look.give_up_in is not None and look.give_up_in <= 0:
        for job_id in store.read(lambda: close.overdue(bucket)):
            busy = _done(store, job_id, partial(close.give_up, bucket, job_id)) or busy
    if look.stale_in is not None and look.stale_in <= 0:
        for job_id in store.read(lambda: close.stale(bucket)):
            busy = _done(store, job_id, partial(close.too_old, bucket, job_id)) or busy
    if look.flow_give_up_in is not None and look.flow_give_up_in <= 0:
        for flow_id in store.read(lambda: flow.overdue(bucket)):
            busy = _done(store, flow_id, partial(flow.give_up, bucket, flow_id)) or busy
    if look.progress_in is not None and look.progress_in <= 0:
        for job_id in store.read(lambda: progress.overdue(bucket)):
            busy = _done(store, job_id, partial(progress.tell, bucket, job_id)) or busy
    if look.flows_ending or busy:
        for job_id in store.read(lambda: flow.left_running(bucket)):
            busy = _done(store, job_id, partial(flow.end_running, bucket, job_id)) or busy
    if look.unswept or look.orphaning or busy:
        busy = _end_below(store, bucket) or busy
    if look.walking:  # a portion each: a job of a million parts must not hold up what is due
        for job_id in store.read(lambda: pause.walking(bucket)):
            busy = _done(store, job_id, partial(pause.walk, bucket, job_id)) or busy
    return busy


def _end_below(store: Store, bucket: int) -> bool:
    """Sweep what closed jobs have left behind, cancel the jobs for which its parts waited, sweep what these leave, and
    so on: a tree is ended level by level, all of it at once unless it is wide. True if there was anything."""
    found = False
    for _ in range(limits.JOB_DEPTH_LEVELS + 1):
        busy = False
        for job_id, stripe in store.read(lambda: close.unswept(bucket)):
            while _done(store, job_id, partial(close.sweep, bucket, job_id, stripe)):
                busy = True
        for job_id, idx in store.read(lambda: nest.orphans(bucket)):
            busy = end_nested(store, bucket, job_id, idx) or busy
        if not busy:
            break
        found = True
    return found


def end_nested(store: Store, bucket: int, job_id: str, idx: int) -> bool:
    """Cancel what goes on for a part that has ended without it. What that leaves behind comes next, level by level."""
    for nested_id in store.read(lambda: nest.left_behind(bucket, job_id, idx)):
        _done(store, nested_id, partial(nest.abandon, bucket, nested_id, job_id, idx))
    return _done(store, job_id, partial(nest.forget, bucket, job_id, idx))


def _reap(store: Store, bucket: int) -> bool:
    """All that are spent at once; job by job where that cannot be done."""
    try:
        return store.run(lambda: lease.reap(bucket)) > 0
    except Unavailable:
        raise
    except Exception:
        found = sorted(store.read(lambda: lease.spent(bucket)))
        jobs = {job_id: list(parts) for job_id, parts in groupby(found, key=itemgetter(0))}
        return sum(_done(store, job_id, partial(finish.reap, bucket, parts)) for job_id, parts in jobs.items()) > 0


def _done(store: Store, job_id: str, factory: TxnFactory[int]) -> bool:
    """Whether the transaction found something to do. A damaged job must not hold up the others."""
    try:
        return bool(store.run(factory))
    except Unavailable:
        raise
    except Exception:
        log.exception("job %s cannot be tended to. Run `fanin check`", job_id)
        return False


class Upkeep:
    """`once`, about every second, and exactly when the next part comes due. ``found`` wakes the worker.

    Where nothing waits for a moment, not even a lease, it looks less often, so that idle workers cost the database
    little; a worker that claims parts, or hears its bell, says so to `working`.
    """

    def __init__(self, store: Store, found: Callable[[], None]) -> None:
        self._store = store
        self._found = found
        self._resting = False
        self.background = Background("upkeep", self.step, every=PERIOD_SECONDS, first=random.uniform(0, 0.2))

    def working(self) -> None:
        """There is something that comes due now: a lease. Or there may be: a delay, a deadline, an age."""
        if self._resting:
            self._resting = False
            self.background.stir()

    def step(self) -> float:
        """One round over all buckets. Returns the seconds until the next."""
        self._resting = False
        share = random.uniform(0.7, 1.0)
        pause = PERIOD_SECONDS * share
        quiet = True
        for bucket in range(self._store.buckets):
            look = self._store.read(lambda: lease.look(bucket))
            if tend(self._store, bucket, look):
                self._found()
                quiet = False
                look = self._store.read(lambda: lease.look(bucket))
                if look.unswept or look.orphaning:  # a wide tree is ended by portions
                    pause = SOONEST_SECONDS
            if look.soonest is not None:
                quiet = False
                pause = min(pause, max(look.soonest, SOONEST_SECONDS))
        if quiet:
            self._resting = True
            return REST_SECONDS * share
        return pause
