"""What a handler sees of its own part: ``fanin.current()``."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from fanin.domain import identity, limits
from fanin.domain.effects import Intent, same_request
from fanin.domain.errors import KeyConflict, LeaseLost, LimitExceeded, Refused
from fanin.domain.model import Claim
from fanin.protocol import effect, growth, lease
from fanin.runtime import fanout
from fanin.runtime.asking import call_now, intended
from fanin.runtime.codec import encode_plain
from fanin.runtime.effects import Handlers
from fanin.runtime.fanout import FanOut, Handed
from fanin.runtime.outputs import LARGE, RESULT, Source, check_output_name, digest_of, staging, write_source
from fanin.runtime.spawning import Spawns
from fanin.runtime.task import Task
from fanin.stores.base import Store

_current: contextvars.ContextVar[Part | None] = contextvars.ContextVar("fanin_part", default=None)


class Part:
    """The part that the running handler works on. Valid until the handler returns."""

    # One is made for each part: what only some handlers need is made when they ask.
    __slots__ = (
        "_called",
        "_children",
        "_claim",
        "_flows",
        "_intents",
        "_lease",
        "_lost",
        "_spawns",
        "_store",
        "_task",
    )

    def __init__(self, claim: Claim, lease_seconds: float, store: Store, task: Task[..., Any] | None = None) -> None:
        self._claim = claim
        self._lease = lease_seconds
        self._store = store
        self._task = task
        self._lost = False
        self._children = 0
        self._flows = 0
        self._spawns: Spawns | None = None
        self._intents: dict[str, Intent] | None = None
        self._called: frozenset[str] = frozenset()

    @property
    def store(self) -> Store:
        """The database, for built-in tasks."""
        return self._store

    @property
    def max_parts(self) -> int:
        """The width that the application allows a job, for built-in tasks."""
        return limits.JOB_WIDTH_PARTS if self._task is None else self._task.max_parts

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
    def idempotency_key(self) -> identity.PartKey:
        """A key for calls to the outside: the same on every attempt and in every run of this part.

        ``part.idempotency_key("charge")`` is that of one call of several. `effect` makes the call for you.
        """
        return identity.PartKey(identity.part_key(self._claim.job_id, self._claim.idx))

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
        """Save ``value`` (plain JSON) for the next attempt of this part, and renew the lease. Raises `LeaseLost`,
        `BadPayload`."""
        text = encode_plain(value, f"the checkpoint of part {self.idx}", limits.CHECKPOINT_BYTES)
        if self.cancelled or not self._store.run(lambda: lease.checkpoint(self._claim, self._lease, text)):
            self._lose()

    @contextmanager
    def output(self, name: str) -> Iterator[Path]:
        """Gives a path; the file that is there at the end of the ``with`` block becomes an output of this part.

        It is seen (`Joined.outputs`, `Job.outputs`) only if this very attempt succeeds; what an attempt leaves that
        loses its part is removed. The same name again replaces it. Files lie in the directory or bucket that
        ``FANIN_OUTPUTS`` names.

        Raises `BadOption` for an unusable name or place, `Refused` if nothing was written, `LeaseLost`.
        """
        with staging(self._store, self._claim, check_output_name(name), self._lose) as path:
            yield path

    def put(self, name: str, source: Source) -> None:
        """Make an output of bytes, a text, a path, or a file that is open for reading in binary. See `output`."""
        with self.output(name) as path:
            write_source(path, source)

    def fan_out(self, task: Task[..., Any], items: Iterable[Any], **options: Any) -> FanOut:
        """Let this part end with a job of its own: ``return fanin.current().fan_out(task, items)``.

        Nothing happens before the handler returns it. Then the job is made, once however often the part is run, and the
        part waits for it without holding a worker. Its result is that of ``then``, if it is given, else the results of
        all parts, which a successor gets as a `Joined`. options: ``then``, ``tolerate``, ``fail_fast``, ``sample``,
        ``quorum``, ``give_up_after``, ``give_up``, ``attempts``, ``queue``, ``priority`` and ``delay`` of `App.map`.

        Raises `BadOption`, `BadPayload`, `UnknownTask`. A job that may not be, because it is too wide or too deep or
        has an item that cannot be stored, is written down as ``refused``, and the part has failed.
        """
        return FanOut.of(task, items, **options)

    def spawn(
        self, items: Iterable[Any], *, key: Callable[[Any], str] | str | None = None, now: bool = False
    ) -> int | None:
        """Add parts to this part's own job, one per item: ``task(item)`` each. The job must have been made to grow.

        An item whose key the job has seen, as a part that was planned or spawned, is left out; so a handler that is run
        again adds nothing twice. key: a function of the item, or the text itself for a single item; default the
        ``item_key`` of the task, else all of the item.

        The parts come with this part's own commit: an attempt that fails or loses its part adds none. now: they are
        written at once, and may run before this part has ended; so many may be added, and an attempt that fails
        later has added them all the same. A part that ends with `fan_out` adds its parts when it hands over. Returns
        how many were new with ``now``, else None: that is not known yet.

        Raises `BadOption` if the job does not grow, `LimitExceeded` past its width or for too many without ``now``,
        `BadPayload`, `LeaseLost`. A width that is found to be passed at the commit fails the part for good.
        """
        if self._spawns is None:
            self._spawns = Spawns(self._claim, self._task, self._store)
        if not now:
            self._spawns.add(items, key)
            return None
        fresh = 0
        for added in self._spawns.add_now(items, key):
            if added is None or self.cancelled:
                self._lose()
            fresh += added
        return fresh

    def effect(self, name: str, request: Any = None, *, mode: str | None = None, now: bool = False) -> Any:
        """Have something done outside the database, once for this part, whatever becomes of its attempts.

        The handler registered as ``@app.effect(name, mode=…)`` gets ``request`` and a key that is the same in every
        attempt and run. By default it is called after this attempt's result has been accepted, by a worker; an attempt
        that loses the part leaves nothing, and None is returned. ``now``: call at once, while this attempt holds the
        part, and return the response; what an earlier attempt was answered is returned without a call.

        mode: ``at_most_once``, where the handler's own is weaker; needed if no handler of this name is known here.
        The same name and request again is the same effect.

        Raises `BadOption`, `BadPayload`, `LimitExceeded`, `KeyConflict` (the name stands for another request of this
        part), `LeaseLost`; with ``now`` also `EffectFailed` and `EffectUnknown`.
        """
        handlers: Handlers = {} if self._task is None else self._task.effects
        intent = intended(handlers, name, request, mode)
        if now:
            self._called |= {name}
            return call_now(self._store, handlers, self._claim, intent, self._lose)
        if self._intents is None:
            self._intents = {}
        standing = self._intents[name].request if name in self._intents else self._named_before(name)
        if standing is not None and not same_request(standing, intent.request):
            raise KeyConflict(
                f"effect {identity.effect_key(*self._claim.key, name)} was named before with another request: one name "
                "stands for one effect of a part; give the second one a name of its own"
            )
        if len(self._intents) >= limits.PART_EFFECTS and name not in self._intents:
            raise LimitExceeded(f"part {self.idx} wants more than {limits.PART_EFFECTS} effects: make parts of them")
        self._intents[name] = intent
        return None

    def _named_before(self, name: str) -> str | None:
        """The request of an effect that an attempt has named to the database. A first attempt has no predecessor."""
        if self.attempt == 1 and name not in self._called:
            return None
        found = self._store.read(lambda: effect.find(self._claim.bucket, (*self._claim.key, name)))
        return None if found is None else found[1]

    @property
    def last_checkpoint(self) -> Any:
        """What an earlier attempt of this part saved last, or None."""
        saved = self._claim.checkpoint
        return None if saved is None else msgspec.json.decode(saved)

    def tell_lost(self) -> None:
        """For the worker: from now on `cancelled` is true."""
        self._lost = True

    def _lose(self) -> NoReturn:
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
    part._children += 1
    return identity.child_id(part.job_id, part.idx, part._children - 1)


def next_flow_id(part: Part) -> str:
    """The id of the next flow without a key that the handler of ``part`` declares."""
    part._flows += 1
    return identity.child_flow_id(part.job_id, part.idx, part._flows - 1)


def intents_of(part: Part) -> tuple[Intent, ...]:
    """What the handler wants done if its result is accepted."""
    return () if part._intents is None else tuple(part._intents.values())


def enter(part: Part) -> contextvars.Token[Part | None]:
    return _current.set(part)


def leave(token: contextvars.Token[Part | None]) -> None:
    _current.reset(token)


def spawns_of(part: Part) -> tuple[growth.Item, ...]:
    """The parts that come with the commit of ``part``."""
    return () if part._spawns is None else tuple(part._spawns.items)


def hand_over(own: Part, value: FanOut) -> Handed:
    """Make the job that the part ends with, and before it the parts that it adds to its own job.

    Raises what `fanout.hand_over` and `Part.spawn` raise.
    """
    for added in own._spawns.flush() if own._spawns is not None else ():
        if added is None:
            own._lose()
    return fanout.hand_over(value, own._claim, own._store)


def large_result(own: Part, text: str) -> str:
    """Put a result outside, among the part's outputs, and give what stands for it in the row. Raises `LeaseLost`."""
    data = text.encode()
    with staging(own._store, own._claim, RESULT, own._lose) as path:
        path.write_bytes(data)
    return f"{LARGE}{len(data)} {digest_of(data)}"
