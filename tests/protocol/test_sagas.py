"""Small flows that fail at every step, or are cancelled before every end: what becomes of each step is defined."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from fanin.domain.flows import EXPAND
from fanin.domain.states import STEP_UNDONE
from fanin.protocol import flow
from fanin.stores.base import Store
from fanin.testing.invariants import violations
from tests.protocol import flows
from tests.protocol.helpers import TASK, claim, done, failed, say, settle, sweep_all
from tests.support.figures import record

SHAPES: dict[str, Mapping[str, str]] = {
    "chain": {"a": "", "b": "a", "c": "b"},
    "diamond": {"top": "", "left": "top", "right": "top", "bottom": "left right"},
}


def move(store: Store, flow_id: str, failing: str | None, undone: list[str]) -> bool:
    """One part of the flow ends. False if nothing is ready."""
    held = claim(store, 1, tasks=(TASK, EXPAND))
    if not held:
        return False
    steps = {step.job_id: step for step in store.read(lambda: flow.steps(0, flow_id))}
    undos = {step.undo_job_id: step for step in steps.values() if step.undo_job_id}
    (one,) = held
    if one.job_id in undos:
        undone.append(undos[one.job_id].name)
        settle(store, done(one))
    else:
        assert not undone, f"step {steps[one.job_id].name} went on after the undoing had begun"
        settle(store, failed(one) if steps[one.job_id].name == failing else done(one))
    return True


def judge(store: Store, flow_id: str, undone: list[str], completed: bool) -> None:
    """Each step has a defined end; those that were done are undone once each, in the reverse order of their ends."""
    assert violations(store) == []
    row = flows.row(store, flow_id)
    assert row.ended
    ends = {step.name: step for step in store.read(lambda: flow.steps(0, flow_id))}
    assert row.status == ("completed" if completed else "compensated")
    if completed:
        assert {step.status for step in ends.values()} == {"done"}
        return
    assert {step.status for step in ends.values()} <= {*STEP_UNDONE, "skipped"}
    order = [step.ended_no for step in (ends[name] for name in undone) if step.ended_no is not None]
    assert order == sorted(order, reverse=True)
    assert len(set(undone)) == len(undone)
    assert {name for name, step in ends.items() if step.status == "undone"} == set(undone)
    texts = say(store, "SELECT payload FROM fanin.outbox WHERE job_id = :id", id=flow_id)
    assert [json.loads(text)["status"] for (text,) in texts] == ["compensated"]


def cases() -> Iterator[tuple[str, str | None, int | None]]:
    """(shape, the step that fails, after how many ends the flow is cancelled)"""
    for shape, steps in SHAPES.items():
        for failing in (None, *steps):
            yield shape, failing, None
        for cancelled in range(len(steps)):
            yield shape, None, cancelled


@pytest.mark.parametrize(("shape", "failing", "cancelled"), cases())
def test_a_saga_ends_with_a_defined_state_of_each_step(
    store: Store, shape: str, failing: str | None, cancelled: int | None
) -> None:
    flow_id = flows.start(store, SHAPES[shape], undo=list(SHAPES[shape]))
    undone: list[str] = []
    for count in range(20):
        if count == cancelled:
            assert flows.cancel(store, flow_id)
        flows.cancel_left(store)
        sweep_all(store)
        if not move(store, flow_id, failing, undone):
            break
    judge(store, flow_id, undone, completed=failing is None and cancelled is None)
    record("sagas", flows={store.dialect: 1}, undone={store.dialect: len(undone)})
