"""A successor or a step that is too old when it would start: it is not claimed, and ends by its policy, once."""

from __future__ import annotations

from typing import Any

import pytest

from fanin.domain.model import Spec
from fanin.protocol import close, lease, redrive
from fanin.stores.base import Store
from tests.protocol import flows
from tests.protocol.flows import STALE_SECONDS, end_stale
from tests.protocol.helpers import Clock, claim, events, failed, job, make, released, run_all, say, settle, successors


def followed(store: Store, stale: str = "skip", **options: Any) -> str:
    """A job has ended, and its successor is ready. The successor's id."""
    spec = Spec(task="join", queue="joins", stale_after=STALE_SECONDS, stale=stale)
    job_id = make(store, 1, then=spec, **options)
    run_all(store)
    (child,) = successors(store, job_id)
    return child


def joins(store: Store) -> list[Any]:
    return claim(store, queue="joins", tasks=("join",))


@pytest.mark.parametrize(
    ("stale", "status", "outcome"), [("skip", "cancelled", "cancelled"), ("fail", "failed", "gave_up")]
)
def test_what_is_too_old_is_not_claimed_and_ends_by_its_policy(
    store: Store, clock: Clock, stale: str, status: str, outcome: str
) -> None:
    child = followed(store, stale)
    assert end_stale(store) == []
    assert not store.run(lambda: close.too_old(0, child))
    clock.advance(STALE_SECONDS + 1)
    assert joins(store) == []
    assert end_stale(store) == [child]
    row = job(store, child)
    assert (row.status, row.outcome, row.abandoned_parts) == (status, outcome, 1)
    (event,) = events(store, child)
    assert "too old" in event["reason"]
    assert end_stale(store) == []
    assert not store.run(lambda: close.too_old(0, child))


def test_what_has_been_claimed_in_time_has_started_however_often_it_is_given_back(store: Store, clock: Clock) -> None:
    child = followed(store)
    (held,) = joins(store)
    clock.advance(STALE_SECONDS + 1)
    assert store.read(lambda: close.stale(0)) == [child]
    settle(store, released(held))
    assert not store.run(lambda: close.too_old(0, child))
    assert store.read(lambda: close.stale(0)) == []
    assert store.read(lambda: lease.look(0)).stale_in is None
    assert [one.attempt for one in joins(store)] == [2]


def test_a_redrive_asks_for_it_now_whatever_its_age(store: Store, clock: Clock) -> None:
    child = followed(store, "fail")
    clock.advance(STALE_SECONDS + 1)
    assert end_stale(store) == [child]
    assert store.run(lambda: redrive.redrive(0, child, 1, 3)) == 2
    assert end_stale(store) == []
    assert len(joins(store)) == 1


def test_the_moment_is_one_that_upkeep_wakes_for(store: Store, clock: Clock) -> None:
    followed(store)
    look = store.read(lambda: lease.look(0))
    assert look.stale_in is not None
    assert 0 < look.stale_in <= STALE_SECONDS
    assert look.soonest == look.stale_in


def test_an_age_that_was_taken_away_is_no_reason_to_end_it(store: Store, clock: Clock) -> None:
    child = followed(store)
    clock.advance(STALE_SECONDS + 1)
    say(store, "UPDATE fanin.job SET stale_at = stale_at + 100 WHERE stale_at IS NOT NULL")
    assert not store.run(lambda: close.too_old(0, child))
    assert len(joins(store)) == 1


def test_a_step_that_is_skipped_by_its_age_leads_on_like_any_that_is_skipped(store: Store, clock: Clock) -> None:
    conditions = {"any": "any", "beside": "any"}
    steps = {"a": "", "old": "a", "ok": "old", "any": "old", "beside": "old a"}
    flow_id = flows.start(store, steps, conditions=conditions, stale=["old"])
    flows.end(store, flow_id, "a")
    clock.advance(STALE_SECONDS + 1)
    assert len(end_stale(store)) == 1
    assert flows.states(store, flow_id) == {
        "a": "done", "old": "skipped", "ok": "skipped", "any": "skipped", "beside": "running",
    }  # fmt: skip
    flows.end(store, flow_id, "beside")
    assert flows.row(store, flow_id).status == "completed"


def test_a_step_that_fails_by_its_age_fails_the_flow_and_runs_when_it_is_run_again(store: Store, clock: Clock) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a"}, fails_stale=["b"])
    flows.end(store, flow_id, "a")
    clock.advance(STALE_SECONDS + 1)
    assert len(end_stale(store)) == 1
    row = flows.row(store, flow_id)
    assert row.status == "failed"
    assert "too old" in str(row.reason)
    assert flows.again(store, flow_id) == 2
    flows.end(store, flow_id, "b")
    assert flows.row(store, flow_id).status == "completed"


def test_a_step_that_was_skipped_by_its_age_stays_so_in_the_next_run(store: Store, clock: Clock) -> None:
    flow_id = flows.start(store, {"a": "", "old": "a", "ok": "old", "b": "a"}, stale=["old"])
    flows.end(store, flow_id, "a")
    clock.advance(STALE_SECONDS + 1)
    assert len(end_stale(store)) == 1
    flows.end(store, flow_id, "b", failed)
    assert flows.row(store, flow_id).status == "failed"
    assert flows.again(store, flow_id) == 2
    assert flows.states(store, flow_id) == {"a": "done", "old": "skipped", "ok": "skipped", "b": "running"}
    flows.end(store, flow_id, "b")
    assert flows.row(store, flow_id).status == "completed"


def test_the_first_step_of_a_flow_may_be_too_old_as_well(store: Store, clock: Clock) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a"}, stale=["a"])
    clock.advance(STALE_SECONDS + 1)
    assert len(end_stale(store)) == 1
    assert flows.states(store, flow_id) == {"a": "skipped", "b": "skipped"}
    assert flows.row(store, flow_id).status == "completed"
