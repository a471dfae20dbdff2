"""What a handler sees of its own part: ``fanin.current()``."""

from __future__ import annotations

import contextvars
import itertools
from typing import Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.errors import LeaseLost, Refused
from fanin.domain.model import Claim
from fanin.protocol import lease
from fanin.runtime.codec import encode
from fanin.stores.base import Store

_current: contextvars.ContextVar[Part | None] = contextvars.ContextVar("fanin_part", default=None)


class Part:
    """The part that the running handler works on. Valid until the handler returns."""

    def __init__(self, claim: Claim, lease_seconds: float, store: Store) -> None:
        self._claim = claim
        self._lease = lease_seconds
        self._store = store
        self._lost = False
        self._children = itertools.count()

    @property
    def job_id(self) -> str:
        return self._claim.job_id

    @property
    def idx(self) -> int:
        """The part's place in the job, from 0."""
        return self._claim.idx

    @property
    def attempt(self) -> int:
        """The fencing number: 1 at the first claim, one more at each later one, also after a redrive."""
        return self._claim.attempt

    @property
    def attempts_left(self) -> int:
        return self._claim.attempts_allowed - self._claim.attempt

    @property
    def idempotency_key(self) -> str:
        """A key for calls to the outside: the same on every attempt and in every run of this part."""
        return identity.part_key(self._claim.job_id, self._claim.idx)

    @property
    def cancelled(self) -> bool:
        """True once the lease is known to be lost, or the worker is told to stop at once. Look at it between steps."""
        return self._lost

    def heartbeat(self) -> None:
        """Renew the lease now. The worker does so by itself; call this to learn at once whether it still holds.

        Raises `LeaseLost` if another attempt holds the part or the job has ended.
        """
        if self.cancelled or self._store.run(lambda: lease.renew(self._claim.bucket, [(self._claim, self._lease)])):
            self._lose()

    def checkpoint(self, value: Any) -> None:
        """Save ``value`` (plain JSON) for the next attempt of this part, and renew the lease. Raises `LeaseLost`."""
        text = encode(value, f"the checkpoint of part {self.idx}", limits.CHECKPOINT_BYTES)
        if self.cancelled or not self._store.run(lambda: lease.checkpoint(self._claim, self._lease, text)):
            self._lose()

    @property
    def last_checkpoint(self) -> Any:
        """What an earlier attempt of this part saved last, or None."""
        saved = self._claim.checkpoint
        return None if saved is None else msgspec.json.decode(saved)

    def tell_lost(self) -> None:
        """For the worker: from now on `cancelled` is true."""
        self._lost = True

    def _lose(self) -> None:
        self._lost = True
        raise LeaseLost(f"part {self.idx} of job {self.job_id}: attempt {self.attempt} does not hold it any more")


def current() -> Part:
    """The part of the running handler. Raises `Refused` outside of one."""
    part = _current.get()
    if part is None:
        raise Refused("fanin.current() is only for use inside a task's handler that a worker runs")
    return part


def running_part() -> Part | None:
    """The part of the running handler, or None outside of one."""
    return _current.get()


def next_child_id(part: Part) -> str:
    """The id of the next job without a key that the handler of ``part`` makes."""
    return identity.child_id(part.job_id, part.idx, next(part._children))


def enter(part: Part) -> contextvars.Token[Part | None]:
    return _current.set(part)


def leave(token: contextvars.Token[Part | None]) -> None:
    _current.reset(token)
