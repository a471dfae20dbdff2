"""Claim, renew, checkpoint, wake, reap."""

from __future__ import annotations

import pytest

from fanin.domain import identity, limits
from fanin.domain.model import Claim
from fanin.domain.policy import Policy
from fanin.protocol import finish, lease, read
from fanin.stores.base import Store
from tests.protocol.helpers import (
    TASK,
    THEN,
    Clock,
    append,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    events,
    failed,
    job,
    log,
    make,
    make_open,
    part,
    released,
    retried,
    run_all,
    say,
    seal,
    settle,
    snapshot,
    states,
    sweep_all,
    verdicts,
)


def wake(store: Store) -> list[str]:
    return store.run(lambda: lease.wake(0)).queues


def reap(store: Store) -> int:
    return store.run(lambda: lease.reap(0))


def renew(store: Store, *held: Claim, seconds: float = 60.0) -> list[Claim]:
    return store.run(lambda: lease.renew(0, [(c, seconds) for c in held]))


def test_a_claim_gives_each_part_a_higher_attempt_and_the_claim_id_of_the_call(store: Store) -> None:
    job_id = make(store, 2, attempts=4)
    first = claim(store, worker="a")
    assert [(c.job_id, c.idx, c.task, c.attempt, c.attempts_allowed, c.payload) for c in first] == [
        (job_id, n, TASK, 1, 4, str(n)) for n in (0, 1)
    ]
    assert len({c.claim_id for c in first}) == 1
    settle(store, *map(retried, first))
    second = claim(store, worker="b")
    assert [c.attempt for c in second] == [2, 2]
    assert second[0].claim_id != first[0].claim_id
    assert (part(store, job_id, 0)["worker"], part(store, job_id, 0)["status"]) == ("b", "running")


def test_a_claim_takes_no_more_than_it_asked_for_and_never_more_than_the_limit(store: Store) -> None:
    make(store, limits.CLAIM_PARTS + 10)
    assert len(claim(store, 3)) == 3
    assert len(claim(store, 10_000)) == limits.CLAIM_PARTS
    assert len(claim(store, 10_000)) == 7
    assert claim(store) == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_claim_of_nothing_takes_nothing(store: Store, limit: int) -> None:
    make(store, 1)
    assert claim(store, limit) == []
    assert claim(store, tasks=()) == []


def test_a_claim_takes_only_its_queue_and_its_tasks(store: Store) -> None:
    make(store, 1, queue="a", task="one")
    make(store, 1, queue="a", task="two")
    make(store, 1, queue="b", task="one")
    assert [c.task for c in claim(store, queue="a", tasks=["two", "three"])] == ["two"]
    assert [c.task for c in claim(store, queue="b", tasks=["two"])] == []
    assert [c.task for c in claim(store, queue="b", tasks=["one"])] == ["one"]
    assert store.read(lambda: lease.any_ready(0, "a")) is True
    assert store.read(lambda: lease.any_ready(0, "b")) is False


def test_each_task_of_a_claim_has_its_own_lease(store: Store, clock: Clock) -> None:
    make(store, 1, task="short")
    make(store, 1, task="long")
    leases = {"long": 100.0, "short": 10.0}
    held = store.run(lambda: lease.claim(0, "q", leases, 10, identity.new_claim_id(), "w"))
    assert len(held) == 2
    clock.advance(11)
    assert wake(store) == ["q"]
    (again,) = claim(store, tasks=["short", "long"])
    assert again.task == "short"


def test_a_higher_priority_goes_first_and_equal_ones_go_in_the_order_of_their_turn(store: Store) -> None:
    low, high, middle = (make(store, 2, priority=p) for p in (-5, 9, 0))
    found = [claim(store, 1)[0] for _ in range(6)]
    assert [(c.job_id, c.idx) for c in found] == [
        (high, 0), (high, 1), (middle, 0), (middle, 1), (low, 0), (low, 1),
    ]  # fmt: skip


def test_a_small_job_behind_a_giant_one_gets_its_share_at_once(store: Store) -> None:
    giant = make(store, 5_000)
    taken = claim(store, 200)
    assert {c.job_id for c in taken} == {giant}
    small = make(store, 10)
    shared = claim(store, 20)
    assert sum(c.job_id == small for c in shared) == 10
    assert sum(c.job_id == giant for c in shared) == 10


def test_a_second_giant_shares_with_the_first_from_its_first_claim_on(store: Store) -> None:
    first = make(store, 1_000)
    claim(store, 100)
    second = make(store, 1_000)
    shared = claim(store, 100)
    assert {j: sum(c.job_id == j for c in shared) for j in (first, second)} == {first: 50, second: 50}


def test_a_retried_part_keeps_its_turn(store: Store) -> None:
    make(store, 10)
    (first,) = claim(store, 1)
    settle(store, retried(first))
    assert claim(store, 1)[0].key == first.key


def test_two_claims_never_hold_the_same_part(store: Store) -> None:
    make(store, 50)
    seen = [c.key for _ in range(5) for c in claim(store, 10)]
    assert len(set(seen)) == 50


def test_an_appended_part_of_an_open_job_is_claimed_like_any_other(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    assert [c.idx for c in claim(store)] == [0, 1]
    assert seal(store, job_id, 2) is True


def test_a_renewed_lease_does_not_run_out(store: Store, clock: Clock) -> None:
    make(store, 1)
    (held,) = claim(store, seconds=60)
    clock.advance(50)
    assert renew(store, held) == []
    clock.advance(50)
    assert wake(store) == []
    assert claim(store) == []
    clock.advance(11)
    assert wake(store) == ["q"]


def test_a_lease_that_ran_out_is_logged_and_the_part_may_be_claimed_by_another(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (lost,) = claim(store, worker="slow")
    clock.advance(61)
    assert wake(store) == ["q"]
    assert wake(store) == []
    assert log(store, job_id) == [(0, 1, "lease_lost")]
    (held,) = claim(store, worker="quick")
    assert (held.attempt, held.key) == (2, lost.key)
    assert held.claim_id != lost.claim_id


def test_the_holder_may_still_report_until_somebody_else_has_claimed(store: Store, clock: Clock) -> None:
    job_id = make(store, 2)
    late, zombie = claim(store)
    clock.advance(61)
    wake(store)
    assert [v.value for v in verdicts(store, done(late))] == ["ok"]
    (held,) = claim(store)
    assert held.key == zombie.key
    assert [v.value for v in verdicts(store, done(zombie))] == ["lost"]
    assert [v.value for v in verdicts(store, done(held))] == ["last"]
    assert log(store, job_id) == [(0, 1, "lease_lost"), (1, 1, "lease_lost"), (1, 1, "refused")]


def test_a_lease_renewed_after_it_ran_out_is_held_again_if_nobody_has_claimed(store: Store, clock: Clock) -> None:
    make(store, 1)
    (held,) = claim(store)
    clock.advance(61)
    wake(store)
    assert renew(store, held) == []
    assert claim(store) == []
    assert [v.value for v in verdicts(store, done(held))] == ["last"]


def test_a_renewal_tells_which_claims_are_lost(store: Store, clock: Clock) -> None:
    job_id = make(store, 4)
    settled, overtaken, kept, given = claim(store)
    settle(store, done(settled), released(given, delay=1000))
    clock.advance(59)
    renew(store, kept)
    clock.advance(2)
    wake(store)
    (other,) = claim(store)
    assert other.key == overtaken.key
    assert renew(store, settled, overtaken, kept, given, other) == [settled, overtaken, given]
    assert job(store, job_id).status == "running"


def test_a_renewal_with_a_foreign_claim_id_or_an_unknown_part_is_lost(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    fake = Claim(0, job_id, 0, TASK, 1, identity.new_claim_id(), 3, "0")
    unknown = Claim(0, job_id, 99, TASK, 1, held.claim_id, 3, "0")
    ahead = Claim(0, job_id, 0, TASK, 2, held.claim_id, 3, "0")
    before = {**snapshot(store), "attempt_log": []}  # it notes what was stopped
    assert renew(store, fake, unknown, ahead) == [fake, unknown, ahead]
    assert [store.run(lambda c=c: lease.checkpoint(c, 60.0, "1")) for c in (fake, unknown, ahead)] == [False] * 3  # type: ignore[misc]
    assert {**snapshot(store), "attempt_log": []} == before
    assert renew(store) == []


def test_a_renewal_is_lost_once_the_closed_job_is_swept(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    cancel(store, job_id)
    assert sweep_all(store) == 1
    assert renew(store, held) == [held]


def test_a_checkpoint_renews_the_lease_and_is_given_to_the_next_attempt(store: Store, clock: Clock) -> None:
    make(store, 1)
    (held,) = claim(store)
    clock.advance(50)
    assert store.run(lambda: lease.checkpoint(held, 60.0, '{"row": 7}')) is True
    clock.advance(50)
    assert wake(store) == []
    clock.advance(11)
    wake(store)
    (again,) = claim(store)
    assert (again.attempt, again.checkpoint, held.checkpoint) == (2, '{"row": 7}', None)


def test_a_checkpoint_by_an_attempt_that_lost_its_part_changes_nothing(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (zombie,) = claim(store)
    clock.advance(61)
    wake(store)
    (held,) = claim(store)
    store.run(lambda: lease.checkpoint(held, 60.0, "2"))
    before = {**snapshot(store), "attempt_log": []}
    assert store.run(lambda: lease.checkpoint(zombie, 60.0, "1")) is False
    assert {**snapshot(store), "attempt_log": []} == before
    assert part(store, job_id, 0)["checkpoint"] == "2"


def test_a_checkpoint_after_the_end_of_the_part_changes_nothing(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    settle(store, done(held))
    assert store.run(lambda: lease.checkpoint(held, 60.0, "1")) is False


def test_a_checkpoint_and_a_payload_of_many_bytes_survive_a_claim(store: Store) -> None:
    big = '"' + "é" * 400_000 + '"'
    make(store, [big])
    (held,) = claim(store)
    store.run(lambda: lease.checkpoint(held, 60.0, big))
    settle(store, retried(held))
    (again,) = claim(store)
    assert (again.payload, again.checkpoint) == (big, big)


def test_a_last_attempt_whose_lease_ran_out_has_failed_and_ends_the_job(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, attempts=1)
    dead, alive = claim(store, worker="gone")
    settle(store, done(alive))
    clock.advance(61)
    assert wake(store) == []
    assert reap(store) == 1
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert states(store, job_id) == ["failed", "succeeded"]
    assert log(store, job_id) == [(0, 1, "failed")]
    assert reap(store) == 0
    assert [v.value for v in verdicts(store, done(dead))] == ["lost"]


def test_a_reaped_part_says_that_its_worker_was_lost(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=1)
    claim(store)
    clock.advance(61)
    reap(store)
    (failure,) = store.read(lambda: read.failures(0, job_id, 0))
    assert (failure.type, failure.message) == ("WorkerLost", "the lease ran out and no attempt is left")


def test_a_lease_that_was_renewed_after_the_reaper_looked_is_left_alone(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=1)
    (held,) = claim(store)
    clock.advance(61)
    seen = [(job_id, 0, 1)]
    renew(store, held)
    assert store.run(lambda: finish.reap(0, seen)) == 0
    assert [v.value for v in verdicts(store, done(held))] == ["last"]


def test_the_reaper_fails_no_attempt_but_the_one_it_saw_and_none_that_has_another_left(
    store: Store, clock: Clock
) -> None:
    job_id = make(store, 2, attempts=2)
    first, second = claim(store)
    settle(store, retried(first))
    claim(store)
    clock.advance(61)
    before = snapshot(store)
    seen_too_early, has_one_left = (job_id, 0, first.attempt), (job_id, 1, second.attempt)
    assert store.run(lambda: finish.reap(0, [seen_too_early, has_one_left])) == 0
    assert snapshot(store) == before
    assert reap(store) == 1
    assert states(store, job_id) == ["failed", "running"]


def test_the_reaper_leaves_parts_of_a_closed_job_to_the_sweeper(store: Store, clock: Clock) -> None:
    ended, going = make(store, 1, attempts=1), make(store, 2, attempts=1)
    claim(store)
    cancel(store, ended)
    clock.advance(61)
    assert reap(store) == 2
    assert states(store, ended) == ["running"]
    assert ending(store, going) == ("failed", "too_many_failures")
    assert sweep_all(store) == 1
    assert len(events(store, ended)) == 1


def test_a_reaped_part_is_judged_by_the_policy_like_any_failure(store: Store, clock: Clock) -> None:
    job_id = make(store, 3, attempts=1, policy=Policy(fail_fast=True), then=THEN)
    claim(store, 1)
    clock.advance(61)
    assert reap(store) == 1
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert sweep_all(store) == 2


def test_a_worker_that_dies_at_every_attempt_costs_the_whole_allowance_and_no_more(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=3)
    attempts = []
    for _ in range(5):
        attempts += [c.attempt for c in claim(store)]
        clock.advance(61)
        wake(store)
        reap(store)
    assert attempts == [1, 2, 3]
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert log(store, job_id) == [(0, 1, "lease_lost"), (0, 2, "lease_lost"), (0, 3, "failed")]


def test_a_look_tells_the_next_moment_and_whether_anything_is_unswept(store: Store, clock: Clock) -> None:
    nothing = store.read(lambda: lease.look(0))
    assert (nothing.soonest, nothing.unswept) == (None, False)
    job_id = make(store, 2, give_up_after=20.0)
    (held,) = claim(store, 1, seconds=10)
    seen = store.read(lambda: lease.look(0))
    assert seen.due_in is not None
    assert seen.give_up_in is not None
    assert 5 < seen.due_in <= 10 < 15 < seen.give_up_in <= 20
    assert seen.soonest == seen.due_in
    cancel(store, job_id)
    assert store.read(lambda: lease.look(0)).unswept is True
    sweep_all(store)
    assert store.read(lambda: lease.look(0)) == nothing
    assert [v.value for v in verdicts(store, failed(held))] == ["closed"]


def test_ten_thousand_parts_are_claimed_once_each(store: Store) -> None:
    job_id = make(store, 10_000, stripes=4)
    held = claim_all(store)
    assert sorted(c.idx for c in held) == list(range(10_000))
    for first in range(0, 10_000, 1_000):
        settle(store, *map(done, held[first : first + 1_000]))
    assert ending(store, job_id) == ("completed", "all_ok")
    assert say(store, "SELECT DISTINCT attempt FROM fanin.part") == [(1,)]
    assert run_all(store) == []


def test_a_heartbeat_that_its_own_report_has_overtaken_has_stopped_nothing(store: Store) -> None:
    make(store, 2)
    one, two = claim(store)
    settle(store, done(one), failed(two))
    assert store.run(lambda: lease.renew(0, [(one, 60.0), (two, 60.0)], "w1")) == [one, two]
    assert say(store, "SELECT * FROM fanin.attempt_log WHERE what = 'stopped'") == []


def test_what_is_too_old_to_start_is_not_claimed_unless_it_has_started(store: Store, clock: Clock) -> None:
    make(store, 1, stale_after=5.0, stale="skip")
    (started,) = claim(store)
    settle(store, released(started))
    clock.advance(6)
    old = make(store, 1, stale_after=-1.0, stale="skip")
    young = make(store, 1, stale_after=60.0, stale="skip")
    assert {held.job_id for held in claim(store)} == {started.job_id, young}
    assert states(store, old) == ["pending"]
