"""A job that was split, as the claims and the deeds of operators see it: what is for the whole reaches its items."""

from __future__ import annotations

from fanin.domain.flows import BATCH
from fanin.domain.identity import nested_id
from fanin.domain.model import Claim
from fanin.protocol import nest, split
from fanin.runtime import upkeep
from fanin.stores.base import Store
from tests.protocol.helpers import TASK, Clock, claim, done, job, make, new_job, settle, verdicts


def wide(store: Store, items: int = 4, **options: object) -> tuple[str, list[str]]:
    """A split job of batches of two, and the jobs of these."""
    new = new_job(store, batch=2, **options)
    store.run(lambda: split.create(new, items, lambda: [["1"] * items]))
    return new.id, [nested_id(new.id, n) for n in range(-(-items // 2))]


def claims(store: Store, limit: int = 100) -> list[Claim]:
    return claim(store, limit, tasks=(TASK, BATCH))


def test_from_its_deadline_on_no_item_is_handed_out_though_nobody_has_looked_yet(store: Store, clock: Clock) -> None:
    job_id, below = wide(store, give_up_after=20.0)
    later, _ = wide(store, give_up_after=40.0)
    other = make(store, 1)
    assert {held.job_id for held in claims(store, 1)} <= {job_id, later}
    clock.advance(20.0)
    handed = {held.job_id for held in claims(store)}
    assert handed == {later, nested_id(later, 0), nested_id(later, 1), other}
    assert job(store, job_id).status == "running"
    while upkeep.once(store, 0):
        pass
    assert {job(store, one).status for one in (job_id, *below)} == {"failed", "cancelled"}
    assert job(store, job_id).outcome == "gave_up"
    assert claims(store) == []


def test_an_item_that_runs_at_the_deadline_still_counts(store: Store, clock: Clock) -> None:
    _, below = wide(store, give_up_after=20.0)
    held = [one for one in claims(store) if one.job_id == below[0]]
    clock.advance(20.0)
    assert [said.value for said in verdicts(store, done(held[0]))] == ["ok"]
    settle(store, done(held[1]))
    assert job(store, below[0]).status == "completed"


def test_the_deadline_of_a_job_is_not_that_of_the_jobs_for_which_its_parts_wait(store: Store, clock: Clock) -> None:
    """They go on until upkeep has come to their level."""
    job_id = make(store, 1, give_up_after=20.0)
    (held,) = claims(store)
    low = new_job(store, id=nested_id(job_id, 0), waiter_id=job_id, waiter_idx=0, parent_id=job_id, depth=1)
    store.run(lambda: nest.nest(held, low, 1, lambda: [["1"]]))
    clock.advance(20.0)
    assert [one.job_id for one in claims(store)] == [low.id]
