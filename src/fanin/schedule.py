"""A schedule as the code declares it: which job a slot makes, and what may be asked of it."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from fanin.domain import identity, limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption, NotAllowedNow, UnknownSchedule, shown
from fanin.domain.model import Firing, ScheduleRow
from fanin.domain.policy import check_quorum
from fanin.domain.timing import Rule, Timing, soon
from fanin.job import Job
from fanin.protocol import read, schedule
from fanin.protocol.schedule import Prepared, Slot
from fanin.protocol.steps import TxnFactory
from fanin.runtime.codec import encode_plain
from fanin.runtime.payloads import Spool, content_hash
from fanin.runtime.successor import spec_of, successor_of
from fanin.runtime.task import Task, check_attempts, check_name, check_priority

if TYPE_CHECKING:
    from fanin.app import App


class Schedule:
    """One schedule of an application, made by `App.schedule`. Nothing is cached; every look is a query."""

    def __init__(
        self,
        app: App,
        name: str,
        timing: Timing,
        rule: Rule,
        task: Task[..., Any],
        items: Iterable[Any] | Callable[..., Iterable[Any]] | None,
        policy: Any,
        options: dict[str, Any],
    ) -> None:
        self.name = check_name(name, "schedule name")
        self.timing = timing
        self.rule = rule
        self._app = app
        self._task = app._maker.own(task)
        self._policy = policy
        self._options = options
        _check(app, task, options)
        self._payloads = _payloads(self._task, items)
        if not callable(items):  # the same at every slot: refused here, and not in the worker
            self._spool(0.0)

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r} {self.timing.cron} {self.timing.tz}>"

    def next(self, count: int = 1) -> list[datetime]:
        """The next slots after now (by the database's clock), or after the one decided last, in the schedule's zone.

        Raises `BadOption`.
        """
        _check_count("count", count)
        row = self.row()
        now = self._look().now
        return [self.timing.local(slot) for slot in soon(self.timing, max(now, row.mark), count)]

    def row(self) -> ScheduleRow:
        """What the database knows of it. Makes it known if no worker has."""
        return self._look().rows[self.name]

    def firings(self, limit: int = 20) -> list[Firing]:
        """What became of the latest slots, newest first. At most the last 200 are kept. Raises `BadOption`."""
        _check_count("limit", limit)
        return self._app.store.read(lambda: schedule.firings(self._bucket, self.name, limit))

    def jobs(self, limit: int = 20) -> list[Job]:
        """The jobs of the latest firings, newest first."""
        return [Job(self._app, one.job_id) for one in self.firings(limit) if one.what == "fired" and one.job_id]

    def pause(self, note: str | None = None) -> bool:
        """Fire no further slots until `resume`; those that pass meanwhile are not made up for. False if it was paused.

        note: why, for those who look. Raises `BadOption`.
        """
        check_note(note)
        self._declare()
        return self._app.store.run(lambda: schedule.pause(self._bucket, self.name, note))

    def resume(self) -> bool:
        """Fire again, from the next slot on. False if it was not paused."""
        self._declare()
        return self._app.store.run(lambda: schedule.resume(self._bucket, self.name))

    def fire(self) -> Job | None:
        """Fire it now, also while it is paused: this moment is the slot. ``overlap`` is kept.

        None if it waits for the job before (``overlap="queue"``): a worker fires it then. Raises `NotAllowedNow` if
        that job is live and ``overlap="skip"``.
        """
        self._declare()
        store = self._app.store
        asked = store.run(lambda: schedule.ask(self._bucket, self.name))
        slot = Slot(self.name, asked, overlap=self.rule.overlap, by_hand=True)
        prepared = self._prepare(asked, by_hand=True)
        fired = store.run(lambda: schedule.fire(self._bucket, slot, prepared))
        stands = fired.what == "fired" or store.read(lambda: read.job(prepared.job.bucket, prepared.job.id))
        if stands:  # made here, or by a worker that was faster
            return Job(self._app, prepared.job.id)
        if fired.what == "waiting":
            return None
        raise NotAllowedNow(
            f"schedule {self.name!r}: the job of the firing before is still live ({fired.job_id or 'see firings()'}): "
            "wait for it, cancel it, or declare overlap='queue' or 'allow'"
        )

    def backfill(self, since: datetime, until: datetime) -> list[Job]:
        """Fire the slots from ``since`` to ``until`` that have no job yet, all at once, oldest first. Their jobs.

        For slots that were missed, or that lie before the schedule began. ``until`` is cut to the slot decided last.
        Raises `BadOption`, also for more than 1 000 slots, before anything is written.
        """
        given: tuple[tuple[str, Any], ...] = (("since", since), ("until", until))
        for name, moment in given:
            if not isinstance(moment, datetime) or moment.tzinfo is None:
                raise BadOption(f"{name}={shown(moment)}: give a datetime with a time zone")
        if until < since:
            raise BadOption(f"until={until} comes before since={since}: give the earlier one first")
        last = min(until.timestamp(), self.row().mark)
        plain = msgspec.structs.replace(self.timing, start=None)
        slots = plain.latest(since.timestamp() - 1e-3, last, limits.SCHEDULE_BACKFILL_SLOTS + 1)
        if len(slots) > limits.SCHEDULE_BACKFILL_SLOTS:
            raise BadOption(
                f"more than {limits.SCHEDULE_BACKFILL_SLOTS} slots from {since} to {until}: take a shorter span"
            )
        return [job for slot in reversed(slots) if (job := self._fill(slot)) is not None]

    def _fill(self, at: float) -> Job | None:
        prepared = self._prepare(at)
        slot = Slot(self.name, at)
        made = self._app.store.run(lambda: schedule.fill(self._bucket, slot, prepared))
        return Job(self._app, prepared.job.id) if made else None

    # What the loop in `fanin.runtime.schedule` asks for.

    def _texts(self) -> tuple[str, str]:
        """Timing and the rest, as JSON, for those who look at the database without the code."""
        then = self._options["then"]
        facts = {"task": self._task.name, "then": None if then is None else successor_of(then).task.name}
        rule = msgspec.structs.asdict(self.rule)
        return msgspec.json.encode(self.timing).decode(), msgspec.json.encode(facts | rule).decode()

    def _prepare(self, slot: float, by_hand: bool = False) -> Prepared:
        """The job of one slot, ready to be written; calls the items if they are a function."""
        spool = self._spool(slot)
        # As from outside any handler: the job belongs to its schedule, whoever fires it.
        new = contextvars.Context().run(
            self._app._maker.new_job, self._task, self._policy, key=None, delay=0.0, stripes=None, **self._options
        )
        job_id = identity.firing_id(self.name, slot, by_hand)
        new = msgspec.structs.replace(
            new, id=job_id, bucket=self._bucket, step=identity.SCHEDULED + self.name,
            delay=0.0 if by_hand else self.rule.jitter * identity.share_of(job_id),
        )  # fmt: skip
        new = self._app._maker.striped(new, len(spool), None)
        new = msgspec.structs.replace(new, request_hash=content_hash(new, spool.digest))
        return Prepared(new, len(spool), spool.chunks)

    def _spool(self, slot: float) -> Spool:
        spool = Spool(self._payloads(self.timing.local(slot)), self._app.max_parts)
        check_quorum(self._policy.quorum, len(spool))
        return spool

    @property
    def _bucket(self) -> int:
        return schedule.bucket_of(self.name, self._app.store.buckets)

    def _declaring(self) -> TxnFactory[bool]:
        timing, spec = self._texts()
        return lambda: schedule.declare(self._bucket, self.name, timing, spec)

    def _declare(self) -> None:
        if self.name not in self._app.store.read(lambda: schedule.look(self._bucket)).rows:
            self._app.store.run(self._declaring())

    def _look(self) -> schedule.Look:
        self._declare()
        found = self._app.store.read(lambda: schedule.look(self._bucket))
        if self.name not in found.rows:
            raise UnknownSchedule(f"schedule {self.name!r} was forgotten just now; ask again")
        return found


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or not 1 <= value <= limits.LOOK_ROWS:
        raise BadOption(f"{name}={shown(value)}: give a whole number from 1 to {limits.LOOK_ROWS}")


def check_note(note: Any) -> None:
    """Raise `BadOption` for a note that cannot be kept."""
    if note is not None and not (isinstance(note, str) and len(note) <= limits.REASON_CHARS and note.isprintable()):
        raise BadOption(f"note={shown(note)}: use at most {limits.REASON_CHARS} printable characters")


def _check(app: App, task: Task[..., Any], options: dict[str, Any]) -> None:
    """What a submit would refuse is refused at the declaration, without a look at the database."""
    if options["then"] is not None:
        app._maker.own(successor_of(options["then"]).task)
        spec_of(options["then"], task, 0)
    if options["attempts"] is not None:
        check_attempts(options["attempts"])
    if options["queue"] is not None:
        check_name(options["queue"], "queue")
    if options["priority"] is not None:
        check_priority(options["priority"])
    wait: Duration | None = options["give_up_after"]
    if wait is not None:
        seconds(wait, "give_up_after")
    if options["meta"] is not None:
        encode_plain(options["meta"], "meta", limits.PAYLOAD_BYTES)


def _payloads(
    task: Task[..., Any], items: Iterable[Any] | Callable[..., Iterable[Any]] | None
) -> Callable[[datetime], Iterable[str]]:
    """From a slot to the payloads of its job's parts."""
    signature = task.signature
    if items is None:
        if signature.first is not None and signature.first.annotation is datetime:
            return lambda slot: [signature.encode_item(slot, 0)]
        alone = signature.encode_call((), {})
        return lambda slot: [alone]
    if not callable(items):
        if not isinstance(items, Iterable):
            raise BadOption(f"items={shown(items)}: give a list, or a function that returns the items of a slot")
        listed = list(signature.encode_items(items))
        return lambda slot: listed
    if inspect.iscoroutinefunction(items) or isinstance(items, Task):
        raise BadOption(f"items={shown(items)}: give a list, or a plain function that returns the items of a slot")
    takes_slot = bool(inspect.signature(items).parameters)
    try:
        inspect.signature(items).bind(*([None] if takes_slot else []))
    except TypeError:
        raise BadOption(f"items={shown(items)}: the function takes the slot, or nothing") from None

    def called(slot: datetime) -> Iterable[str]:
        return signature.encode_items(items(slot) if takes_slot else items())

    return called
