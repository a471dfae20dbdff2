"""Guards of flows and their steps: each statement is said alone, as in ``test_guards.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.domain import identity
from fanin.protocol import advance, close, deeds, flow, redrive, skip
from fanin.protocol.nest import Nested
from fanin.protocol.steps import Rows, Statement
from fanin.stores.base import Store
from tests.protocol.effects import begin, called, intent, said, wanting
from tests.protocol.effects import states as effects_of
from tests.protocol.flows import again, cancel, end, end_stale, fail, held, job_of, resolve, start, states, undo
from tests.protocol.helpers import failed, say, send, settle
from tests.protocol.test_flow import needing_attention
from tests.protocol.test_nested import begin as begin_nested

CHAIN = {"a": "", "b": "a", "c": "b"}
OTHER = identity.keyed_job_id("another")
A, B = 0, 1


def runs(store: Store) -> str:
    """a runs, b and c wait."""
    return start(store, CHAIN)


def went_on(store: Store) -> str:
    """a is done, b runs, c waits."""
    flow_id = start(store, CHAIN)
    end(store, flow_id, "a")
    return flow_id


def has_failed(store: Store) -> str:
    """a failed, b and c were skipped."""
    flow_id = start(store, CHAIN)
    fail(store, flow_id, "a")
    return flow_id


def failed_twice(store: Store) -> str:
    flow_id = has_failed(store)
    assert again(store, flow_id) == 2
    fail(store, flow_id, "a")
    return flow_id


def stopped(store: Store) -> str:
    """a still runs, b and c were skipped."""
    flow_id = start(store, CHAIN)
    assert store.run(lambda: flow.cancel(0, flow_id))
    return flow_id


def is_undone(store: Store) -> str:
    """a is being undone, b had left nothing behind."""
    flow_id = start(store, CHAIN, undo=["a"])
    end(store, flow_id, "a")
    fail(store, flow_id, "b")
    assert states(store, flow_id) == {"a": "undoing", "b": "nothing_to_undo", "c": "skipped"}
    return flow_id


def compensated(store: Store) -> str:
    flow_id = is_undone(store)
    undo(store, flow_id, "a")
    return flow_id


def skipped_by_its_age(store: Store) -> str:
    flow_id = start(store, {"a": ""}, stale=["a"])
    say(store, "UPDATE fanin.job SET stale_at = 1")
    assert len(end_stale(store)) == 1
    return flow_id


def resolved(store: Store) -> str:
    """By a person b was undone, and a waits for one."""
    flow_id = start(store, CHAIN, manual=["a", "b"])
    end(store, flow_id, "a")
    end(store, flow_id, "b")
    fail(store, flow_id, "c")
    resolve(store, flow_id, "b")
    assert states(store, flow_id) == {"a": "manual", "b": "undone", "c": "nothing_to_undo"}
    return flow_id


def completed(store: Store) -> str:
    flow_id = start(store, {"a": "", "b": "a"})
    end(store, flow_id, "a")
    end(store, flow_id, "b")
    return flow_id


def skipped_by_hand(store: Store) -> str:
    """The part of a has succeeded by a person's word, and with it the step."""
    flow_id = runs(store)
    held(store, flow_id, "a")
    store.run(lambda: skip.skip(0, identity.step_id(flow_id, A), 0, "1", deeds.deed()))
    return flow_id


Said = Callable[[str], Statement]


def at(flow_id: str, n: int) -> dict[str, Any]:
    return {"bucket": 0, "flow_id": flow_id, "n": n}


def ends(n: int, job_id: str | None = None) -> Said:
    """The end of the step's own job, or of another."""
    return lambda flow_id: advance.SQL.end_step(
        **at(flow_id, n), job_id=job_id or identity.step_id(flow_id, n), status="failed", ended_no=9
    )


def ends_undo(n: int, job_id: str | None = None) -> Said:
    return lambda flow_id: advance.SQL.end_undo(
        **at(flow_id, n), job_id=job_id or identity.undo_id(flow_id, n), status="undo_failed", note="no"
    )


def needs_less(n: int) -> Said:
    return lambda flow_id: advance.SQL.need_less(**at(flow_id, n))


def starts(n: int) -> Said:
    return lambda flow_id: advance.SQL.start_step(**at(flow_id, n), job_id=OTHER)


def skips(n: int) -> Said:
    return lambda flow_id: advance.SQL.skip_step(**at(flow_id, n))


def begins_undo(n: int) -> Said:
    return lambda flow_id: advance.SQL.begin_undo(**at(flow_id, n), job_id=OTHER)


def settles(n: int) -> Said:
    return lambda flow_id: advance.SQL.settle_step(**at(flow_id, n), status="manual")


def saves(was: str) -> Said:
    return lambda flow_id: advance.SQL.save_flow(
        bucket=0, flow_id=flow_id, status="failed", cause="failed", reason=None, running=0, failures=1, ended=1,
        events=1, live=False, was=was,
    )  # fmt: skip


def runs_again(*steps: int) -> Said:
    return lambda flow_id: flow.SQL.run_again(bucket=0, flow_id=flow_id, steps=list(steps))


def waits_again(n: int) -> Said:
    return lambda flow_id: flow.SQL.wait_again(bucket=0, flow_id=flow_id, rows=[(n, 1)])


def reopens(run: int) -> Said:
    return lambda flow_id: flow.SQL.reopen_flow(bucket=0, flow_id=flow_id, running=1, run=run, give_up_after=None)


def resolves(name: str) -> Said:
    return lambda flow_id: flow.SQL.settle_by_hand(
        bucket=0, flow_id=flow_id, name=name, status="nothing_to_undo", note="so it is"
    )


def tells(name: str) -> Said:
    return lambda flow_id: redrive.SQL.tell_part(
        bucket=0, job_id=identity.step_id(flow_id, "abc".index(name)), attempts=1, payload="[2]"
    )


def undoes_again(n: int) -> Said:
    return lambda flow_id: flow.SQL.undo_again(**at(flow_id, n))


CASES: dict[str, tuple[Callable[[Store], str], Said]] = {
    "a step that was skipped by its age waits again": (
        skipped_by_its_age,
        lambda flow_id: flow.SQL.wait_again(bucket=0, flow_id=flow_id, rows=[(0, 1)]),
    ),
    "the end of a step that is done": (went_on, ends(A)),
    "the end of a step that has failed": (has_failed, ends(A)),
    "the end of a step that is being undone": (is_undone, ends(A)),
    "the end of a step by the job of another": (runs, ends(A, OTHER)),
    "the end of the undo of a step that is done": (went_on, ends_undo(A)),
    "the end of the undo of a step that is undone": (compensated, ends_undo(A)),
    "the end of the undo of a step whose undo has failed": (needing_attention, ends_undo(A)),
    "the end of an undo by another job": (is_undone, ends_undo(A, OTHER)),
    "one need less of a step that was skipped": (stopped, needs_less(B)),
    "one need less of a step that runs": (went_on, needs_less(B)),
    "the start of a step that runs": (went_on, starts(B)),
    "the start of a step that is done": (went_on, starts(A)),
    "the start of a step that waits for another": (runs, starts(B)),
    "the skip of a step that runs": (went_on, skips(B)),
    "the skip of a step that is done": (went_on, skips(A)),
    "the skip of a step that waits for another": (runs, skips(B)),
    "a stop where nothing waits": (
        completed,
        lambda flow_id: advance.SQL.skip_waiting(bucket=0, flow_id=flow_id),
    ),
    "the undo of a step that runs": (runs, begins_undo(A)),
    "the undo of a step that is being undone": (is_undone, begins_undo(A)),
    "the undo of a step that is undone": (compensated, begins_undo(A)),
    "the undo of a step that had left nothing behind": (is_undone, begins_undo(B)),
    "the settlement of a step that runs": (runs, settles(A)),
    "the settlement of a step that waits": (runs, settles(B)),
    "the settlement of a step that is being undone": (is_undone, settles(A)),
    "the settlement of a step that is undone": (compensated, settles(A)),
    "the save of a flow that was stopped": (stopped, saves("running")),
    "the save of a flow that has ended": (completed, saves("running")),
    "another run of steps that are done or run": (went_on, runs_again(A, B)),
    "another run of a step that is being undone": (is_undone, runs_again(A)),
    "another wait of a step that is done": (went_on, waits_again(A)),
    "another wait of a step that runs": (went_on, waits_again(B)),
    "what else a part is told whose step has ended": (has_failed, tells("a")),
    "what else a part is told that was skipped by hand": (skipped_by_hand, tells("a")),
    "a new run of a flow that runs": (runs, reopens(1)),
    "a new run of a flow that is ending": (stopped, reopens(1)),
    "a new run of a flow that has completed": (completed, reopens(1)),
    "a new run of a flow that was undone": (compensated, reopens(1)),
    "a new run after one that is over": (failed_twice, reopens(1)),
    "a new run after one that is still to come": (has_failed, reopens(2)),
    "a person's word on a step that is done": (went_on, resolves("a")),
    "a person's word on a step that is being undone": (is_undone, resolves("a")),
    "a person's word on a step that is settled": (resolved, resolves("b")),
    "another undo of a step that is a person's": (resolved, undoes_again(A)),
    "another undo of a step that is being undone": (is_undone, undoes_again(A)),
    "another undo of a step that was resolved": (resolved, undoes_again(B)),
    "another undo of a step that is done": (went_on, undoes_again(A)),
}


def flows_and_steps(store: Store) -> list[Rows]:
    return [sorted(say(store, f"SELECT * FROM fanin.{table}"), key=repr) for table in ("flow", "flow_step")]


@pytest.mark.parametrize("case", CASES)
def test_a_statement_said_in_the_wrong_state_of_a_flow_finds_no_row(store: Store, case: str) -> None:
    stage, said_of = CASES[case]
    flow_id = stage(store)
    before = flows_and_steps(store)
    assert send(store, said_of(flow_id)) == []
    assert flows_and_steps(store) == before


def test_a_step_that_needs_no_other_is_not_counted_below(store: Store) -> None:
    flow_id = runs(store)
    say(store, "UPDATE fanin.flow_step SET needs = 0 WHERE n = 1")
    assert send(store, needs_less(B)(flow_id)) == []
    say(store, "UPDATE fanin.flow_step SET needs = 1 WHERE n = 1")


def test_a_stop_skips_what_waits_and_nothing_else(store: Store) -> None:
    flow_id = went_on(store)
    assert cancel(store, flow_id)
    assert states(store, flow_id) == {"a": "done", "b": "failed", "c": "skipped"}


def with_effects(store: Store, *, succeeds: bool) -> str:
    """The job of a part with an effect in each state."""
    flow_id = start(store, {"a": "", "z": "a"})
    mine = held(store, flow_id, "a")
    for name, verb, more in (
        ("mail", "mark", {}), ("refused", "refuse", {"final": True}), ("in doubt", "refuse", {"doubtful": True})
    ):  # fmt: skip
        said(store, begin(store, mine, intent(name, "at_most_once")), verb, **more)
    settle(store, wanting(mine, intent("not called")) if succeeds else failed(mine))
    return job_of(store, flow_id, "a")


def reverses(job_id: str, by_hand: bool) -> Statement:
    return advance.SQL.reverse_effects(bucket=0, job_id=job_id, by_hand=by_hand)


@pytest.mark.parametrize("by_hand", [True, False])
def test_nothing_is_reversed_but_what_was_done(store: Store, by_hand: bool) -> None:
    job_id = with_effects(store, succeeds=True)
    assert send(store, reverses(job_id, by_hand)) == [(0,)]
    assert send(store, reverses(job_id, by_hand)) == []
    assert effects_of(store, job_id) == {
        "mail": "reversed", "not called": "registered", "refused": "failed", "in doubt": "unknown",
    }  # fmt: skip
    assert len(called(store, "not called")) == 1


def test_what_a_part_without_a_result_has_done_is_reversed_by_a_person_alone(store: Store) -> None:
    job_id = with_effects(store, succeeds=False)
    assert send(store, reverses(job_id, False)) == []
    assert send(store, reverses(job_id, True)) == [(0,)]
    assert effects_of(store, job_id)["mail"] == "reversed"


def nested_below(store: Store) -> tuple[str, str]:
    """(job of a step, the job for which its part waits)"""
    flow_id = start(store, {"a": ""})
    mine = held(store, flow_id, "a")
    outcome, below = begin_nested(store, mine)
    assert outcome is Nested.WAITS
    return mine.job_id, below


def leaves(job_id: str, kept: str = identity.NIL) -> Statement:
    return redrive.SQL.leave_behind(bucket=0, job_id=job_id, kept=kept)


def test_a_job_that_goes_on_or_is_meant_is_not_left_behind(store: Store) -> None:
    job_id, below = nested_below(store)
    assert send(store, leaves(job_id)) == []
    store.run(lambda: close.cancel(0, below))
    assert send(store, leaves(job_id, kept=below)) == []
    assert send(store, leaves(below)) == []
    assert send(store, leaves(job_id)) == [(below,)]
    assert send(store, leaves(job_id)) == []
