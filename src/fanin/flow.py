"""Flows: steps that follow one another by a plan, declared as a whole and checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fanin.domain import flows, identity, limits
from fanin.domain.durations import Duration, Instant, deadline, seconds
from fanin.domain.errors import BadOption, JobFailed, LimitExceeded, NotAllowedNow, UnknownJob, shown
from fanin.domain.flows import EXPAND, FlowProgress, FlowRow, Plan, StepRow, StepSpec, Undo
from fanin.domain.model import NewJob, Spec
from fanin.domain.policy import check_quorum, make_policy, make_stale
from fanin.domain.timeline import Explanation
from fanin.job import Job, LocalWorker, deed
from fanin.protocol import deeds, explain, flow, read, watching
from fanin.protocol.advance import made_by, payload_of
from fanin.protocol.flow import NewFlow, NewStep
from fanin.runtime.codec import encode_plain
from fanin.runtime.fits import check_mapped, check_step, check_undo
from fanin.runtime.flow_timeline import flow_explanation
from fanin.runtime.joined import first_failure
from fanin.runtime.part import next_flow_id, running_part
from fanin.runtime.patience import Patience
from fanin.runtime.payloads import Spool
from fanin.runtime.successor import SUCCESSOR_PRIORITY
from fanin.runtime.task import Task, check_attempts, check_key, check_name, check_priority

if TYPE_CHECKING:
    from fanin.app import App


class Manual(msgspec.Struct, frozen=True):
    """What a person has to do to undo a step."""

    text: str


def manual(text: str) -> Manual:
    """For ``undo=``: nothing is run; the flow needs attention, and its undo carries the text. Raises `BadOption`."""
    return Manual(_said(text, f"manual({shown(text)})", "what is to be done"))


class Step:
    """One step of a flow that is being declared. Give it to ``after=``, or to `Flow.map` in the place of items."""

    def __init__(self, name: str, task: Task[..., Any], many: bool, after: list[Step | str], spec: StepSpec) -> None:
        self.name = name
        self.task = task
        self.many = many
        self.after = after
        self.spec = spec
        self.condition = "ok"
        self.undo: Undo | None = None
        self.spool: Spool | None = None
        self.policy = "{}"

    def __repr__(self) -> str:
        return f"<step {self.name}: {self.task.name}>"


class Flow:
    """A plan of steps. Nothing is written before `start`.

    Made by `App.flow`. A step starts when all steps that stand before it (``after``) have ended, and only then.
    """

    def __init__(
        self,
        app: App,
        name: str,
        *,
        key: str | None = None,
        give_up_after: Duration | None = None,
        give_up_at: Instant | None = None,
        give_up: str = "abandon",
        fail_fast: bool = True,
        meta: Any = None,
    ) -> None:
        self._app = app
        self.name = check_name(name, "flow name")
        if give_up not in ("proceed", "abandon"):
            raise BadOption(f"give_up={shown(give_up)}: 'proceed' (what is done stays) or 'abandon' (it is undone)")
        self.key = check_key(key)
        self._give_up_after, self._give_up_at = deadline(give_up_after, give_up_at)
        self._give_up = give_up
        if type(fail_fast) is not bool:
            raise BadOption(f"fail_fast={shown(fail_fast)}: give True or False")
        self._fail_fast = fail_fast
        self._meta = None if meta is None else encode_plain(meta, "meta", limits.PAYLOAD_BYTES)
        self._steps: dict[str, Step] = {}
        self._started = False
        self._part = running_part()
        if self.key is not None:
            self._id = identity.keyed_flow_id(self.key)
        else:
            self._id = identity.new_job_id() if self._part is None else next_flow_id(self._part)

    def step(
        self,
        task: Task[..., Any],
        *args: Any,
        name: str | None = None,
        after: Step | str | Sequence[Step | str] = (),
        on: str = "ok",
        undo: Task[..., Any] | Manual | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        give_up_after: Duration | None = None,
        stale_after: Duration | None = None,
        stale: str = "run",
    ) -> Step:
        """One call of ``task``. Its parameters that are annotated `Joined` receive the steps in ``after``, in that
        order (None for one that was skipped); ``args`` are the others.

        on: start if all steps before it were ``"ok"``, if one ``"failed"``, or for ``"any"`` end. undo: the task that
        takes the step's result back when the flow fails, or `manual`. give_up_after: from the moment when the step
        starts. stale_after, stale: if no worker has claimed it so long after all steps before it had ended, it is too
        old to start: ``"skip"`` it, or let it ``"fail"`` (default: it is run, however old).

        Raises `BadOption`, `BadPayload`, `NotAllowedNow` once the flow was started.
        """
        self._check_open()
        self._app._maker.own(task)
        before = _steps(after)
        joins = task.signature.joins
        if joins and len(joins) != len(before):
            raise BadOption(
                f"task {task.name}{task.signature} joins {len(joins)} steps, but after= names {len(before)}: give one "
                "for each of its parameters that are annotated Joined, in their order"
            )
        spec = StepSpec(
            self._spec(
                task.name,
                task.queue if queue is None else queue,
                task.attempts if attempts is None else attempts,
                task,
                priority,
                give_up_after,
                make_stale(stale_after, stale),
            ),
            call=task.signature.encode_rest(args, {}),
            joins=bool(joins),
        )
        return self._add(Step(self._free(name, task), task, False, before, spec), on, undo)

    def map(
        self,
        task: Task[..., Any],
        items: Step | Iterable[Any],
        *,
        name: str | None = None,
        after: Step | str | Sequence[Step | str] = (),
        on: str = "ok",
        undo: Task[..., Any] | Manual | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        stale_after: Duration | None = None,
        stale: str = "run",
    ) -> Step:
        """One part of ``task`` for each item.

        For the items, another step may stand: then a part is made for each of its results, or, where it is a single
        call, for each item of the list that it returned.

        For the other options see `step` and `App.map`; undo is run for each part that has succeeded.
        """
        self._check_open()
        self._app._maker.own(task)
        policy = msgspec.json.encode(make_policy(tolerate, fail_fast, sample, quorum, give_up)).decode()
        wait = None if give_up_after is None else seconds(give_up_after, "give_up_after")
        before = _steps(after)
        old = make_stale(stale_after, stale)
        if old[1] is not None and not before and not isinstance(items, Step):
            raise BadOption(
                f"stale={stale!r}: this step stands after no other, and its parts start one by one: give the flow "
                "give_up_after=, or let a step before it return the items"
            )
        plan = Plan(
            task=task.name, what="given", queue=task.queue if queue is None else check_name(queue, "queue"),
            attempts=task.attempts if attempts is None else check_attempts(attempts), policy=policy, give_up_after=wait,
            priority=check_priority(task.priority if priority is None else priority),
        )  # fmt: skip
        spool = None
        if isinstance(items, Step):
            plan = msgspec.structs.replace(plan, what="results" if items.many else "items")
            before = [items, *(step for step in before if step is not items)]
            check_mapped(items.task, items.name, items.many, task)
        else:
            spool = Spool(task.signature.encode_items(items), self._app.max_parts)
            check_quorum(quorum, len(spool))
            if before:
                plan = msgspec.structs.replace(plan, given=_few(spool, task))
        spec = StepSpec(self._spec(EXPAND, plan.queue, flows.EXPAND_ATTEMPTS, task, priority, None, old), plan=plan)
        step = Step(self._free(name, task), task, True, before, spec)
        step.spool, step.policy = (None if before else spool), policy
        return self._add(step, on, undo)

    def start(self, *, within: Any = None, run: bool = False) -> FlowRun:
        """Check the plan, write all of it in one transaction, and start the steps that stand first.

        within: a connection whose open transaction shall hold the flow. run: let `FlowRun.wait` run it in this process.
        Said again, also after `Unavailable` or a transaction that was rolled back, it is the same flow. A flow without
        a key that a handler declares is known by its place: the n-th that the part declares, in every attempt.

        Raises `BadOption`, `LimitExceeded`, `KeyConflict`, `NotAllowedNow` before anything is written.
        """
        new = self._new()
        if within is None:
            self._app.store.run(lambda: flow.create(new))
        else:
            self._app.store.run_in(within, flow.create(new))
        return FlowRun(self._app, new.id, run=run)

    def _check_open(self) -> None:
        if self._started:
            raise NotAllowedNow(
                f"flow {self.name!r} has been started, and its steps with it: declare all of them before start(), or "
                "make another flow"
            )

    def _new(self) -> NewFlow:
        if self.key is None and running_part() not in (None, self._part):
            raise BadOption(
                f"flow {self.name!r} has no key and was not declared in the handler that starts it, so another attempt "
                "could start another one: declare it there, or give it a key"
            )
        if not self._steps:
            raise BadOption(f"flow {self.name!r} has no steps: declare them with flow.step and flow.map")
        if len(self._steps) > limits.FLOW_STEPS:
            raise LimitExceeded(f"flow {self.name!r} has {len(self._steps)} steps, the limit is {limits.FLOW_STEPS}")
        named = {step.name: [self._named(one, step) for one in step.after] for step in self._steps.values()}
        for name, before in named.items():
            if len(set(before)) < len(before):
                raise BadOption(f"step {name!r} stands after {before}: name each step once")
            check_step(self._steps[name].task, [(one, self._steps[one].task) for one in before])
        flows.check_order(named)
        behind: dict[str, list[int]] = {name: [] for name in named}
        for n, before in enumerate(named.values()):
            for one in before:
                behind[one].append(n)
        flow_id = self._id
        bucket = self._app.store.bucket(flow_id)
        number = {name: n for n, name in enumerate(self._steps)}
        options: tuple[Any, ...] = (self._fail_fast, self._give_up, self._give_up_after)
        options += () if self._give_up_at is None else (f"at {self._give_up_at}",)
        hashed = identity.request_hash(self.name.encode(), str(options).encode())
        jobs, steps = [], []
        for name, step in self._steps.items():
            n, after = number[name], [number[one] for one in named[name]]
            job_id = None if after else identity.step_id(flow_id, n)
            if job_id is not None:
                jobs.append(_first_job(step, job_id, bucket, flow_id, n))
            spec, undo = (msgspec.json.encode(one).decode() for one in (step.spec, step.undo))
            digest = step.spool.digest if step.spool is not None else ""
            for piece in (name, spec, undo, step.condition, str(after), digest):
                hashed.update(piece.encode() + b"\0")
            steps.append(
                NewStep(n, name, step.condition, after, behind[name], spec, None if step.undo is None else undo, job_id)
            )
        listeners = self._app._maker.heard_by()
        self._started = True
        return NewFlow(
            id=flow_id, bucket=bucket, name=self.name, key=self.key, request_hash=hashed.hexdigest(), steps=steps,
            jobs=jobs, fail_fast=self._fail_fast, give_up_policy=self._give_up, give_up_after=self._give_up_after,
            give_up_at=self._give_up_at, meta=self._meta, listeners=listeners,
        )  # fmt: skip

    def _named(self, one: Step | str, of: Step) -> str:
        name = one if isinstance(one, str) else one.name
        if name not in self._steps or (isinstance(one, Step) and self._steps[name] is not one):
            raise BadOption(f"step {of.name!r} stands after {shown(name)}, which is no step of flow {self.name!r}")
        return name

    def _free(self, name: str | None, task: Task[..., Any]) -> str:
        if name is not None:
            if check_name(name, "step name") in self._steps:
                raise BadOption(f"flow {self.name!r} has a step {name!r} already: choose another name=")
            return name
        short = task.name.rpartition(".")[2]
        taken = [short, *(f"{short}-{n}" for n in range(2, len(self._steps) + 2))]
        return next(one for one in taken if one not in self._steps)

    def _spec(
        self,
        name: str,
        queue: str,
        attempts: int,
        task: Task[..., Any],
        priority: int | None,
        wait: Duration | None,
        old: tuple[float | None, str | None],
    ) -> Spec:
        rank = task.priority if priority is None else check_priority(priority)
        return Spec(
            task=name, step="step", queue=check_name(queue, "queue"), attempts=check_attempts(attempts),
            priority=min(rank + SUCCESSOR_PRIORITY, limits.PRIORITY_MAX),
            give_up_after=None if wait is None else seconds(wait, "give_up_after"),
            stale_after=old[0], stale=old[1],
        )  # fmt: skip

    def _add(self, step: Step, on: str, undo: Task[..., Any] | Manual | None) -> Step:
        if on not in flows.CONDITIONS:
            raise BadOption(f"on={shown(on)}: give one of {', '.join(flows.CONDITIONS)}")
        if on != "ok" and not step.after:
            raise BadOption(f"on={on!r} of step {step.name!r}: it stands after no other, so it starts at once")
        step.condition = on
        if isinstance(undo, Manual):
            step.undo = Undo(manual=undo.text)
        elif undo is not None:
            check_undo(self._app._maker.own(undo), step.task)
            step.undo = Undo(Plan(undo.name, "undo", undo.queue, undo.attempts, undo.priority), queue=undo.queue)
        self._steps[step.name] = step
        return step


class FlowRun:
    """A flow that was started."""

    def __init__(self, app: App, flow_id: str, run: bool = False) -> None:
        self._app = app
        self._run = run
        self.id = flow_id
        self._bucket = app.store.bucket(flow_id)

    def row(self) -> FlowRow:
        """All of the flow's own row. Raises `UnknownJob`."""
        found = self._app.store.read(lambda: flow.row(self._bucket, self.id))
        if found is None:
            raise UnknownJob(f"there is no flow {self.id}")
        return found

    @property
    def status(self) -> str:
        return self.row().status

    def steps(self) -> list[StepRow]:
        """The steps as they stand, in the order in which they were declared."""
        return self._app.store.read(lambda: flow.steps(self._bucket, self.id))

    def job(self, step: str) -> Job:
        """The job of a step that has started. Raises `UnknownJob`."""
        for found in self.steps():
            if found.name == step:
                if found.job_id is None:
                    yet = " yet" if found.status == "waiting" else ""
                    raise UnknownJob(f"step {step!r} of flow {self.id} is {found.status}: it has no job{yet}")
                return Job(self._app, self._made_by(found.job_id), run=self._run)
        raise UnknownJob(f"flow {self.id} has no step {shown(step)}: it has {', '.join(s.name for s in self.steps())}")

    def _made_by(self, job_id: str) -> str:
        """A step that maps over another has a job of one part, which makes the one that is meant."""
        first = self._app.store.read(lambda: read.job(self._bucket, job_id))
        if first is None or first.task != EXPAND:
            return job_id
        return self._app.store.read(lambda: made_by(self._bucket, job_id)) or job_id

    def jobs(self) -> Iterator[Job]:
        """The jobs of all steps that have started, and of what undoes them."""
        for step in self.steps():
            for job_id in (step.job_id, step.undo_job_id):
                if job_id is not None:
                    yield Job(self._app, job_id)

    def wait(self, timeout: Duration | None = None, *, progress: bool = False, run: bool | None = None) -> FlowRun:
        """Wait until the flow has ended, or needs attention.

        progress: show its steps live. run: work on the parts here meanwhile (default as given to `Flow.start`). Raises
        `WaitTimeout`; the flow goes on.
        """
        patience = Patience(f"flow {self.id}", timeout)
        with LocalWorker(self._app, self._run if run is None else run) as worker:
            if progress:
                from fanin.runtime.flow_progress import watch

                watch(worker.polls(self._progress, patience))
            else:
                for _ in worker.polls(self.row, patience):
                    pass
        return self

    def _progress(self) -> FlowProgress:
        from fanin.runtime.flow_progress import room

        found = self._app.store.read(lambda: watching.progress(self._bucket, self.id, room()))
        if found is None:
            raise UnknownJob(f"there is no flow {self.id}")
        return found

    def result(self, step: str | None = None, timeout: Duration | None = None) -> Any:
        """Wait, and return the result of a step: by default of the only one that no other follows.

        Raises `JobFailed` if the flow did not complete, with the first failure, or if the step was skipped, and
        `BadOption` if it is not clear which step is meant.
        """
        found = self.wait(timeout).row()
        if found.status != "completed":
            why = f"{found.reason or found.cause}{self._first_failure() if found.cause == 'failed' else ''}"
            raise JobFailed(f"flow {self.id} {found.status}: {why}{''.join(self._not_undone())}")
        steps = self.steps()
        if step is None:
            followed = {n for one in steps for n in one.after}
            last = [one.name for one in steps if one.n not in followed]
            if len(last) != 1:
                raise BadOption(f"several steps are the last ones: {', '.join(last)}. Say which: result(step=…)")
            step = last[0]
        if any(one.name == step and one.job_id is None for one in steps):
            raise JobFailed(f"flow {self.id} completed, and its step {step!r} was skipped: it has no result")
        return self.job(step).result()

    def _first_failure(self) -> str:
        """Of the step that the flow's reason names: the first to fail for which no other provides."""
        steps = self.steps()
        for step in sorted((one for one in steps if one.ended_no is not None), key=lambda one: one.ended_no or 0):
            provided = flows.handled([one.condition for one in steps if step.n in one.after])
            if not provided and (job := self.job(step.name)).status != "completed":
                return _first_of(job)
        return ""

    def _not_undone(self) -> Iterator[str]:
        """What waits for a person, beside why the flow did not complete."""
        for step in self.steps():
            if step.status == "undo_failed" and step.undo_job_id is not None:
                failure = _first_of(Job(self._app, self._made_by(step.undo_job_id)))
                yield f"; the undo of step {step.name!r} failed: {step.note}{failure}"
            elif step.status == "manual" and step.undo is not None:
                yield f"; step {step.name!r} is to be undone by a person: {step.undo.manual}"

    def explain(self) -> Explanation:
        """What happened to the flow in the order of time: when each step started and ended, and why; what operators
        did; the end of each run. Raises `UnknownJob`."""
        found = self._app.store.read(lambda: explain.known_flow(self._bucket, self.id))
        return flow_explanation(self.id, found)

    def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Stop the flow: nothing more starts, what runs is cancelled, and what is done is undone where its step says
        how. False if it did not run any more.

        reason, by: why, and who says so (default: the user and host of this process); both for people. Raises
        `BadOption`.
        """
        done = deed(by, reason)
        stopped = self._app.store.run(lambda: flow.cancel(self._bucket, self.id, done))
        for step in self.steps() if stopped else ():
            if step.status == "running" and (job_id := step.job_id) is not None:
                self._app.store.run(lambda: flow.end_running(self._bucket, job_id))
        return stopped

    def redrive(
        self, give_up_after: Duration | None = None, *, reason: str | None = None, by: str | None = None
    ) -> int:
        """Run a flow again that failed or was cancelled, and of which nothing was undone.

        Its failed steps go on with the parts that they lack, then what follows them. The number of the new run. Raises
        `NotAllowedNow`, `BadOption`.
        """
        done = deed(by, reason)
        wait = None if give_up_after is None else seconds(give_up_after, "give_up_after")
        run = self.row().run
        return self._app.store.run(lambda: flow.run_again(self._bucket, self.id, run, wait, done))

    def resolve(self, step: str, note: str, *, nothing_to_undo: bool = False, by: str | None = None) -> None:
        """Say that a person has undone a step, or found nothing to undo; the undoing goes on.

        Raises `NotAllowedNow`, also if it is to be undone and an effect of it is still under way or `unknown` (`fanin
        effects settle`), and `BadOption`.
        """
        self._settle(step, "nothing_to_undo" if nothing_to_undo else "undone", note, by)

    def abandon_undo(self, step: str, note: str, *, by: str | None = None) -> None:
        """Give up on the undo of a step: it stays ``not_undone``, for the reason in ``note``; the undoing goes on.

        What is known of its effects stays as it is. Raises `NotAllowedNow`, `BadOption`.
        """
        self._settle(step, "not_undone", note, by)

    def _settle(self, step: str, status: str, note: str, by: str | None) -> None:
        done = deed(by, _said(note, f"note={shown(note)}", "what was done, or why not"))
        _check_step_name(step)
        self._app.store.run(lambda: flow.resolve(self._bucket, self.id, step, status, done))

    def undo_again(self, step: str, note: str | None = None, *, by: str | None = None) -> None:
        """Run what failed to undo a step once more; ``note``: why it may succeed now. Raises `NotAllowedNow`,
        `BadOption`."""
        done = deed(by, note)
        _check_step_name(step)
        self._app.store.run(lambda: flow.undo_again(self._bucket, self.id, step, done))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FlowRun) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<FlowRun {self.id}>"


def _first_of(job: Job) -> str:
    row = job.row()
    first = first_failure(job._app.store, job.id, row.batch) if row.status == "failed" else None
    return "" if first is None else f": {first}"


def _said(text: Any, where: str, what: str) -> str:
    """What a person is told, or says. Raises `BadOption`."""
    if not isinstance(text, str) or not text.strip() or len(text) > limits.REASON_CHARS or not deeds.storable(text):
        raise BadOption(f"{where}: say in 1 to {limits.REASON_CHARS} characters {what}, no NUL or lone surrogate")
    return str(text)


def _check_step_name(step: Any) -> None:
    if not isinstance(step, str) or not deeds.storable(step):
        raise BadOption(f"step={shown(step)}: give the name of a step of this flow, as FlowRun.steps() has it")


def _steps(after: Any) -> list[Step | str]:
    given = [after] if isinstance(after, Step | str) else after
    if isinstance(given, Sequence) and all(isinstance(one, Step | str) for one in given):
        return list(given)
    raise BadOption(f"after={shown(after)}: give a step of this flow, its name, or a list of them")


def _few(spool: Spool, task: Task[..., Any]) -> list[str]:
    """Items that stand in the plan itself, because their step starts later."""
    found = [payload for chunk in spool.chunks() for payload in chunk]
    size = sum(map(len, found))
    if size > limits.PAYLOAD_BYTES:
        raise LimitExceeded(
            f"the items of task {task.name} have {size} bytes, and {limits.PAYLOAD_BYTES} is the limit for a step that "
            "starts later: let a step before it return them, and map over that step"
        )
    return found


def _first_job(step: Step, job_id: str, bucket: int, flow_id: str, n: int) -> tuple[NewJob, int, Any]:
    """The job of a step that starts at once."""
    spec, plan = step.spec.spec, step.spec.plan
    if plan is not None and step.spool is not None:
        new = NewJob(
            id=job_id, bucket=bucket, task=plan.task, queue=plan.queue, priority=plan.priority,
            attempts=plan.attempts, policy=step.policy, give_up_after=plan.give_up_after, step="step",
            flow_id=flow_id, flow_step=n,
        )  # fmt: skip
        spool = step.spool
    else:
        new = NewJob(
            id=job_id, bucket=bucket, task=spec.task, queue=spec.queue, priority=spec.priority, attempts=spec.attempts,
            give_up_after=spec.give_up_after, step="step", stale_after=spec.stale_after, stale=spec.stale,
            flow_id=flow_id, flow_step=n,
        )  # fmt: skip
        spool = Spool([payload_of(step.spec, [])], 1)
    return spool.sealed(new), len(spool), spool.chunks
