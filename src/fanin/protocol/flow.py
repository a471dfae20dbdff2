"""Flows as a whole: created in one transaction, stopped, run again from what failed, set right by a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from fanin.domain import flows, limits
from fanin.domain.errors import BadOption, KeyConflict, NotAllowedNow, UnknownJob
from fanin.domain.flows import FlowRow, StepRow, StepSpec, Undo
from fanin.domain.model import NewJob
from fanin.domain.states import FLOW_STATES, JOB_ENDED, STEP_UNDONE, check_look
from fanin.protocol import advance, close, deeds, effect, redrive, submit
from fanin.protocol.advance import Flow
from fanin.protocol.born import Born
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Again, Room, Txn, TxnFactory, one
from fanin.protocol.submit import Chunks

SQL = Room("flow")

STOPPED = "its flow has been stopped"
"""Why the jobs of its running steps are cancelled."""


class NewStep(msgspec.Struct, frozen=True):
    """A step as its flow is made; ``after`` and ``leads_to`` are step numbers, ``job_id`` is given where it starts at
    once."""

    n: int
    name: str
    condition: str
    after: list[int]
    leads_to: list[int]
    spec: str
    undo: str | None
    job_id: str | None


class NewFlow(msgspec.Struct, frozen=True):
    """A flow as it is made, with the jobs (job, parts, chunks) of the steps that start at once."""

    id: str
    bucket: int
    name: str
    key: str | None
    request_hash: str
    steps: Sequence[NewStep]
    jobs: Sequence[tuple[NewJob, int, Chunks]]
    fail_fast: bool = True
    give_up_policy: str = "abandon"
    give_up_after: float | None = None
    give_up_at: float | None = None
    """A moment, where it is not so long after the start."""
    meta: str | None = None
    listeners: str | None = None
    """By the type of the event, the jobs (`Spec`) that listen to it."""


def create(flow: NewFlow) -> Txn[bool]:
    """Create the flow with all steps and the jobs of the first ones. True if it is new, False if it stands there.

    Raises `KeyConflict` if the key, or the place in a handler, stands for another content, `NotAllowedNow` while rows
    of a purged flow of this id are left.
    """
    running = sum(step.job_id is not None for step in flow.steps)
    fresh = yield SQL.create_flow(
        bucket=flow.bucket, id=flow.id, name=flow.name, key=flow.key, request_hash=flow.request_hash,
        fail_fast=flow.fail_fast, give_up_policy=flow.give_up_policy, running=running, meta=flow.meta,
        give_up_after=flow.give_up_after, give_up_at=flow.give_up_at, listeners=flow.listeners,
    )  # fmt: skip
    if not fresh:
        ((standing,),) = yield SQL.find_flow(bucket=flow.bucket, id=flow.id)
        if standing != flow.request_hash:
            raise KeyConflict(
                f"flow {flow.id} was started before with other steps, items or options: ask for the same in every "
                "attempt of the part, or give each flow a key"
                if flow.key is None
                else f"the key {flow.key!r} was used before for another flow: choose another key, or ask for the "
                "same steps, items and options"
            )
        return False
    if (yield SQL.rows_left(bucket=flow.bucket, id=flow.id)):
        raise NotAllowedNow(
            f"the flow of {flow.key or flow.id!r} was purged, and its rows are still being removed: try again when "
            "`fanin purge` is done" + (", or choose another key" if flow.key else "")
        )
    rows = [
        (
            step.n, step.name, "waiting" if step.job_id is None else "running", len(step.after), step.condition,
            _json(step.after), _json(step.leads_to), step.spec, step.undo, step.job_id,
        )
        for step in flow.steps
    ]  # fmt: skip
    yield SQL.create_steps(bucket=flow.bucket, flow_id=flow.id, rows=rows)
    for job, parts, chunks in flow.jobs:
        yield from submit.create(job, parts, chunks)
    if flow.give_up_at is not None or flow.give_up_after == 0:
        yield from _stop_if_late(flow)
    return True


def _stop_if_late(flow: NewFlow) -> Txn[None]:
    """A deadline that has passed before the flow began stops it at once: no worker starts what stands first."""
    if (yield from give_up(flow.bucket, flow.id)):
        for job, *_ in flow.jobs:
            yield from close.stop(flow.bucket, job.id, STOPPED)


def cancel(bucket: int, flow_id: str, done: Deed | None = None) -> Txn[bool]:
    """Stop a flow: nothing more starts, its running jobs are to be cancelled, and what was done is undone where that
    was provided for. False if it does not run any more. Raises `UnknownJob`.

    Without a deed (``done``) it must not be said again where a later run may stand.
    """
    flow = yield from _locked(bucket, flow_id)
    if done is None:
        return (yield from _stop(flow, "cancelled", None))
    if (yield from deeds.written(bucket, flow_id, done)) is not None:
        return True
    stopped = yield from _stop(flow, "cancelled", done.reason)
    if stopped:
        yield from deeds.write_down(bucket, flow_id, "cancelled", done)
    return stopped


def give_up(bucket: int, flow_id: str) -> Txn[bool]:
    """Stop a flow whose deadline has passed. False if it has ended, or the deadline was moved."""
    flow = yield from _locked(bucket, flow_id)
    return (yield from _stop(flow, "gave_up", "the deadline has passed"))


def overdue(bucket: int) -> Txn[list[str]]:
    """Flows to `give_up`."""
    return [flow_id for (flow_id,) in (yield SQL.overdue_flows(bucket=bucket, limit=limits.REAP_PARTS))]


def left_running(bucket: int) -> Txn[list[str]]:
    """Jobs of stopped flows, to `end_running`."""
    return [job_id for (job_id,) in (yield SQL.left_running(bucket=bucket, limit=limits.REAP_PARTS))]


def end_running(bucket: int, job_id: str) -> Txn[bool]:
    """Cancel a job of a stopped flow. False if it has ended, or its flow is in a later run than that which was stopped.

    As long as its stripes are held the job does not end, so a flow that is ending stays in its run until we commit.
    """
    yield close.SQL.lock_all_stripes(bucket=bucket, job_id=job_id)
    if not (yield SQL.is_stopped(bucket=bucket, job_id=job_id)):
        return False
    return (yield from close.stop(bucket, job_id, STOPPED))


def run_again(
    bucket: int, flow_id: str, run: int, give_up_after: float | None = None, done: Deed | None = None
) -> Txn[int]:
    """Open the run after ``run`` of a flow that failed or was cancelled: the failed steps go on with what they lack,
    those behind others when these have ended; what was skipped waits again. The number of the new run; of a later one,
    if it stands already.

    Raises `NotAllowedNow` if the flow goes on, has completed or was undone, or if no failed step can be run again.
    """
    found = yield from row(bucket, flow_id)
    if found is None:
        raise UnknownJob(f"there is no flow {flow_id}")
    if found.run > run:  # before any job is touched
        return found.run

    def again() -> Txn[int]:
        return run_again(bucket, flow_id, run, give_up_after, done)

    steps = yield SQL.steps(bucket=bucket, flow_id=flow_id)
    revived = []
    behind: dict[int, list[int]] = {}
    for n, status, after, job_id, ended_no, spec, lacks in sorted(steps, key=lambda row: str(row[3])):
        before = msgspec.json.decode(after, type=list[int])
        too_old = job_id is not None and ended_no is None  # it stays skipped
        if (status == "skipped" and not too_old) or (status == "failed" and before and lacks):
            behind[n] = before
        elif status == "failed" and not before:
            wait = msgspec.json.decode(spec, type=StepSpec).first_give_up_after
            if (yield from _revive(bucket, job_id, again, done, wait)):
                revived.append(n)
    flow = yield from _locked(bucket, flow_id)
    if flow.run > run:
        raise Again(again)
    if flow.status not in ("failed", "cancelled"):
        raise NotAllowedNow(f"flow {flow_id} is {flow.status}: it can be run again when it has failed or was cancelled")
    if (yield SQL.steps(bucket=bucket, flow_id=flow_id)) != steps:  # one has ended since we looked
        raise Again(again)
    waiting = flows.waiting_again(behind, revived)
    ready = sorted(n for n, needs in waiting.items() if needs == 0)
    if not revived and not ready and any(status == "failed" for _, status, *_ in steps):
        raise NotAllowedNow(f"flow {flow_id}: no step of it can be run again")
    failed = yield SQL.run_again(bucket=bucket, flow_id=flow_id, steps=revived)
    rows = [(n, max(needs, 1)) for n, needs in sorted(waiting.items())]
    wait_again = yield SQL.wait_again(bucket=bucket, flow_id=flow_id, rows=rows)
    assert (len(failed), len(wait_again)) == (len(revived), len(rows)), "a step changed under the lock of its flow"
    ((new_run,),) = yield SQL.reopen_flow(
        bucket=bucket, flow_id=flow_id, running=len(revived), run=run, give_up_after=give_up_after
    )
    if done is not None:  # before what follows, so that it is told before it
        yield from deeds.write_down(bucket, flow_id, "redriven", done)
    if ready or not revived:  # all that stands before them is done, or all of the flow: it was stopped in its last step
        flow = yield from _locked(bucket, flow_id)
        yield from advance.start_following(flow, ready)
        if flow.running == 0:
            yield from advance.wrap_up(flow)
        yield from flow.save()
        yield from _create(bucket, flow.born)
    return int(new_run)


def resolve(bucket: int, flow_id: str, name: str, status: str, done: Deed) -> Txn[None]:
    """A person has undone step ``name``, found that there is nothing to undo, or gives it up: the undoing goes on. The
    reason stays with the step.

    Raises `NotAllowedNow`, also while it is not known whether an effect of the step was done, and `UnknownJob`.
    """
    if status not in STEP_UNDONE:
        raise BadOption(f"status={status!r}: give {' or '.join(STEP_UNDONE)}")
    flow = yield from _locked(bucket, flow_id)
    if (yield from deeds.written(bucket, flow_id, done)) is not None:
        return
    _check_attended(flow)
    found = yield SQL.settle_by_hand(bucket=bucket, flow_id=flow_id, name=name, status=status, note=done.reason)
    if not found:
        raise NotAllowedNow(f"step {name!r} of flow {flow_id} is not one that a person has to undo")
    yield from deeds.write_down(bucket, flow_id, status, done, found[0][0])
    if status == "undone":
        step_job = found[0][1]
        for job_id in (yield from advance.family(bucket, step_job)):
            yield advance.SQL.hold_effects(bucket=bucket, job_id=job_id)
            yield from effect.cancel(bucket, job_id)
            yield advance.SQL.reverse_effects(bucket=bucket, job_id=job_id, by_hand=True)
        if (left := (yield from advance.unsettled(bucket, step_job))) is not None:
            raise NotAllowedNow(
                f"step {name!r} of flow {flow_id} is not undone yet: {left[0]} is {left[1]}. Wait until it is over; "
                "what nobody knows has to be settled first (fanin effects settle)"
            )
    yield from _go_on(flow)


def undo_again(bucket: int, flow_id: str, name: str, done: Deed) -> Txn[None]:
    """Run what failed to undo step ``name`` once more. Raises `NotAllowedNow`, `UnknownJob`."""

    def again() -> Txn[None]:
        return undo_again(bucket, flow_id, name, done)

    found = yield SQL.step_named(bucket=bucket, flow_id=flow_id, name=name)
    if (yield from deeds.written(bucket, flow_id, done)) is not None:
        return
    if not found or found[0][1] != "undo_failed":
        raise NotAllowedNow(f"step {name!r} of flow {flow_id} is not one whose undo has failed")
    n, _, job_id = found[0]
    revived = yield from _revive(bucket, job_id, again, done)
    flow = yield from _locked(bucket, flow_id)
    if (yield from deeds.written(bucket, flow_id, done)) is not None:  # it was under way when we looked
        raise Again(again)
    if not revived:
        raise NotAllowedNow(
            f"the undo of step {name!r} of flow {flow_id} has nothing that could be run again: undo it by hand, then "
            "say (FlowRun.resolve)"
        )
    _check_attended(flow)
    if not (yield SQL.undo_again(bucket=bucket, flow_id=flow_id, n=n)):
        raise NotAllowedNow(f"step {name!r} of flow {flow_id} was resolved meanwhile")
    flow.status = "compensating"
    flow.running += 1
    yield from flow.save()
    yield from deeds.write_down(bucket, flow_id, "undo_again", done, n)


def _revive(
    bucket: int, job_id: str, of: TxnFactory[Any], done: Deed | None, give_up_after: float | None = None
) -> Txn[bool]:
    """Run what failed of a job again, as a part of the transaction ``of``. False if there is nothing, or somebody else
    has opened a later run."""
    found = yield SQL.job_of(bucket=bucket, id=job_id)
    if not found:
        raise UnknownJob(f"there is no job {job_id}: its flow was purged")
    run, status, attempts = found[0]
    if status not in JOB_ENDED:
        return False
    try:
        opened = yield from redrive.redrive(bucket, job_id, run, attempts, None, give_up_after, done, owned=True)
    except Again:  # not only that: all of this
        raise Again(of) from None
    if opened != run + 1:
        return False
    if one((yield SQL.job_of(bucket=bucket, id=job_id)))[1] in JOB_ENDED:  # it was opened by another, and is over
        raise Again(of)
    return True


def row(bucket: int, flow_id: str) -> Txn[FlowRow | None]:
    """One flow."""
    rows = yield SQL.row(bucket=bucket, id=flow_id)
    return FlowRow(*rows[0]) if rows else None


def newest(buckets: Iterable[int], status: str | None, limit: int) -> Txn[list[FlowRow]]:
    """The newest flows over all buckets, optionally of one state.

    Raises `BadOption` for a state or a limit that cannot be.
    """
    check_look(status, FLOW_STATES, limit)
    found: list[FlowRow] = []
    for bucket in buckets:
        found += [FlowRow(*one) for one in (yield SQL.newest(bucket=bucket, status=status, limit=limit))]
    return sorted(found, key=lambda flow: (flow.created_at, flow.id), reverse=True)[:limit]


def like(buckets: Iterable[int], text: str) -> Txn[list[str]]:
    """At most a few ids of flows that begin with ``text``."""
    prefix = text.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_") + "%"
    found: list[str] = []
    for bucket in buckets:
        found += [flow_id for (flow_id,) in (yield SQL.like(bucket=bucket, prefix=prefix))]
    return found


def steps(bucket: int, flow_id: str) -> Txn[list[StepRow]]:
    """The steps of a flow, in the order in which they were declared."""
    return [
        StepRow(
            n, name, status, needs, condition, msgspec.json.decode(after, type=list[int]),
            msgspec.json.decode(spec, type=StepSpec), msgspec.json.decode(undo, type=Undo) if undo else None, job_id,
            undo_job_id, ended_no, note,
        )
        for n, name, status, needs, condition, after, spec, undo, job_id, undo_job_id, ended_no, note in (
            yield SQL.step_rows(bucket=bucket, flow_id=flow_id)
        )
    ]  # fmt: skip


def _go_on(flow: Flow) -> Txn[None]:
    """What else is to be undone."""
    flow.status = "compensating"
    yield from advance.undo_next(flow)
    yield from flow.save()
    yield from _create(flow.bucket, flow.born)


def _stop(flow: Flow, cause: str, reason: str | None) -> Txn[bool]:
    if flow.status != "running":
        return False
    if cause == "gave_up" and not one((yield SQL.overdue(bucket=flow.bucket, flow_id=flow.id)))[0]:
        return False
    yield from flow.stop(cause, reason)  # a flow that runs has a step that runs: its end goes on
    yield from flow.save()
    return True


def _create(bucket: int, born: Sequence[Born]) -> Txn[None]:
    for child in born:
        yield from child.create(bucket)


def _check_attended(flow: Flow) -> None:
    if flow.status != "needs_attention":
        raise NotAllowedNow(f"flow {flow.id} is {flow.status}: nothing of it waits for a person")


def _locked(bucket: int, flow_id: str) -> Txn[Flow]:
    flow = yield from advance.lock(bucket, flow_id)
    if flow is None:
        raise UnknownJob(f"there is no flow {flow_id}")
    return flow


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
