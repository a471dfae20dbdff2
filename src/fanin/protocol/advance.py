"""T15: a job that runs a step of a flow has ended. Under the flow's lock: what follows it starts, or the flow ends, or
what has been done is undone, step by step in the reverse order.

    advance -> the step has its end
            -> the steps that waited for it alone start, or are skipped
            -> nothing runs any more: the flow completes, fails, or begins to undo
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from fanin.domain import flows, identity, limits
from fanin.domain.events import PAYLOAD_VERSION
from fanin.domain.flows import EXPAND, StepSpec, Undo
from fanin.domain.model import Spec
from fanin.domain.states import FLOW_LIVE, JOB_ENDED
from fanin.protocol import effect, redrive
from fanin.protocol.born import Born
from fanin.protocol.steps import Room, Row, Txn, one

SQL = Room("advance")


class Moved(NamedTuple):
    """A job of a flow that has just ended."""

    flow_id: str
    n: int
    job_id: str
    end: str
    """``done``, ``failed``, or ``skipped`` if it was too old when it would have started."""
    said: str
    """Why it did not complete, for people."""


class Flow:
    """A flow under its lock: what is read once, changed here, and saved once."""

    def __init__(self, bucket: int, flow_id: str, row: Row) -> None:
        self.bucket = bucket
        self.id = flow_id
        (
            self.name, self.key, self.status, self.cause, self.reason, self.run, self.fail_fast, self.give_up_policy,
            self.running, self.failures, self.ended, self.events, self.listeners,
        ) = row  # fmt: skip
        self.was = self.status
        self.born: list[Born] = []
        self.said: list[tuple[str, str, int, str]] = []
        """(event key, type, seq, payload)"""

    def stop(self, cause: str, reason: str | None) -> Txn[None]:
        """From now on nothing new is started."""
        self.status, self.cause, self.reason = "ending", cause, reason
        yield SQL.skip_waiting(bucket=self.bucket, flow_id=self.id)

    def save(self) -> Txn[None]:
        one(
            (
                yield SQL.save_flow(
                    bucket=self.bucket, flow_id=self.id, status=self.status, cause=self.cause, reason=self.reason,
                    running=self.running, failures=self.failures, ended=self.ended, events=self.events,
                    live=self.status in FLOW_LIVE, was=self.was,
                )
            )
        )  # fmt: skip
        for key, kind, seq, payload in self.said:
            yield SQL.announce(bucket=self.bucket, event_key=key, flow_id=self.id, seq=seq, type=kind, payload=payload)


def lock(bucket: int, flow_id: str) -> Txn[Flow | None]:
    """The flow, which nobody else changes until this transaction ends. None if there is no such flow."""
    rows = yield SQL.lock_flow(bucket=bucket, flow_id=flow_id)
    return Flow(bucket, flow_id, rows[0]) if rows else None


def advance(bucket: int, moved: Sequence[Moved]) -> Txn[list[Born]]:
    """What follows the ends of these jobs. The jobs that start by it, to be created last."""
    born: list[Born] = []
    for flow_id, group in groupby(sorted(moved), key=lambda one: one.flow_id):
        flow = yield from lock(bucket, flow_id)
        assert flow is not None, f"there is no flow {flow_id} of a job that runs for it"
        for end in group:
            yield from _ended(flow, end)
        yield from flow.save()
        born += flow.born
    return born


def wrap_up(flow: Flow) -> Txn[None]:
    """Nothing of the flow runs. It has completed, or it is undone as far as it came, or it just ends."""
    if flow.status == "running" and not flow.failures:
        yield from _finish(flow, "completed")
        return
    if flow.status == "running":  # its other branches were let run on
        yield from flow.stop("failed", flow.reason)
    if flow.cause == "gave_up" and flow.give_up_policy == "proceed":
        yield from _finish(flow, "completed")
    elif one((yield SQL.undoable(bucket=flow.bucket, flow_id=flow.id)))[0]:
        flow.status = "compensating"
        yield from undo_next(flow)
    else:
        yield from _finish(flow, "cancelled" if flow.cause == "cancelled" else "failed")


def undo_next(flow: Flow) -> Txn[None]:
    """Begin to undo the last of the steps that are not undone; settle those that need no undo on the way.

    One that a person undoes holds up those before it, as a job would: what they have done may be what it stands on.
    """
    while rows := (yield SQL.next_undo(bucket=flow.bucket, flow_id=flow.id)):
        n, name, text, job_id = rows[0]
        undo = msgspec.json.decode(text, type=Undo) if text else None
        something = False
        for found in (yield from family(flow.bucket, job_id)):
            yield SQL.hold_effects(bucket=flow.bucket, job_id=found)
            yield from effect.cancel(flow.bucket, found)  # before it is looked what has been called
            something |= one((yield SQL.took_effect(bucket=flow.bucket, job_id=found)))[0]
        status = "nothing_to_undo"
        if undo is not None and something:
            if undo.plan is not None:
                yield from _begin_undo(flow, n, name, undo, job_id)
                return
            status = "manual"
        one((yield SQL.settle_step(bucket=flow.bucket, flow_id=flow.id, n=n, status=status)))
        if status == "manual":
            break
    ((left,),) = yield SQL.unsettled(bucket=flow.bucket, flow_id=flow.id)
    yield from _finish(flow, "needs_attention" if left else "compensated")


def _ended(flow: Flow, end: Moved) -> Txn[None]:
    rows = yield SQL.end_step(
        bucket=flow.bucket, flow_id=flow.id, n=end.n, job_id=end.job_id,
        status=end.end, ended_no=None if end.end == "skipped" else flow.ended + 1,
    )  # fmt: skip
    if not rows:
        yield from _undone(flow, end)
        return
    flow.ended += end.end != "skipped"
    flow.running -= 1
    leads_to = msgspec.json.decode(rows[0][0], type=list[int])
    said = f"step {rows[0][1]!r}: {end.said}"
    if end.end == "failed" and flow.status == "running":
        conditions: list[str] = []
        for n in leads_to:
            conditions += one((yield SQL.condition(bucket=flow.bucket, flow_id=flow.id, n=n)))
        if not flows.handled(conditions):
            flow.failures += 1
            flow.reason = flow.reason or said
            if flow.fail_fast:
                yield from flow.stop("failed", said)
    if flow.status == "running":
        yield from start_following(flow, leads_to)
    if flow.running == 0:
        yield from wrap_up(flow)


def _undone(flow: Flow, end: Moved) -> Txn[None]:
    """It was an undo: the step is undone, unless a part of the undo has not succeeded, or something of the step still
    stands that no undo accounts for.

    Or it was the job of a step that has ended before, which moves nothing.
    """
    rows = yield SQL.undoing(bucket=flow.bucket, flow_id=flow.id, n=end.n, job_id=end.job_id)
    if not rows:
        return
    (job_id,) = one(rows)
    said = end.said if end.end != "done" else (yield from _not_undone(flow.bucket, end.job_id))
    if said is None:
        for found in (yield from family(flow.bucket, job_id)):
            yield SQL.hold_effects(bucket=flow.bucket, job_id=found)
            yield from effect.cancel(flow.bucket, found)
            yield SQL.reverse_effects(bucket=flow.bucket, job_id=found, by_hand=False)
            for idx, name, stands in (yield SQL.standing_effect(bucket=flow.bucket, job_id=found)):
                said = _stands(identity.effect_key(found, idx, name), stands)
    status = "undone" if said is None else "undo_failed"
    ((undone,),) = yield SQL.end_undo(
        bucket=flow.bucket, flow_id=flow.id, n=end.n, job_id=end.job_id, status=status, note=said
    )
    flow.running -= 1
    if said is None:
        yield from undo_next(flow)
    else:  # the flow's own reason stays why it did not complete
        yield from _finish(flow, "needs_attention", f"; the undo of step {undone!r} failed: {said}")


def _not_undone(bucket: int, undo_id: str) -> Txn[str | None]:
    """What an undo has left, though it completed: somebody has finished it, or a job below it, or a rule let it."""
    for found in (yield from family(bucket, undo_id)):
        for (status,) in (yield SQL.incomplete(bucket=bucket, job_id=found)):
            return (
                f"job {found} of its undo is {status}, and not all of its parts have succeeded: undo by hand what is "
                "left, then say so (FlowRun.resolve)"
            )
    return None


def _stands(key: str, status: str) -> str:
    if status == "done":
        return (
            f"effect {key} was done by a part that did not succeed, so no undo has taken it back: undo it by hand, "
            "then say so (FlowRun.resolve)"
        )
    return (
        f"effect {key} was asked for again and is {status}, so it may be done after its undo: see what became of it, "
        "undo it by hand, then say so (FlowRun.resolve)"
    )


def start_following(flow: Flow, leads_to: Sequence[int]) -> Txn[None]:
    """A step has ended that led to these: those that wait for no other start, or are skipped, and so on behind them."""
    pending = sorted(leads_to, reverse=True)
    while pending:
        n = pending.pop()
        for name, needs, condition, after, behind, spec, job_id in (
            yield SQL.need_less(bucket=flow.bucket, flow_id=flow.id, n=n)
        ):
            if needs == 0 and not (yield from _start(flow, n, name, condition, after, spec, job_id)):
                pending += sorted(msgspec.json.decode(behind, type=list[int]), reverse=True)


def _start(flow: Flow, n: int, name: str, condition: str, after: str, spec: str, standing: str | None) -> Txn[bool]:
    """False if the step is skipped. ``standing``: its job from an earlier run of the flow."""
    numbers = msgspec.json.decode(after, type=list[int])
    before = yield SQL.before(bucket=flow.bucket, flow_id=flow.id, steps=numbers)
    if not flows.starts(condition, [row[1] for row in before]):
        one((yield SQL.skip_step(bucket=flow.bucket, flow_id=flow.id, n=n)))
        return False
    said = msgspec.json.decode(spec, type=StepSpec)
    rows = {row[0]: row for row in before}
    facts = []
    for number in numbers[: said.reads(len(numbers))]:
        facts.append((yield from _facts(flow, rows[number])))
    job_id = standing or identity.step_id(flow.id, n)
    one((yield SQL.start_step(bucket=flow.bucket, flow_id=flow.id, n=n, job_id=job_id)))
    flow.running += 1
    told = payload_of(said, facts)
    if standing is None:
        flow.born.append(_job(flow, n, job_id, said.spec, told))
    else:
        yield from redrive.tell_again(flow.bucket, job_id, said.spec, told, payload_of(said, facts, anew=True))
    return True


def payload_of(step: StepSpec, facts: Sequence[dict[str, Any] | None], anew: bool = False) -> str:
    """What the one part of the step's first job gets. ``anew``: other facts than in an earlier run."""
    if step.plan is not None:
        return _json([{"plan": step.plan, "sources": facts, **({"anew": True} if anew else {})}])
    call = msgspec.Raw(step.call.encode()) if step.call is not None else {}
    return _json({"joins": facts, "call": call})


def _begin_undo(flow: Flow, n: int, name: str, undo: Undo, job_id: str) -> Txn[None]:
    """One part for each part of the step that succeeded, by `EXPAND`, like any step that maps over another."""
    undo_id = identity.undo_id(flow.id, n)
    one((yield SQL.begin_undo(bucket=flow.bucket, flow_id=flow.id, n=n, job_id=undo_id)))
    spec = Spec(task=EXPAND, step=f"undo/{name}", queue=undo.queue, attempts=flows.EXPAND_ATTEMPTS)
    flow.running += 1
    flow.born.append(_job(flow, n, undo_id, spec, payload_of(StepSpec(spec, plan=undo.plan), [{"job_id": job_id}])))


def _job(flow: Flow, n: int, job_id: str, spec: Spec, payload: str) -> Born:
    return Born(job_id, spec, payload, None, None, 0, flow=(flow.id, n))


def family(bucket: int, job_id: str) -> Txn[list[str]]:
    """The job, and those nested below it, in the order in which their effects are locked."""
    return sorted(found for (found,) in (yield SQL.family(bucket=bucket, job_id=job_id)))


def unsettled(bucket: int, job_id: str) -> Txn[tuple[str, str] | None]:
    """(what, how it stands) that keeps the step of this job from being undone: a job whose parts still live, or an
    effect that may still be done, or may have been."""
    jobs = yield from family(bucket, job_id)
    for found in jobs:
        if (yield SQL.restless(bucket=bucket, job_id=found)):
            return f"job {found}", "live"
    for found in jobs:
        for idx, name, status in (yield SQL.unsure(bucket=bucket, job_id=found)):
            return f"effect {identity.effect_key(found, idx, name)}", status
    return None


def refused(bucket: int, job_id: str, run: int) -> Txn[tuple[str, str] | None]:
    """(id, reason) of the job that the own job of a mapping step was refused in this run."""
    rows = yield SQL.refused(bucket=bucket, id=identity.refused_id(job_id, 0, run))
    return (rows[0][0], rows[0][1]) if rows else None


def made_by(bucket: int, job_id: str) -> Txn[str | None]:
    """The job that the own job of a mapping step made. None if it has made none."""
    rows = yield SQL.made(bucket=bucket, job_id=job_id)
    return rows[0][0] if rows else None


def nested_below(bucket: int, job_id: str) -> Txn[list[tuple[str, int]]]:
    """(id, part) of the jobs that parts of a job ended with, or were to end with."""
    return [(found, idx) for found, idx in (yield SQL.nested_below(bucket=bucket, job_id=job_id))]


def _finish(flow: Flow, status: str, more: str = "") -> Txn[None]:
    """``more``: what the event says beside the flow's reason."""
    flow.status = status
    counts = yield SQL.counts(bucket=flow.bucket, flow_id=flow.id)
    notable = yield SQL.notable(bucket=flow.bucket, flow_id=flow.id, limit=limits.NAMED_STEPS)
    given_up = [name for name, step_status in notable if step_status == "not_undone"]
    if status == "compensated" and given_up:  # its state alone would say that nothing is left
        flow.reason = f"{flow.reason or flow.cause}; given up, so not undone: {', '.join(given_up)}"
    flow.events += 1
    payload = {
        "version": PAYLOAD_VERSION, "flow_id": flow.id, "name": flow.name, "key": flow.key, "run": flow.run,
        "status": status, "cause": flow.cause,
        "reason": f"{flow.reason or flow.cause}{more}" if more else flow.reason, "steps": dict(sorted(counts)),
        "notable": dict(notable),
    }  # fmt: skip
    if status == "needs_attention":
        key, kind = identity.flow_attention_key(flow.id, flow.events), "flow.needs_attention"
    else:
        key, kind = identity.flow_finished_key(flow.id, flow.run), "flow.finished"
    said = _json(payload)
    flow.said.append((key, kind, flow.events, said))
    listeners = msgspec.json.decode(flow.listeners, type=dict[str, list[Spec]]) if flow.listeners else {}
    for spec in listeners.get(kind, ()):
        job_id = identity.successor_id(flow.id, spec.step, flow.events)
        flow.born.append(
            Born(job_id, spec, f"[{said}]", flow.id, None, 0)
        )  # it belongs to the flow, and is purged with it


def _facts(flow: Flow, row: Row) -> Txn[dict[str, Any] | None]:
    """What a `Joined` is told of the job of a step; None for a step that was skipped.

    Of a step that maps over another, it is the job that its own job has made. If somebody has ended the own job alone,
    that one goes on until upkeep comes to it: then its counts are those of this moment.
    """
    _, status, job_id, run, *ending, task = row
    if job_id is None or status == "skipped":
        return None
    made = (yield SQL.made(bucket=flow.bucket, job_id=job_id)) if task == EXPAND else []
    if made:
        job_id, run, *of_made, task = made[0]
        if of_made[0] in JOB_ENDED:
            ending = of_made
        else:
            ending[-3:] = one((yield SQL.so_far(bucket=flow.bucket, job_id=job_id)))
    how, outcome, reason, succeeded, failed, abandoned = ending
    return {
        "job_id": job_id, "run": run, "status": how, "outcome": outcome, "reason": reason,
        "succeeded": succeeded, "failed": failed, "abandoned": abandoned, "task": task,
    }  # fmt: skip


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
