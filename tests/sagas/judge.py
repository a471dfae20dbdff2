"""What must be so when a saga is over, told from the database and from the world outside, of which each knows half."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from fanin.domain.flows import StepRow
from fanin.domain.model import NESTED
from fanin.protocol import advance
from fanin.stores.base import Store
from fanin.testing.state import select
from tests.sagas.walk import BUCKET, Walk

DEFINED = {
    "completed": {"done", "failed", "skipped"},
    "failed": {"done", "failed", "skipped"},
    "cancelled": {"done", "failed", "skipped"},
    "compensated": {"undone", "nothing_to_undo", "not_undone", "skipped"},
}


def step_of(item: str) -> str:
    return item.partition("/")[0]


def wrong(walk: Walk) -> Iterator[str]:
    """What is not as it must be, one line each."""
    row, steps = walk.run.row(), {step.name: step for step in walk.run.steps()}
    if row.status not in DEFINED:
        yield f"the flow is {row.status}"
        return
    for step in steps.values():
        if step.status not in DEFINED[row.status]:
            yield f"step {step.name} is {step.status} in a flow that is {row.status}"
    events = _events(walk.store, row.id)
    ended = [event for event in events if event["status"] != "needs_attention"]
    if [event["run"] for event in ended] != list(range(1, row.run + 1)) or ended[-1]["status"] != row.status:
        yield f"the events of its ends are {[(event['run'], event['status']) for event in ended]}"
    if row.status == "compensated":
        yield from _undone(walk, steps)
    elif any(what in ("undid", "person") for what, *_ in walk.outside.deeds):
        yield f"something was undone in a flow that is {row.status}"
    yield from _in_order(walk, steps)
    if any(what == "went on" for what, *_ in walk.outside.deeds):
        yield "a step went on while the flow was being undone"


def _undone(walk: Walk, steps: dict[str, StepRow]) -> Iterator[str]:
    """What took effect, and nothing else, was undone, once."""
    undid: dict[str, set[str]] = {}
    for what, item, key in walk.outside.deeds:
        if what == "undid":
            undid.setdefault(item, set()).add(key)
    people = {step_of(item) for what, item, _ in walk.outside.deeds if what == "person"}
    for what, item, how in walk.outside.deeds:
        failed = step_of(item) in map(step_of, walk.outside.refuses)  # it may have had an effect before it failed
        if what != "person" or how != "undo_failed" or walk.doubtful or failed:
            continue
        if not _called_without_a_result(walk, steps[step_of(item)]):
            yield f"a person was asked for step {step_of(item)}, which a job could undo"
    for item, keys in undid.items():
        if len(keys) > 1:
            yield f"{item} was undone {len(keys)} times"
    for step in steps.values():
        took, mails = (set[str](), []) if step.job_id is None else _took_effect(walk, step)
        mine = {item for item in undid if step_of(item) == step.name}
        if mine - took:
            yield f"{sorted(mine - took)} were undone, and had taken no effect"
        by_job = step.status == "undone" and step.name not in people
        if by_job and took - mine:
            yield f"{sorted(took - mine)} took effect, and were not undone"
        if step.status == "nothing_to_undo" and step.undo is not None and took:
            yield f"step {step.name} has nothing to undo, but {sorted(took)} took effect"
        if step.status == "skipped" and (took or mails):
            yield f"step {step.name} was skipped, but {sorted(took)} took effect"
        if step.status == "nothing_to_undo" and step.undo is None and mine:
            yield f"{sorted(mine)} were undone, though nothing was to undo them"
        for key, status in mails:
            happened = key in walk.outside.called
            if step.status == "undone" and status != ("reversed" if happened else "cancelled"):
                yield f"effect {key} of step {step.name} is {status}; it has {'' if happened else 'not '}happened"


def _took_effect(walk: Walk, step: StepRow) -> tuple[set[str], list[tuple[str, str]]]:
    """The items of the step whose parts have succeeded, and (key, state) of its effects."""
    assert step.job_id is not None
    jobs = walk.store.read(partial(advance.family, BUCKET, step.job_id))
    named = ", ".join(f"'{job_id}'" for job_id in jobs)
    found = select(
        walk.store,
        "SELECT p.result, j.task FROM fanin.part AS p JOIN fanin.job AS j ON j.bucket = p.bucket AND j.id = p.job_id "
        f"WHERE p.status = 'succeeded' AND p.job_id IN ({named})",
    )
    items = set()
    for one in found:
        if one["result"].startswith(NESTED) or one["task"].endswith("gather"):
            continue
        items.add("a/0" if one["task"].endswith("listing") else msgspec.json.decode(one["result"], type=str))
    effects = [(one.key, one.status) for job_id in jobs for one in walk.firm.app.job(job_id).effects()]
    return items, effects


def _called_without_a_result(walk: Walk, step: StepRow) -> bool:
    """Whether a call has happened for a part that was closed before it had its result, which no undo takes back."""
    assert step.job_id is not None
    for job_id in walk.store.read(partial(advance.family, BUCKET, step.job_id)):
        parts = select(walk.store, f"SELECT idx FROM fanin.part WHERE status <> 'succeeded' AND job_id = '{job_id}'")
        without = {part["idx"] for part in parts}
        for one in walk.firm.app.job(job_id).effects():
            if one.idx in without and one.key in walk.outside.called:
                return True
    return False


def _in_order(walk: Walk, steps: dict[str, StepRow]) -> Iterator[str]:
    """The undos go back in the order of the ends, and so against each arrow of the graph."""
    numbers = {step.n: step for step in steps.values()}
    for step in steps.values():
        for before in (numbers[n] for n in step.after):
            if step.ended_no is not None and before.ended_no is not None and step.ended_no < before.ended_no:
                yield f"step {step.name} ended before {before.name}, after which it stands"
    seen: list[str] = []
    for what, item, _ in walk.outside.deeds:
        if what in ("undid", "person") and (not seen or seen[-1] != step_of(item)):
            seen.append(step_of(item))
    ends = [steps[name].ended_no or 0 for name in seen]
    if ends != sorted(ends, reverse=True) or len(set(seen)) < len(seen):
        yield f"the undos came in the order {seen}, the ends {[(s.name, s.ended_no) for s in steps.values()]}"


def _events(store: Store, flow_id: str) -> list[dict[str, Any]]:
    rows = select(store, f"SELECT payload FROM fanin.outbox WHERE job_id = '{flow_id}' ORDER BY seq")
    return [msgspec.json.decode(row["payload"]) for row in rows]
