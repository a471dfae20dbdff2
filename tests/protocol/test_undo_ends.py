"""When a step is undone: every part of its undo, and of the jobs below that, has succeeded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fanin.domain import identity
from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Claim
from fanin.domain.policy import Policy
from fanin.protocol import close, deeds, flow, nest, skip
from fanin.protocol.nest import Nested
from fanin.stores.base import Store
from tests.protocol.effects import called, intent, said, wanting
from tests.protocol.effects import states as effects_of
from tests.protocol.flows import end, fail, held, job_of, row, start, states, undo, undo_again
from tests.protocol.helpers import Clock, claim, done, failed, settle, sweep_all
from tests.protocol.test_nested import begin
from tests.protocol.test_nested import nested as nested_of


def undoing(store: Store) -> tuple[str, str]:
    """a is being undone, by a job that has not been run yet. The flow, and that job."""
    flow_id = start(store, {"a": "", "b": "a"}, undo=["a"])
    end(store, flow_id, "a")
    fail(store, flow_id, "b")
    return flow_id, job_of(store, flow_id, "a", undo=True)


def below(store: Store, parts: int = 2, **options: Any) -> tuple[str, str, str]:
    """The same, by a job below that one, whose parts are ready."""
    flow_id, undo_id = undoing(store)
    outcome, job_id = begin(store, held(store, flow_id, "a", undo=True), parts, **options)
    assert outcome is Nested.WAITS
    return flow_id, undo_id, job_id


def finish(store: Store, job_id: str) -> None:
    assert store.run(lambda: close.finish_now(0, job_id, deeds.deed("kim")))


def is_not_undone(store: Store, flow_id: str, job_id: str, told: str) -> None:
    assert (row(store, flow_id).status, states(store, flow_id)["a"]) == ("needs_attention", "undo_failed")
    (note,) = [step.note for step in store.read(lambda: flow.steps(0, flow_id)) if step.name == "a"]
    assert f"job {job_id} of its undo is {told}, and" in (note or "")


def test_an_undo_that_is_finished_before_it_was_run_has_undone_nothing(store: Store) -> None:
    flow_id, undo_id = undoing(store)
    finish(store, undo_id)
    is_not_undone(store, flow_id, undo_id, "completed")
    sweep_all(store)
    undo_again(store, flow_id, "a")
    undo(store, flow_id, "a")
    assert (row(store, flow_id).status, states(store, flow_id)["a"]) == ("compensated", "undone")


def test_an_undo_that_is_finished_while_its_job_goes_on_is_done_when_that_has_ended_and_it_is_run_again(
    store: Store,
) -> None:
    flow_id, undo_id, job_id = below(store)
    finish(store, undo_id)
    is_not_undone(store, flow_id, job_id, "running")
    settle(store, *map(done, claim(store)))
    sweep_all(store)
    undo_again(store, flow_id, "a")
    (again,) = claim(store, tasks=["fanin.expand"])
    assert begin(store, again, 2) == (Nested.COMPLETED, job_id)
    settle(store, done(again))
    assert (row(store, flow_id).status, states(store, flow_id)["a"]) == ("compensated", "undone")


def by_hand(store: Store, job_id: str, clock: Clock) -> None:
    finish(store, job_id)


def by_quorum(store: Store, job_id: str, clock: Clock) -> None:
    pass  # its one success has ended it


def by_deadline(store: Store, job_id: str, clock: Clock) -> None:
    clock.advance(10)
    assert store.run(lambda: close.give_up(0, job_id))


def by_failure(store: Store, job_id: str, clock: Clock) -> None:
    settle(store, *map(failed, claim(store)))


@pytest.mark.parametrize(
    ("how", "options"),
    [
        pytest.param(by_hand, {}, id="by hand"),
        pytest.param(by_quorum, {"policy": Policy(quorum=1)}, id="by a quorum"),
        pytest.param(by_deadline, {"policy": Policy(give_up="proceed"), "give_up_after": 5.0}, id="by a deadline"),
        pytest.param(by_failure, {"policy": Policy(tolerate=1)}, id="with a failure that is tolerated"),
    ],
)
def test_a_job_below_an_undo_that_ends_without_all_of_its_parts_has_not_undone_the_step(
    store: Store, clock: Clock, how: Callable[[Store, str, Clock], None], options: dict[str, Any]
) -> None:
    flow_id, _, job_id = below(store, **options)
    settle(store, done(claim(store, 1)[0]))
    how(store, job_id, clock)
    is_not_undone(store, flow_id, job_id, "completed")


def test_what_the_step_had_done_outside_stands_if_its_undo_is_finished(store: Store) -> None:
    flow_id = start(store, {"a": "", "b": "a"}, undo=["a"])
    settle(store, wanting(held(store, flow_id, "a"), intent()))
    (call,) = called(store)
    said(store, call, "mark")
    fail(store, flow_id, "b")
    finish(store, job_of(store, flow_id, "a", undo=True))
    assert states(store, flow_id)["a"] == "undo_failed"
    assert effects_of(store, job_of(store, flow_id, "a")) == {"mail": "done"}


def test_a_part_of_an_undo_that_a_person_has_done_counts_like_any_other(store: Store) -> None:
    flow_id, _, job_id = below(store)
    settle(store, done(claim(store, 1)[0]))
    assert store.run(lambda: skip.skip(0, job_id, 1, "null", deeds.deed("kim")))
    assert (row(store, flow_id).status, states(store, flow_id)["a"]) == ("compensated", "undone")


def test_a_part_of_an_undo_below_which_a_job_goes_on_is_not_undone_by_a_word(store: Store) -> None:
    flow_id, _, job_id = below(store, 1)
    (one,) = claim(store)
    _, deeper = begin(store, one, 2)
    assert store.run(lambda: skip.skip(0, job_id, 0, "null", deeds.deed("kim")))
    is_not_undone(store, flow_id, deeper, "running")


def test_nobody_can_say_that_the_job_of_an_undo_was_run(store: Store) -> None:
    flow_id, undo_id = undoing(store)
    with pytest.raises(NotAllowedNow, match=identity.nested_id(undo_id, 0)):
        store.run(lambda: skip.skip(0, undo_id, 0, "null", deeds.deed("kim")))
    assert states(store, flow_id)["a"] == "undoing"
    assert store.run(lambda: skip.skip(0, undo_id, 0, None, deeds.deed("kim")))
    assert states(store, flow_id)["a"] == "undo_failed"


def refused(store: Store, one: Claim) -> str:
    """The job below the part may not be, and the part fails with that."""
    job_id = identity.refused_id(one.job_id, one.idx, 1)
    made = msgspec.structs.replace(nested_of(store, one)[0], id=job_id)
    store.run(lambda: nest.refuse(one, made, "too deep"))
    settle(store, failed(one))
    return job_id


def test_what_was_refused_in_an_earlier_run_of_an_undo_does_not_hold_it_up(store: Store) -> None:
    flow_id, _, _ = below(store, 1)
    refused(store, claim(store)[0])
    assert states(store, flow_id)["a"] == "undo_failed"
    undo_again(store, flow_id, "a")
    (again,) = claim(store, tasks=["fanin.expand"])
    begin(store, again, 1)
    settle(store, *map(done, claim(store)))
    assert (row(store, flow_id).status, states(store, flow_id)["a"]) == ("compensated", "undone")
