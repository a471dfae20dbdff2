"""The deadline of a flow: from then on nothing of it begins, and what has begun counts until the flow is stopped."""

from __future__ import annotations

import pytest

from fanin.domain import identity
from fanin.domain.model import Verdict
from fanin.protocol import nest, submit
from fanin.runtime import upkeep
from fanin.stores.base import Store
from tests.protocol import flows
from tests.protocol.helpers import Clock, claim, done, failed, make, new_job, settle, verdicts

DEADLINE = 5.0


def overdue(store: Store, clock: Clock, **options: object) -> str:
    """A flow of two steps, the first of which runs, whose deadline has just passed."""
    flow_id = flows.start(store, {"a": "", "b": "a"}, give_up_after=DEADLINE, **options)
    clock.advance(DEADLINE)
    return flow_id


def tended(store: Store) -> None:
    while upkeep.once(store, 0):
        pass


def test_no_step_is_handed_out_before_the_deadline_is_looked_at(store: Store, clock: Clock) -> None:
    flow_id = overdue(store, clock)
    other = make(store, 1)
    assert [held.job_id for held in claim(store)] == [other], "only what is not of the flow"
    assert flows.row(store, flow_id).status == "running"
    tended(store)
    assert flows.row(store, flow_id).cause == "gave_up"
    assert claim(store) == []


def test_until_then_all_is_handed_out(store: Store, clock: Clock) -> None:
    flows.start(store, {"a": "", "b": ""}, give_up_after=DEADLINE)
    clock.advance(DEADLINE - 1)
    assert len(claim(store)) == 2


def test_neither_is_a_part_of_the_job_with_which_a_step_ends(store: Store, clock: Clock) -> None:
    """As a step that maps over another does."""
    flows.start(store, {"a": "", "b": "a"}, give_up_after=DEADLINE)
    (held,) = claim(store)
    mapped = new_job(
        store, id=identity.nested_id(held.job_id, held.idx), waiter_id=held.job_id, waiter_idx=held.idx,
        parent_id=held.job_id,
    )  # fmt: skip
    store.run(lambda: nest.nest(held, mapped, 2, lambda: submit.in_chunks(["1", "2"])))
    assert len(claim(store, 1)) == 1
    clock.advance(DEADLINE)
    assert claim(store) == []


@pytest.mark.parametrize(("give_up", "status"), [("proceed", "completed"), ("abandon", "failed")])
def test_what_has_begun_is_refused_once_the_flow_was_stopped(
    store: Store, clock: Clock, give_up: str, status: str
) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a"}, give_up_after=DEADLINE, give_up_policy=give_up)
    (held,) = claim(store)
    clock.advance(DEADLINE)
    tended(store)
    assert verdicts(store, done(held)) == [Verdict.CLOSED]
    found = flows.row(store, flow_id)
    assert (found.status, found.cause) == (status, "gave_up")
    assert flows.states(store, flow_id)["b"] == "skipped"


def test_what_has_begun_counts_if_it_ends_before(store: Store, clock: Clock) -> None:
    """Then the step after it stands there, is not begun, and ends with the flow."""
    flow_id = flows.start(store, {"a": "", "b": "a"}, give_up_after=DEADLINE)
    (held,) = claim(store)
    clock.advance(DEADLINE)
    assert verdicts(store, done(held)) == [Verdict.LAST]
    assert claim(store) == []
    tended(store)
    assert flows.row(store, flow_id).cause == "gave_up"
    assert flows.states(store, flow_id) == {"a": "done", "b": "failed"}


def test_undoing_goes_on_behind_the_deadline(store: Store, clock: Clock) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a"}, give_up_after=DEADLINE, undo=["a"])
    settle(store, *map(done, claim(store)))
    settle(store, *map(failed, claim(store)))
    assert flows.row(store, flow_id).status == "compensating"
    clock.advance(DEADLINE)
    assert len(claim(store, tasks=["fanin.expand"])) == 1
