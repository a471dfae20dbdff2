"""The application: register tasks, submit jobs, look at them. `AsyncApp` in ``aio`` has the same names, awaited."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from fanin.domain import limits
from fanin.domain.durations import Duration, Instant, seconds
from fanin.domain.errors import BadOption, shown
from fanin.domain.events import Events
from fanin.domain.flows import FlowRow
from fanin.domain.model import JobRow, NewJob
from fanin.domain.policy import Backoff, Policy, check_quorum, make_policy
from fanin.domain.purged import Purged
from fanin.domain.repairs import Repaired
from fanin.domain.signals import Signals
from fanin.flow import Flow, FlowRun
from fanin.job import Job
from fanin.opened import OpenJob, Producer
from fanin.protocol import flow, read, signals
from fanin.runtime.codec import check_items
from fanin.runtime.effects import CALL_SECONDS, EffectHandler
from fanin.runtime.fanout import batched, check_overflow
from fanin.runtime.listeners import Listeners, sample
from fanin.runtime.making import Maker, check_grows, encoded, encoder
from fanin.runtime.names import find_flow, find_job
from fanin.runtime.part import running_part
from fanin.runtime.payloads import Feed, Spool, Wanted
from fanin.runtime.successor import Then
from fanin.runtime.task import Filter, Task, check_name
from fanin.stores import open_store

if TYPE_CHECKING:
    from fanin.schedule import Schedule

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Tasks and one database.

    url: ``sqlite:///file.db`` or ``postgresql://…``; default ``FANIN_URL``, else ``sqlite:///fanin.db``. Nothing is
    opened before the first use. max_parts: the width that this application allows one job.
    """

    def __init__(self, url: str | None = None, *, max_parts: int = limits.JOB_WIDTH_PARTS) -> None:
        if type(max_parts) is not int or not 1 <= max_parts <= limits.JOB_WIDTH_PARTS:
            raise BadOption(f"max_parts={shown(max_parts)}: give a whole number from 1 to {limits.JOB_WIDTH_PARTS}")
        self.store = open_store(url)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.effects: dict[str, EffectHandler] = {}
        self.schedules: dict[str, Schedule] = {}
        self.max_parts = max_parts
        self.leaving: list[threading.Thread] = []
        self._listeners = Listeners()
        self._maker = Maker(self, self._listeners)

    @property
    def url(self) -> str:
        return self.store.url

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        attempts: int = 3,
        lease: Duration = 60.0,
        timeout: Duration | None = None,
        mode: str | None = None,
        queue: str = "default",
        priority: int = 0,
        backoff: Backoff | Duration | None = None,
        retry_on: Filter = (BaseException,),
        give_up_on: Filter = (),
        item_key: Callable[[Any], str] | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, **options: Any) -> Any:
        """Register a handler. See `fanin.runtime.task.Task` for the options.

        Raises `BadOption` for an option that cannot work or a name that is taken, `BadPayload` for annotations that
        cannot be read.
        """

        def register(function: Callable[..., Any]) -> Task[..., Any]:
            return self._add(Task(function, **options))

        return register if function is None else register(function)

    def _add(self, task: Task[..., Any]) -> Task[..., Any]:
        if task.name in self.tasks:
            raise BadOption(f"the task name {task.name!r} is taken: give one of the two another name=")
        task.effects, task.max_parts = self.effects, self.max_parts
        self.tasks[task.name] = task
        return task

    def effect(
        self,
        name: str,
        *,
        mode: str,
        timeout: Duration = CALL_SECONDS,
        probe: Callable[..., Any] | None = None,
        attempts: int | None = None,
        backoff: Backoff | Duration | None = None,
        concurrency: int = 8,
    ) -> Callable[[F], F]:
        """Register the function that performs what parts ask for by ``part.effect(name, request)``.

        It is called with the request and a key for the receiver, in a thread (``async def`` on a loop there). What it
        returns is kept as the response. `Permanent` and `RetryLater` say that surely nothing was done; after any other
        exception, or ``timeout``, it may have been done, and ``mode`` says what follows. See
        `fanin.runtime.effects.EffectHandler` for the options. Raises `BadOption`, `BadPayload`.
        """
        check_name(name, "effect name")

        def register(function: F) -> F:
            if name in self.effects:
                raise BadOption(f"the effect name {name!r} is taken: give one of the two another name")
            self.effects[name] = EffectHandler(
                function, name, mode=mode, timeout=timeout, probe=probe, attempts=attempts, backoff=backoff,
                concurrency=concurrency,
            )  # fmt: skip
            return function

        return register

    def on(
        self, event: str, *, of: Task[..., Any] | Sequence[Task[..., Any]] | None = None, **options: Any
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Register a task that is run for every event of this type: ``@app.on("job.finished")``.

        Its job is created by the transaction that ends the run, once, however the run ends, and is then an ordinary
        job with attempts, leases and a history. It receives a `JobFinished`. It listens to the jobs that this
        application submits after it was registered; not to successors, nor to jobs that a listener submits.

        ``"flow.finished"`` and ``"flow.needs_attention"`` do the same for the flows that it starts; the task receives a
        `FlowFinished`. There is no ``of`` then.

        of: only jobs of this task, or of these. options: those of `App.task`. Raises `BadOption`, `BadPayload`.
        """
        if not isinstance(of, Task | list | tuple | set | frozenset | None) or of in ((), []):
            raise BadOption(f"of={shown(of)}: give a task, a list of tasks, or None for all")
        chosen = () if of is None else (of,) if isinstance(of, Task) else tuple(of)
        self._listeners.check(event, chosen)
        for task in chosen:
            self._maker.own(task)

        def register(function: Callable[P, R]) -> Task[P, R]:
            task: Task[P, R] = Task(function, **options)
            task.signature.check_item(sample(event))
            self._listeners.add(event, chosen, self._add(task))
            return task

        return register

    def schedule(
        self,
        name: str,
        cron: str,
        task: Task[..., Any],
        items: Iterable[Any] | Callable[..., Iterable[Any]] | None = None,
        *,
        tz: str = "UTC",
        misfire: str = "once",
        overlap: str = "skip",
        grace: Duration = 60.0,
        catch_up: int = 100,
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration = 0.0,
        then: Then | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        meta: Any = None,
    ) -> Schedule:
        """Declare a schedule: at each slot of ``cron`` in the zone ``tz``, one job, as `map` with these options makes
        it. Any worker of this application fires it; of many workers one does. Nothing is written here.

        items: a list, or a function that is called with the slot (a datetime) when it is fired. Without items the job
        has one part: ``task()``, or ``task(slot)`` if its first parameter is annotated ``datetime``.
        misfire: of slots that were missed, fire none that is later than ``grace`` (``"skip"``), the latest
        (``"once"``), or each of the latest ``catch_up``, oldest first (``"all"``).
        overlap: while the job of the firing before, or a successor of it, is live: ``"skip"`` the slot, ``"queue"`` it
        until that job has ended, or ``"allow"`` both.
        start, end: no slot before or after. jitter: the parts of a job start up to so much later than its slot.

        Raises `BadOption`, `BadPayload`, `UnknownTask`.
        """
        from fanin.domain.timing import make_rule, make_timing
        from fanin.schedule import Schedule

        if check_name(name, "schedule name") in self.schedules:
            raise BadOption(f"the schedule name {name!r} is taken: give one of the two another name")
        if len(self.schedules) >= limits.SCHEDULES:
            raise BadOption(f"{limits.SCHEDULES} schedules are declared, which is the limit")
        rule = make_rule(misfire, overlap, seconds(grace, "grace"), catch_up, seconds(jitter, "jitter"))
        options = {
            "then": then, "give_up_after": give_up_after, "attempts": attempts, "queue": queue,
            "priority": priority, "meta": meta,
        }  # fmt: skip
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        made = Schedule(self, name, make_timing(cron, tz, start, end), rule, task, items, policy, options)
        self.schedules[name] = made
        return made

    def map(
        self,
        task: Task[..., Any],
        items: Iterable[Any],
        *,
        then: Then | None = None,
        key: str | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        stripes: int | None = None,
        meta: Any = None,
        events: Events | None = None,
        stream: bool = False,
        grows: bool | int = False,
        overflow: str = "refuse",
        within: Any = None,
        run: bool = False,
    ) -> Job:
        """Create a job with one part per item, ``task(item)`` each, and return it at once.

        then: the task that receives the `Joined` parts when the job has completed, or a `Successor` with options of
        its own; created by the job's end, once.
        key: the same key and content again is the same job, another content is `KeyConflict`. Inside a handler a job
        without one is known by its place: the n-th job of the part, in every attempt.
        tolerate: failed parts that still let the job complete: a count, or a share such as ``"1%"``.
        fail_fast: close the job as soon as more have failed (default: only where ``tolerate`` is given).
        sample: with a share, judge it while running once so many parts have ended.
        quorum: complete as soon as so many parts have succeeded; the rest is abandoned.
        give_up_after, give_up_at: end the job then (so long after its creation, or at a datetime with a zone; at once
        if that has passed), ``give_up="proceed"`` with what has arrived, or ``"abandon"``.
        delay: parts start no sooner. stripes: counters (default by size and database).
        within: a psycopg, apsw or sqlite3 connection whose open transaction shall hold the job.
        stream: write the parts in chunks while ``items`` is still being read; they run at once, and the job can end
        only after the last, unless its rules or an operator end it: then no further item is read. Default: nothing is
        written before all items are read and checked, then all in one transaction.
        run: `Job.wait` and `Job.result` work in this process until the job has ended, as `run_worker` would: on its
        parts, and on what else the queues of these tasks hold. What they still run then they finish behind the return;
        `close` and the end of the process wait for that, as for a worker that is stopped.
        events: what the job tells beside its end: `Events`.
        grows: running parts may add parts to the job with `Part.spawn`, each item once by its key (`App.task`): True,
        or the most parts that it may come to have (default ``max_parts``).
        overflow: what happens with more items than ``max_parts``: ``"refuse"`` them, or ``"split"`` them into several
        jobs that are joined as one, with one `Joined` and all results in order.

        Raises `BadPayload`, `BadOption`, `LimitExceeded`, `KeyConflict`, `NotAllowedNow` before anything is written.
        """
        self._maker.own(task)
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        new = self._maker.new_job(
            task, policy, then=then, key=key, give_up_after=give_up_after, give_up_at=give_up_at, attempts=attempts,
            queue=queue, priority=priority, delay=delay, stripes=stripes, meta=meta, events=events,
            width=check_grows(grows, self.max_parts),
        )  # fmt: skip
        split = check_overflow(overflow, policy, stream=stream, grows=bool(grows))
        if stream:
            if within is not None:
                raise BadOption("stream=True writes in several transactions, within= asks for one: choose")
            check_quorum(quorum, new.width or self.max_parts)
            self._feed(new, map(encoder(task, new), check_items(items), itertools.count()))
        else:
            spool = Spool(encoded(task, new, items), limits.TREE_PARTS if split else self.max_parts)
            check_quorum(quorum, new.width or len(spool))
            new = batched(new, len(spool), self.max_parts)
            self._create(self._maker.striped(new, new.batch or len(spool), stripes), spool, within)
        return Job(self, new.id, run=run)

    def open(
        self,
        task: Task[..., Any],
        *,
        then: Then | None = None,
        key: str | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        stripes: int | None = None,
        meta: Any = None,
        events: Events | None = None,
        grows: bool | int = False,
        run: bool = False,
    ) -> OpenJob:
        """A job that is fed while its parts run: ``with app.open(task) as job: job.add(item)``.

        The job cannot end before the end of the block, which seals it, unless its rules or an operator end it. A
        producer that dies leaves it open: the same call with the same key goes on, if it says the same items again;
        else the job is given up at its deadline, ``give_up_after`` or 7 days. An exception that leaves the block
        cancels the job, with the exception as the reason; but a job with a key, or of a handler, with which the same
        call would go on, stays open.

        The options are those of `map`. Raises what `map` raises.
        """
        self._maker.own(task)
        width = check_grows(grows, self.max_parts)
        check_quorum(quorum, width or self.max_parts)
        new = self._maker.new_job(
            task, make_policy(tolerate, fail_fast, sample, quorum, give_up), then=then, key=key,
            give_up_after=give_up_after, give_up_at=give_up_at, attempts=attempts, queue=queue,
            priority=priority, delay=delay, stripes=stripes, meta=meta, events=events,
            width=width,
        )  # fmt: skip
        return OpenJob(self, self._producer(task, new), run=run)

    def _producer(self, task: Task[..., Any], new: NewJob) -> Producer:
        again = new.key is not None or running_part() is not None
        return Producer(new, self.max_parts, encoder(task, new), again)

    def submit(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> Job:
        """Create a job of one part, ``task(*args, **kwargs)``. For options use `submit_with`."""
        return self.submit_with(task, args, kwargs)

    def submit_with(
        self,
        task: Task[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        then: Then | None = None,
        key: str | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        meta: Any = None,
        events: Events | None = None,
        within: Any = None,
        run: bool = False,
    ) -> Job:
        """`submit` with the options of `map` that make sense for one part."""
        payload = self._maker.own(task).signature.encode_call(args, {} if kwargs is None else kwargs)
        new = self._maker.new_job(
            task, Policy(), then=then, key=key, give_up_after=give_up_after, give_up_at=give_up_at, attempts=attempts,
            queue=queue, priority=priority, delay=delay, stripes=1, meta=meta, events=events,
        )  # fmt: skip
        self._create(new, Spool([payload], 1), within)
        return Job(self, new.id, run=run)

    def flow(
        self,
        name: str,
        *,
        key: str | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        fail_fast: bool = True,
        meta: Any = None,
    ) -> Flow:
        """A plan of steps that follow one another; `Flow.start` writes and starts it.

        key: the same key and content again is the same flow. fail_fast: a step that fails, and for which no other
        provides, stops all of the flow (else: only what stands behind it). When the flow fails or is cancelled, what
        its steps have done is undone in the reverse order, where they say how. give_up_after, give_up_at: stop it
        then; with ``give_up="proceed"`` what is done stays as it is. Raises `BadOption`.
        """
        return Flow(
            self,
            name,
            key=key,
            give_up_after=give_up_after,
            give_up_at=give_up_at,
            give_up=give_up,
            fail_fast=fail_fast,
            meta=meta,
        )

    def flow_run(self, name: str) -> FlowRun:
        """The flow of an id, of the beginning of one, or of a key. Raises `UnknownJob`."""
        return FlowRun(self, self.store.read(lambda: find_flow(name, self.store.buckets)))

    def flows(self, status: str | None = None, limit: int = 20) -> list[FlowRow]:
        """The newest flows, optionally of one state."""
        return self.store.read(lambda: flow.newest(range(self.store.buckets), status, limit))

    def job(self, name: str) -> Job:
        """The job of an id, of the beginning of one, or of a key. Raises `UnknownJob`."""
        return Job(self, self.store.read(lambda: find_job(name, self.store.buckets)))

    def jobs(self, status: str | None = None, limit: int = 20) -> list[JobRow]:
        """The newest jobs, optionally of one state."""
        return self.store.read(lambda: read.jobs(range(self.store.buckets), status, limit))

    def signals(self, since: Duration = 3600.0) -> Signals:
        """What an operator watches: refused reports, lost leases, stopped work, what waits and what is stuck.

        since: how far back the counts of what happened go. Raises `BadOption`.
        """
        back = seconds(since, "since")
        return self.store.read(lambda: signals.signals(range(self.store.buckets), back))

    def purge(
        self, older_than: Duration, *, unsent: bool = False, outputs: bool = False, dry_run: bool = False
    ) -> Purged:
        """Remove jobs that ended so long ago, each with its whole tree: parts, history, events that have left, outputs.

        A tree of which a job goes on, ended later, or waits for a relay, a sweep or a person stays as a whole. The
        files that parts left stay where they lie and are no longer known; with ``outputs`` they are removed.
        ``unsent``: also trees with events that no relay has delivered, and effects that have failed or are unknown.
        ``dry_run``: only look. A key whose job was purged is free again. Raises `BadOption`.
        """
        from fanin.runtime.purge import purge

        age = seconds(older_than, "older_than")
        return purge(self.store, age, unsent=unsent, outputs=outputs, dry_run=dry_run)

    def repair(self, job: str | None = None, *, dry_run: bool = False) -> Repaired:
        """Put right what does not fit the parts: counters, parts that wait for what will not come, jobs that should
        have ended. ``job``: the id, the beginning of one, or the key of a job in any state; without it, all jobs that
        go on, and ended ones that are not swept. ``dry_run``: only look.

        A job that has more or fewer parts than were planned is damaged: nothing of it is guessed, it is paused, and
        told in the result. Where nothing is wrong nothing is written. Safe beside workers. Raises `UnknownJob`.
        """
        from fanin.runtime.repair import repair

        chosen = None if job is None else self.store.read(lambda: find_job(job, self.store.buckets))
        return repair(self.store, chosen, dry_run=dry_run)

    def run_worker(
        self, *, until_idle: bool = False, concurrency: int = 4, queues: Sequence[str] | None = None
    ) -> None:
        """Work in this thread until interrupted, or until nothing is left to do."""
        from fanin.runtime.worker import Worker

        Worker(self, queues=queues, concurrency=concurrency).run(until_idle=until_idle)

    def close(self) -> None:
        """Close the connections. The application can be used again afterwards. Parts that a `Job.wait` has begun in
        this process are waited for."""
        while self.leaving:
            self.leaving.pop().join()
        self.store.close()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create(self, new: NewJob, spool: Spool, within: Any) -> None:
        if within is None:
            self.store.run(spool.create(new))
        else:
            self.store.run_in(within, spool.create(new)())

    def _feed(self, new: NewJob, payloads: Iterable[Wanted]) -> None:
        feed = Feed(new, self.max_parts)
        self.store.run(feed.open())
        for payload in payloads:
            if (append := feed.add(payload)) is not None:
                self.store.run(append)
            if feed.ended:
                return
        if (append := feed.flush()) is not None:
            self.store.run(append)
        self.store.run(feed.seal())
