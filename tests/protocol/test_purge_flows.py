"""A flow goes with its steps and all of its jobs, or stays with all of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fanin.domain.errors import NotAllowedNow, UnknownJob
from fanin.domain.identity import nested_id
from fanin.domain.model import Spec
from fanin.protocol import flow, nest, purge, submit
from fanin.protocol.purge import Tree
from fanin.stores.base import Store
from fanin.testing.clock import Clock as Freezer
from fanin.testing.invariants import check_all
from fanin.testing.state import dump
from tests.protocol import flows
from tests.protocol.helpers import claim_all, done, failed, new_job, say, settle, sweep_all
from tests.protocol.test_purge import DAY, NOON, clear, publish

KEY = "nightly"
CHAIN = {"a": "", "b": "a"}


def completed(store: Store) -> str:
    flow_id = flows.start(store, CHAIN, key=KEY)
    flows.end(store, flow_id, "a")
    flows.end(store, flow_id, "b")
    publish(store)
    return flow_id


def cancelled(store: Store) -> str:
    flow_id = flows.start(store, CHAIN, key=KEY)
    flows.cancel(store, flow_id)
    sweep_all(store)
    publish(store)
    return flow_id


def undone(store: Store) -> str:
    flow_id = flows.start(store, CHAIN, key=KEY, undo=["a"])
    flows.end(store, flow_id, "a")
    flows.fail(store, flow_id, "b")
    flows.undo(store, flow_id, "a")
    publish(store)
    return flow_id


def given_up(store: Store) -> str:
    flow_id = waits_for_a_person(store)
    flows.resolve(store, flow_id, "a", "not_undone")
    publish(store)
    return flow_id


def nested(store: Store) -> str:
    """A step that ended with a job of its own."""
    flow_id = flows.start(store, {"a": ""}, key=KEY)
    held = flows.held(store, flow_id, "a")
    below = new_job(store, id=nested_id(held.job_id, held.idx), parent_id=held.job_id,
                    root_id=held.job_id, depth=1, waiter_id=held.job_id, waiter_idx=held.idx)  # fmt: skip
    store.run(lambda: nest.nest(held, below, 2, lambda: [["1", "2"]]))
    for one in claim_all(store):
        if one.job_id == below.id:
            settle(store, done(one))
    publish(store)
    return flow_id


def waits_for_a_person(store: Store) -> str:
    flow_id = flows.start(store, CHAIN, key=KEY, manual=["a"])
    flows.end(store, flow_id, "a")
    flows.fail(store, flow_id, "b")
    publish(store)
    return flow_id


def runs(store: Store) -> str:
    flow_id = flows.start(store, CHAIN, key=KEY)
    flows.end(store, flow_id, "a")
    publish(store)
    return flow_id


def is_not_swept(store: Store) -> str:
    flow_id = flows.start(store, CHAIN, key=KEY)
    flows.cancel(store, flow_id)
    publish(store)
    return flow_id


def event_waits(store: Store) -> str:
    """All jobs have told their ends, but not the flow."""
    flow_id = completed(store)
    say(store, f"UPDATE fanin.outbox SET status = 'waiting', published_at = NULL WHERE job_id = '{flow_id}'")
    return flow_id


def go(store: Store, flow_id: str, age: float = 0.0, unsent: bool = False) -> Tree:
    members = store.read(lambda: purge.flow_tree([0], (0, flow_id)))
    seen = store.read(lambda: purge.assess(members, age, unsent, (0, flow_id)))
    found = store.run(lambda: purge.purge([0], members, age, unsent, flow=(0, flow_id)))
    assert seen.kept == found.kept
    return found


@pytest.mark.parametrize("ends", [completed, cancelled, undone, given_up, nested], ids=lambda one: one.__name__)
def test_nothing_of_a_flow_is_left(store: Store, ends: Callable[[Store], str]) -> None:
    other = flows.start(store, {"x": "", "y": "x"}, number=2, queue="others")
    before = {table: len(rows) for table, rows in dump(store).items() if rows}
    flow_id = ends(store)
    assert [found for _, found in store.read(lambda: purge.old_flows(0, 0.0))] == [flow_id]
    assert store.read(lambda: purge.old_roots(0, 0.0)) == []
    assert go(store, flow_id).kept is None
    check_all(store)
    assert store.read(lambda: flow.row(0, flow_id)) is None
    with pytest.raises(NotAllowedNow, match="still being removed"):
        flows.start(store, CHAIN, key=KEY)
    clear(store)
    assert {table: len(rows) for table, rows in dump(store).items() if rows} == before
    assert flows.start(store, CHAIN, key=KEY) == flow_id
    assert flows.row(store, other).status == "running"


@pytest.mark.parametrize(
    ("stands", "reason", "unsent"),
    [
        (runs, "live", True), (is_not_swept, "live", True), (waits_for_a_person, "flow", True),
        (event_waits, "events", False),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)  # fmt: skip
def test_a_flow_that_is_needed_stays_with_all_of_its_jobs(
    store: Store, stands: Callable[[Store], str], reason: str, unsent: bool
) -> None:
    flow_id = stands(store)
    before = dump(store)
    assert go(store, flow_id).kept == reason
    assert go(store, flow_id, unsent=True).kept == (reason if unsent else None)
    if unsent:
        assert dump(store) == before
    else:
        clear(store)


def test_the_jobs_that_listened_to_a_flow_go_with_it(store: Store) -> None:
    """A flow with the same key would make jobs with the same ids."""
    options = {
        "key": KEY,
        "listeners": msgspec.json.encode({"flow.finished": [Spec("one", "on/one", "joins")]}).decode(),
    }
    flow_id = flows.start(store, {"a": ""}, **options)
    flows.end(store, flow_id, "a")
    publish(store)
    assert go(store, flow_id, unsent=True).kept == "live"
    (held,) = claim_all(store, queue="joins", tasks=("one",))
    settle(store, done(held))
    publish(store)
    assert store.read(lambda: purge.old_roots(0, 0.0)) == []
    found = go(store, flow_id)
    assert (found.kept, found.jobs) == (None, 2)
    clear(store)
    assert flows.start(store, {"a": ""}, **options) == flow_id
    flows.end(store, flow_id, "a")
    assert len(claim_all(store, queue="joins", tasks=("one",))) == 1


def test_a_flow_is_old_when_it_has_ended_long_ago(store: Store) -> None:
    clock = Freezer(store)
    clock.freeze(NOON)
    flow_id = completed(store)
    clock.freeze(NOON + DAY - 1)
    assert store.read(lambda: purge.old_flows(0, DAY)) == []
    assert go(store, flow_id, DAY).kept == "live"
    say(store, "UPDATE fanin.job SET finished_at = 1")  # its jobs are old enough, itself it is not
    assert go(store, flow_id, DAY).kept == "live"
    clock.freeze(NOON + DAY)
    assert go(store, flow_id, DAY).kept is None
    clear(store)


def test_a_job_of_a_flow_does_not_go_without_it(store: Store) -> None:
    flow_id = completed(store)
    job_id = flows.job_of(store, flow_id, "a")
    assert store.run(lambda: purge.purge([0], [(0, job_id)], 0.0)).kept == "flow"
    other = flows.start(store, {"x": ""}, number=2)
    flows.end(store, other, "x")
    publish(store)
    members = store.read(lambda: purge.flow_tree([0], (0, flow_id)))
    stranger = flows.job_of(store, other, "x")
    together = sorted([*members, (0, stranger)])
    assert store.run(lambda: purge.purge([0], together, 0.0, flow=(0, flow_id))).kept == "flow"


def test_a_flow_that_was_run_again_meanwhile_stays(store: Store) -> None:
    flow_id = flows.start(store, CHAIN, key=KEY)
    flows.end(store, flow_id, "a", failed)
    publish(store)
    members = store.read(lambda: purge.flow_tree([0], (0, flow_id)))
    assert flows.again(store, flow_id) == 2
    flows.end(store, flow_id, "a")
    flows.end(store, flow_id, "b")
    publish(store)
    assert store.run(lambda: purge.purge([0], members, 0.0, flow=(0, flow_id))).kept == "live"  # b has got its job
    assert go(store, flow_id).kept is None
    assert store.run(lambda: purge.purge([0], members, 0.0, flow=(0, flow_id))).kept == "live"
    with pytest.raises(UnknownJob):
        flows.again(store, flow_id)
    clear(store)


def test_jobs_without_a_key_do_not_mind_what_is_left(store: Store) -> None:
    go(store, completed(store))
    new = new_job(store)
    assert store.run(lambda: submit.create(new, 1, lambda: [["1"]]))
    clear(store)
