"""Outputs are staged by the holder alone, count with the claim that succeeds, and are swept when they cannot count."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from fanin.domain.model import Claim, Report
from fanin.protocol import lease, outputs, redrive
from fanin.stores.base import Store
from tests.protocol.helpers import Clock, cancel, claim, done, failed, make, released, say, settle, sweep_all

ROOT = "/outputs"


def stage(store: Store, held: Claim, name: str = "a", *, ready: bool = True) -> bool:
    """The whole way of one output; False as soon as the claim is found lost."""
    if not store.run(lambda: outputs.stage(held, name, ROOT)):
        return False
    return not ready or store.run(lambda: outputs.mark_ready(held, name, 3, f"digest of {held.attempt}"))


def counting(store: Store, job_id: str) -> list[tuple[int, str, str]]:
    page = store.read(lambda: outputs.counting(0, job_id, (-1, "")))
    return [(one.idx, one.name, one.digest) for one in page]


def lost(store: Store, grace: float = 0.0) -> list[tuple[int, int, str]]:
    return sorted((one.idx, one.attempt, one.name) for one in store.read(lambda: outputs.lost(0, grace)))


def test_an_output_counts_when_its_part_succeeds_and_not_before(store: Store) -> None:
    job_id = make(store, 2)
    one, two = claim(store)
    assert stage(store, two, "b")
    assert stage(store, two, "a")
    assert stage(store, one)
    assert counting(store, job_id) == []
    settle(store, done(one), done(two))
    assert counting(store, job_id) == [(0, "a", "digest of 1"), (1, "a", "digest of 1"), (1, "b", "digest of 1")]
    assert store.read(lambda: outputs.one_counting(0, job_id, 1, "b")) is not None
    assert store.read(lambda: outputs.one_counting(0, job_id, 1, "c")) is None


def test_pages_go_on_after_part_and_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "PAGE_OUTPUTS", 2)
    job_id = make(store, 2)
    for held in claim(store):
        for name in "xy":
            assert stage(store, held, name)
        settle(store, done(held))
    first = store.read(lambda: outputs.counting(0, job_id, (-1, "")))
    second = store.read(lambda: outputs.counting(0, job_id, (first[-1].idx, first[-1].name)))
    assert [(one.idx, one.name) for one in (*first, *second)] == [(0, "x"), (0, "y"), (1, "x"), (1, "y")]


def test_an_output_that_was_not_finished_does_not_count(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    assert stage(store, held, ready=False)
    settle(store, done(held))
    assert counting(store, job_id) == []
    assert lost(store) == [(0, 1, "a")]


def test_a_zombie_can_neither_stage_nor_finish_and_what_it_left_is_lost(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (zombie,) = claim(store)
    assert stage(store, zombie, "early")
    assert stage(store, zombie, "half", ready=False)
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    (holder,) = claim(store)
    assert not stage(store, zombie, "late")
    assert not store.run(lambda: outputs.mark_ready(zombie, "half", 3, "x"))
    assert stage(store, holder, "early")
    settle(store, done(holder))
    assert counting(store, job_id) == [(0, "early", "digest of 2")]
    assert lost(store) == [(0, 1, "early"), (0, 1, "half")]


def test_the_same_name_again_replaces_what_the_attempt_had(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    assert stage(store, held)
    assert stage(store, held, ready=False)
    assert store.run(lambda: outputs.mark_ready(held, "a", 9, "second"))
    settle(store, done(held))
    assert counting(store, job_id) == [(0, "a", "second")]


@pytest.mark.parametrize("end", [failed, released])
def test_what_a_part_left_that_did_not_succeed_is_lost_and_its_next_attempt_begins_anew(
    store: Store, end: Callable[[Claim], Report]
) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    assert stage(store, held)
    settle(store, end(held))
    assert lost(store) == [(0, 1, "a")]
    assert not stage(store, held, "b")
    if end is failed:
        store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    (again,) = claim(store)
    assert stage(store, again)
    settle(store, done(again))
    assert counting(store, job_id) == [(0, "a", "digest of 2")]
    assert lost(store) == [(0, 1, "a")]


def test_nothing_of_a_running_attempt_is_lost_however_old_it_is_and_its_lease_may_be_over(
    store: Store, clock: Clock
) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert stage(store, held)
    clock.advance(86_400)
    assert lost(store, grace=60.0) == []
    settle(store, done(held))
    assert lost(store, grace=60.0) == []


def test_outputs_of_a_cancelled_job_are_lost_when_it_is_swept(store: Store) -> None:
    job_id = make(store, 2)
    one, two = claim(store)
    assert stage(store, one)
    assert stage(store, two)
    settle(store, done(one))
    cancel(store, job_id)
    sweep_all(store)
    assert lost(store) == [(1, 1, "a")]
    assert counting(store, job_id) == [(0, "a", "digest of 1")]


def test_kept_outputs_are_decided_and_swept_ones_are_removed_twice(store: Store, clock: Clock) -> None:
    make(store, 2)
    one, two = claim(store)
    assert stage(store, one)
    assert stage(store, two)
    settle(store, done(one), failed(two))
    assert store.run(lambda: outputs.keep(0, 60.0)) == 0, "too young"
    assert lost(store, 60.0) == []
    clock.advance(61)
    assert store.run(lambda: outputs.keep(0, 60.0)) == 1
    assert store.run(lambda: outputs.keep(0, 60.0)) == 0
    found = store.read(lambda: outputs.lost(0, 60.0))
    assert store.run(lambda: outputs.mark_swept(0, found)) == 1
    assert store.run(lambda: outputs.mark_swept(0, found)) == 0
    assert store.read(lambda: outputs.swept_before(0, 60.0)) == []
    assert store.run(lambda: outputs.undecided(0))[0] == 1
    clock.advance(61)
    again = store.read(lambda: outputs.swept_before(0, 60.0))
    assert [one.path for one in again] == [one.path for one in found]
    assert store.run(lambda: outputs.forget(0, again)) == 1
    assert store.run(lambda: outputs.undecided(0)) == (0, None)


def test_an_output_that_counts_or_may_still_count_cannot_be_noted_as_swept(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert stage(store, held)
    placed = outputs.Placed(held.job_id, 0, 1, held.claim_id, "a", ROOT)

    def noted() -> int:
        return store.run(lambda: outputs.mark_swept(0, [placed])) + store.run(lambda: outputs.forget(0, [placed]))

    assert noted() == 0, "running"
    settle(store, done(held))
    assert noted() == 0, "succeeded"
    store.run(lambda: outputs.keep(0, 0.0))
    assert noted() == 0, "kept"


# Each guard alone.


def statuses(store: Store) -> list[tuple[int, str, str]]:
    """(attempt, name, status) of every output."""
    return sorted(say(store, "SELECT attempt, name, status FROM fanin.staged_output"))


@pytest.mark.parametrize("half", ["attempt", "claim_id"])
def test_half_a_token_neither_stages_nor_finishes(store: Store, half: str) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert stage(store, held, ready=False)
    other = {"attempt": held.attempt + 1, "claim_id": "1b4e28ba-2fa1-41d2-883f-0016d3cca427"}[half]
    wrong = msgspec.structs.replace(held, **{half: other})
    assert not store.run(lambda: outputs.stage(wrong, "b", ROOT))
    assert not store.run(lambda: outputs.mark_ready(wrong, "a", 3, "x"))
    assert statuses(store) == [(1, "a", "staged")]


@pytest.mark.plants_corruption
def test_a_row_of_a_claim_that_never_held_the_part_is_not_finished(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert stage(store, held, ready=False)
    other = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
    say(store, f"UPDATE fanin.staged_output SET claim_id = '{other}'")
    wrong = msgspec.structs.replace(held, claim_id=other)
    assert not store.run(lambda: outputs.mark_ready(wrong, "a", 3, "x"))
    assert statuses(store) == [(1, "a", "staged")]


def test_a_part_that_has_ended_takes_no_output_by_its_last_token(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert stage(store, held, ready=False)
    settle(store, done(held))
    assert not store.run(lambda: outputs.stage(held, "b", ROOT))
    assert not store.run(lambda: outputs.mark_ready(held, "a", 3, "x"))
    assert statuses(store) == [(1, "a", "staged")]


def test_an_output_that_was_removed_is_not_begun_or_finished_again(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert stage(store, held)
    say(store, "UPDATE fanin.staged_output SET status = 'swept', digest = NULL")
    assert not store.run(lambda: outputs.stage(held, "a", ROOT))
    assert not store.run(lambda: outputs.mark_ready(held, "a", 3, "x"))
    assert statuses(store) == [(1, "a", "swept")]


def two_attempts(store: Store, clock: Clock) -> Claim:
    """Both attempts of a part have an output "a"; the first one's is not finished. The holder's claim."""
    make(store, 1)
    (zombie,) = claim(store)
    assert stage(store, zombie, ready=False)
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    (holder,) = claim(store)
    assert stage(store, holder)
    return holder


def test_finishing_and_noting_are_for_one_attempt_alone(store: Store, clock: Clock) -> None:
    holder = two_attempts(store, clock)
    assert statuses(store) == [(1, "a", "staged"), (2, "a", "ready")]
    settle(store, failed(holder))
    first, second = sorted(store.read(lambda: outputs.lost(0, 0.0)), key=lambda one: one.attempt)
    assert store.run(lambda: outputs.mark_swept(0, [first])) == 1
    assert statuses(store) == [(1, "a", "swept"), (2, "a", "ready")]
    assert store.run(lambda: outputs.mark_swept(0, [second])) == 1
    assert store.run(lambda: outputs.forget(0, [first])) == 1
    assert statuses(store) == [(2, "a", "swept")]


def test_only_finished_outputs_of_the_claim_that_succeeded_are_kept(store: Store, clock: Clock) -> None:
    holder = two_attempts(store, clock)
    say(store, "UPDATE fanin.staged_output SET status = 'ready', size = 1, digest = 'x' WHERE attempt = 1")
    assert stage(store, holder, "half", ready=False)
    assert store.run(lambda: outputs.keep(0, 0.0)) == 0, "the part is still running"
    settle(store, done(holder))
    assert store.run(lambda: outputs.keep(0, 60.0)) == 0, "too young"
    assert store.run(lambda: outputs.keep(0, 0.0)) == 1
    assert statuses(store) == [(1, "a", "ready"), (2, "a", "kept"), (2, "half", "staged")]
    lost_ones = store.read(lambda: outputs.lost(0, 0.0))
    assert store.run(lambda: outputs.mark_swept(0, lost_ones)) == 2
