"""Who is slow between a look and the write that relies on it, while a whole run goes by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fanin.domain.model import Report
from fanin.protocol import close, flow, nest, redrive, skip
from fanin.testing.stepper import Session, Watcher, once
from tests.protocol import flows
from tests.races.arena import Arena
from tests.races.races_nested import waits
from tests.races.stage import BUCKET, succeed


@pytest.fixture
def slow(arena: Arena) -> Iterator[Session]:
    watcher = Watcher(arena.store)
    session = Session(arena.store, "slow", watcher)
    yield session
    session.close()
    watcher.close()


@pytest.mark.parametrize("verb", ["succeed", "fail"])
def test_a_step_that_ends_while_its_flow_is_run_again_is_not_forgotten(arena: Arena, slow: Session, verb: str) -> None:
    """The flow was ending. A failed step that nobody saw fail would let it complete."""
    flow_id = arena.flow({"a": "", "b": "", "c": "a b"})
    mine = {claim.job_id: claim for claim in arena.claims(2)}
    one, other = (mine[flows.job_of(arena.store, flow_id, name)] for name in "ab")
    error = '{"type": "E", "message": "m", "traceback": ""}'
    arena.settled([Report(one, "fail", error=error)])
    slow.play(once(lambda: flow.run_again(BUCKET, flow_id, 1)))
    slow.hold("advance.lock_flow")
    arena.settled([succeed(other) if verb == "succeed" else Report(other, verb, error=error)])
    assert slow.finish() == 2
    again = {"a": "running", "b": "running" if verb == "fail" else "done", "c": "waiting"}
    assert flows.states(arena.store, flow_id) == again
    arena.drain()
    assert set(flows.states(arena.store, flow_id).values()) == {"done"}
    assert flows.row(arena.store, flow_id).status == "completed"
    assert arena.violations() == []


def test_an_undo_that_has_failed_again_meanwhile_is_run_again_and_not_only_said_to_be(
    arena: Arena, slow: Session
) -> None:
    """The step would be undone by a job that has ended, and the flow would wait for ever."""
    flow_id = arena.flow({"a": "", "b": "a"}, undo=["a"])
    arena.ended("succeed", "fail", "fail")
    slow.play(once(lambda: flow.undo_again(BUCKET, flow_id, "a", arena.deed())))
    slow.hold("redrive.lock_ended_parts")
    flows.undo_again(arena.store, flow_id, "a")
    arena.ended("fail")
    assert flows.states(arena.store, flow_id)["a"] == "undo_failed"
    assert not isinstance(slow.finish(), Exception)
    assert arena.violations() == []
    arena.drain()
    assert flows.row(arena.store, flow_id).status == "compensated"


def test_a_part_that_has_left_another_job_behind_meanwhile_is_not_forgotten(arena: Arena, slow: Session) -> None:
    """That job would go on for nobody."""
    job_id, _, nested, _ = waits(arena)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    arena.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    arena.store.run(lambda: nest.abandon(BUCKET, nested, job_id, 0))
    slow.play(once(lambda: nest.forget(BUCKET, job_id, 0)))
    slow.hold("nest.forget_nested")
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 2))
    arena.waiting(next(claim for claim in arena.claims(1) if claim.job_id == job_id), priority=5)
    arena.store.run(lambda: skip.skip(BUCKET, job_id, 0, None, arena.deed()))
    assert slow.finish() is False
    assert arena.violations() == []
    assert arena.store.read(lambda: nest.orphans(BUCKET)) == [(job_id, 0)]
    assert arena.store.read(lambda: nest.left_behind(BUCKET, job_id, 0)) == [nested]
