"""Make flows whose steps are jobs of one part, and move them on: what every test of them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from fanin.domain import identity
from fanin.domain.flows import EXPAND, EXPAND_ATTEMPTS, FlowRow, Plan, StepSpec, Undo
from fanin.domain.model import Claim, NewJob, Report, Spec
from fanin.protocol import close, deeds, flow
from fanin.protocol.flow import NewFlow, NewStep
from fanin.stores.base import Store
from tests.protocol.helpers import QUEUE, TASK, claim, done, failed, settle

STALE_SECONDS = 5.0
ID = "01980000-0000-7000-8000-0000000000{:02x}"


def plan(
    steps: Mapping[str, str],
    *,
    key: str | None = None,
    number: int = 1,
    undo: Sequence[str] = (),
    manual: Sequence[str] = (),
    conditions: Mapping[str, str] | None = None,
    stale: Sequence[str] = (),
    fails_stale: Sequence[str] = (),
    joins: Sequence[str] = (),
    mapped: Sequence[str] = (),
    task: str = TASK,
    queue: str = QUEUE,
    **options: object,
) -> NewFlow:
    """A flow as `Flow.start` writes it. ``steps``: name to the names before it, such as ``{"a": "", "b": "a"}``.

    ``joins``: steps that are told how those before them have ended. ``mapped``: those that map over the first of them.
    ``stale``, ``fails_stale``: steps that are skipped, or fail, if they have not started after `STALE_SECONDS`.
    """
    flow_id = identity.keyed_flow_id(key) if key else ID.format(number)
    names = list(steps)
    after = {name: [names.index(one) for one in steps[name].split()] for name in names}
    made, jobs = [], []
    for n, name in enumerate(names):
        old = "skip" if name in stale else "fail" if name in fails_stale else None
        age = STALE_SECONDS if old else None
        spec = Spec(task=task, step="step", queue=queue, attempts=1, stale_after=age, stale=old)
        how: Undo | None = Undo(manual="call them") if name in manual else None
        how = Undo(Plan(task, "undo", queue), queue=queue) if name in undo else how
        job_id = None if after[name] else identity.step_id(flow_id, n)
        behind = [number for number, other in enumerate(names) if n in after[other]]
        made.append(
            NewStep(
                n, name, (conditions or {}).get(name, "ok"), after[name], behind,
                msgspec.json.encode(_step(spec, name in joins, name in mapped)).decode(),
                msgspec.json.encode(how).decode() if how else None, job_id,
            )
        )  # fmt: skip
        if job_id:
            job = NewJob(
                id=job_id, bucket=0, task=task, queue=queue, attempts=1, step="step", flow_id=flow_id, flow_step=n,
                stale_after=age, stale=old,
            )  # fmt: skip
            jobs.append((job, 1, lambda: [["{}"]]))
    return NewFlow(flow_id, 0, "flow", key, "hash", made, jobs, **options)  # type: ignore[arg-type]


def _step(spec: Spec, joins: bool, mapped: bool) -> StepSpec:
    if mapped:
        given = Plan(spec.task, "results", spec.queue)
        return StepSpec(msgspec.structs.replace(spec, task=EXPAND, attempts=EXPAND_ATTEMPTS), plan=given)
    return StepSpec(spec, call="{}", joins=joins)


def start(store: Store, steps: Mapping[str, str], **options: object) -> str:
    """Its id."""
    new = plan(steps, **options)  # type: ignore[arg-type]
    assert store.run(lambda: flow.create(new))
    return new.id


def row(store: Store, flow_id: str) -> FlowRow:
    found = store.read(lambda: flow.row(0, flow_id))
    assert found is not None
    return found


def states(store: Store, flow_id: str) -> dict[str, str]:
    return {step.name: step.status for step in store.read(lambda: flow.steps(0, flow_id))}


def job_of(store: Store, flow_id: str, name: str, undo: bool = False) -> str:
    (step,) = [step for step in store.read(lambda: flow.steps(0, flow_id)) if step.name == name]
    job_id = step.undo_job_id if undo else step.job_id
    assert job_id is not None
    return job_id


def held(store: Store, flow_id: str, name: str, undo: bool = False) -> Claim:
    """Claim the one part of a step, or of its undo. Others that are claimed by it are given back."""
    wanted = job_of(store, flow_id, name, undo)
    claims = {one.job_id: one for one in claim(store, tasks=(TASK, EXPAND))}
    settle(store, *(Report(one, "release") for job_id, one in claims.items() if job_id != wanted))
    return claims[wanted]


def end(store: Store, flow_id: str, name: str, report: Callable[[Claim], Report] = done, undo: bool = False) -> None:
    settle(store, report(held(store, flow_id, name, undo)))


def fail(store: Store, flow_id: str, name: str, undo: bool = False) -> None:
    end(store, flow_id, name, failed, undo)


def undo(store: Store, flow_id: str, name: str) -> None:
    end(store, flow_id, name, undo=True)


def cancel(store: Store, flow_id: str, reason: str | None = None) -> bool:
    """Stop the flow, and its jobs as upkeep does it."""
    stopped = store.run(lambda: flow.cancel(0, flow_id, deeds.deed("kim", reason)))
    cancel_left(store)
    return stopped


def cancel_left(store: Store) -> None:
    for job_id in store.read(lambda: flow.left_running(0)):
        store.run(partial(flow.end_running, 0, job_id))


def end_stale(store: Store) -> list[str]:
    """The jobs that were too old to start, as upkeep ends them."""
    jobs = store.read(lambda: close.stale(0))
    return [job_id for job_id in jobs if store.run(partial(close.too_old, 0, job_id))]


def again(store: Store, flow_id: str, run: int = 1) -> int:
    return store.run(lambda: flow.run_again(0, flow_id, run, done=deeds.deed("kim", "all is well now")))


def resolve(store: Store, flow_id: str, name: str, status: str = "undone") -> None:
    store.run(lambda: flow.resolve(0, flow_id, name, status, deeds.deed("kim", "by hand")))


def undo_again(store: Store, flow_id: str, name: str) -> None:
    store.run(lambda: flow.undo_again(0, flow_id, name, deeds.deed("kim")))
