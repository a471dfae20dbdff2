"""The built-in task of flows: it makes the job of a step that maps over what other steps have left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fanin.domain import identity
from fanin.domain.errors import Permanent, RetryLater
from fanin.domain.flows import EXPAND, Plan
from fanin.domain.model import NESTED
from fanin.protocol import advance, read
from fanin.runtime.fanout import FanOut
from fanin.runtime.joined import pages
from fanin.runtime.outputs import LARGE, large_result
from fanin.runtime.part import current
from fanin.runtime.task import Task
from fanin.stores.base import Store

SOON_SECONDS = 0.5
"""A job below a stopped one is cancelled within about a second."""
UNSURE_SECONDS = 5.0
"""A call that is under way is asked about again after this."""


class Order(msgspec.Struct, frozen=True):
    """The one argument: what to make, of which ended jobs (the facts of each; None for a step that was skipped)."""

    plan: Plan
    sources: list[dict[str, Any] | None]


def _expand(order: Order) -> FanOut:
    plan, store = order.plan, current().store
    sources = [source["job_id"] for source in order.sources if source is not None]
    if plan.what == "undo":
        for job_id in sources:
            _refuse_unsure(store, job_id)
    payloads = iter(plan.given) if plan.what == "given" else _payloads(store, sources, plan.what)
    return FanOut(
        payloads=payloads, task=plan.task, queue=plan.queue, attempts=plan.attempts, priority=plan.priority,
        policy=plan.policy, give_up_after=plan.give_up_after,
    )  # fmt: skip


def _payloads(store: Store, jobs: list[str], what: str) -> Iterator[str]:
    for job_id in jobs:
        for text in results_below(store, job_id, partial=what == "undo"):
            if what != "items":
                yield f"[{text}]"
                continue
            try:
                found = msgspec.json.decode(text, type=list[msgspec.Raw])
            except msgspec.DecodeError:
                raise Permanent(f"job {job_id} did not return a list, so there is nothing to map over") from None
            yield from (f"[{bytes(item).decode()}]" for item in found)


def results_below(store: Store, job_id: str, partial: bool = False) -> Iterator[str]:
    """The results of a job's parts as JSON, in order; those of a part that ended with a job of its own stand in its
    place. ``partial``: also what succeeded below a part that failed."""
    for idx, status, text in pages(store, job_id):
        if status != "succeeded" or text is None:
            nested = identity.nested_id(job_id, idx)
            if partial and store.read(lambda: read.job(store.bucket(job_id), nested)) is not None:
                yield from results_below(store, nested, partial)
        elif text.startswith(NESTED):
            yield from results_below(store, text[len(NESTED) :], partial)
        else:
            yield large_result(store, job_id, idx) if text.startswith(LARGE) else text


def _refuse_unsure(store: Store, job_id: str) -> None:
    """Nothing is undone while it is not known whether it was done, or while it is still being done."""
    bucket = store.bucket(job_id)
    if (live := store.read(lambda: advance.goes_on(bucket, job_id))) is not None:
        raise RetryLater(SOON_SECONDS, f"job {live} has not ended yet")
    found = store.read(lambda: advance.unsure(bucket, job_id))
    if found is None:
        return
    key, status = found
    if status == "unknown":
        raise Permanent(
            f"it is not known whether effect {key} was done: say so with `fanin effects settle`, then call "
            "`fanin saga retry`"
        )
    raise RetryLater(UNSURE_SECONDS, f"effect {key} is being called")


BUILT_IN: dict[str, Task[..., Any]] = {EXPAND: Task(_expand, name=EXPAND, attempts=100)}
"""Tasks that every worker knows."""
