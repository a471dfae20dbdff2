"""Built-in tasks. One makes the job of a step that maps over what other steps have left, one stands for a batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from fanin.domain import limits, policy
from fanin.domain.errors import Permanent, RetryLater
from fanin.domain.flows import BATCH, BATCH_ATTEMPTS, EXPAND, EXPAND_ATTEMPTS, Plan
from fanin.domain.model import NESTED
from fanin.protocol import advance, read
from fanin.runtime.fanout import FanOut
from fanin.runtime.joined import texts
from fanin.runtime.outputs import LARGE, large_result
from fanin.runtime.part import current
from fanin.runtime.task import Application, Task
from fanin.stores.base import Store

SOON_SECONDS = 0.5
"""A job below a stopped one is cancelled and swept within about a second."""
UNSURE_SECONDS = 5.0
"""A call that is under way is asked about again after this."""


class Order(msgspec.Struct, frozen=True):
    """The one argument: what to make, of which ended jobs (the facts of each; None for a step that was skipped)."""

    plan: Plan
    sources: list[dict[str, Any] | None]
    anew: bool = False
    """The part was told of others before: what it ended with then is left behind."""


def _expand(order: Order) -> FanOut:
    plan, store, width = order.plan, current().store, current().max_parts
    sources = [source["job_id"] for source in order.sources if source is not None]
    if plan.what == "undo":  # of all that was done, whatever was allowed then
        width = limits.JOB_WIDTH_PARTS
        (job_id,) = sources
        _refuse_unsettled(store, job_id)
        payloads: Iterator[str] = (f"[{text}]" for text in results_below(store, job_id, everything=True))
    else:
        payloads = iter(plan.given) if plan.what == "given" else _payloads(store, sources, plan.what == "items")
    return FanOut(
        payloads=payloads, task=plan.task, queue=plan.queue, attempts=plan.attempts, priority=plan.priority,
        policy=plan.policy, give_up_after=plan.give_up_after, quorum=policy.decode(plan.policy).quorum, width=width,
        anew=_runs(order.sources) if order.anew else None,
    )  # fmt: skip


def _runs(sources: list[dict[str, Any] | None]) -> str:
    """Of which jobs, which run of each, and how many results."""
    return ",".join("{job_id}/{run}/{succeeded}".format_map(source) if source else "-" for source in sources)


def _payloads(store: Store, jobs: list[str], items: bool) -> Iterator[str]:
    for job_id in jobs:
        below = _fanned_out(store, job_id) if items else None
        for text in results_below(store, below or job_id):
            if not items or below is not None:
                yield f"[{text}]"
                continue
            try:
                found = msgspec.json.decode(text, type=list[msgspec.Raw])
            except msgspec.DecodeError:
                raise Permanent(f"job {job_id} did not return a list, so there is nothing to map over") from None
            yield from (f"[{bytes(item).decode()}]" for item in found)


def _fanned_out(store: Store, job_id: str) -> str | None:
    """The job with which a single call ended, if it has no successor that made one value of it: its results are the
    list."""
    for _, text in texts(store, job_id):
        if text.startswith(NESTED):
            below = text[len(NESTED) :]
            row = store.read(lambda: read.job(store.bucket(job_id), below))
            return below if row is None or row.step is None else _fanned_out(store, below)
    return None


def results_below(store: Store, job_id: str, everything: bool = False) -> Iterator[str]:
    """The results of a job's parts as JSON, in order; those of a part that ended with a job of its own stand in its
    place. everything: also those that stand below parts which did not succeed, or not by that job."""
    used = set()
    for idx, text in texts(store, job_id):
        if text.startswith(NESTED):
            used.add(idx)
            yield from results_below(store, text[len(NESTED) :], everything)
        else:
            yield large_result(store, job_id, idx) if text.startswith(LARGE) else text
    if everything:
        bucket = store.bucket(job_id)
        below = store.read(lambda: advance.nested_below(bucket, job_id))
        for idx, jobs in groupby(below, key=itemgetter(1)):
            if idx not in used:
                yield from _left_below(store, [nested_id for nested_id, _ in jobs])


def _left_below(store: Store, jobs: list[str]) -> Iterator[str]:
    """What is left of a job for which a part waited in vain, and of those that followed it. A successor that has its
    result stands for what it joined, as it would have in the result of the part."""
    for nested_id in reversed(jobs):
        yield from results_below(store, nested_id, everything=True)
        if any(texts(store, nested_id)):
            return


def _refuse_unsettled(store: Store, job_id: str) -> None:
    """Nothing is undone while it is not known whether it was done, or may still be."""
    found = store.read(lambda: advance.unsettled(store.bucket(job_id), job_id))
    if found is None:
        return
    what, status = found
    if status == "unknown":
        raise Permanent(
            f"it is not known whether {what} was done: say so with `fanin effects settle`, then call "
            "`FlowRun.undo_again`"
        )
    raise RetryLater(SOON_SECONDS if status == "live" else UNSURE_SECONDS, f"{what} may still do something")


def _batch(number: int) -> FanOut:
    """A batch of a split job waits for its job, which was made with it."""
    return FanOut(payloads=(), task=BATCH, queue="", attempts=1, priority=0, standing=True)


def tasks_of(app: Application) -> dict[str, Task[..., Any]]:
    """The tasks that a worker of the application knows: its own, and the built-in ones."""
    expand = Task(_expand, name=EXPAND, attempts=EXPAND_ATTEMPTS)
    expand.max_parts = app.max_parts
    return {EXPAND: expand, BATCH: Task(_batch, name=BATCH, attempts=BATCH_ATTEMPTS), **app.tasks}
