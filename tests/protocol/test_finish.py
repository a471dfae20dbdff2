"""Reports are settled and counted, and the last one ends the job: verdicts, policies, successors."""

from __future__ import annotations

import random
import threading
from typing import Any

import msgspec
import pytest

from fanin.domain import identity, limits
from fanin.domain.model import Claim, Report, Spec
from fanin.domain.policy import Policy
from fanin.protocol import exchange, finish, lease
from fanin.protocol.steps import Txn
from fanin.stores.base import Store, retry
from fanin.testing import cuts
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
    error,
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
    successors,
    sweep_all,
    verdicts,
)
from tests.support.postgres import Server


def said(store: Store, *reports: Report) -> list[str]:
    return [verdict.value for verdict in verdicts(store, *reports)]


# What is said about one part


def test_the_last_success_ends_the_job(store: Store) -> None:
    job_id = make(store, 2)
    first, second = claim(store)
    assert said(store, done(first, '"a"')) == ["ok"]
    assert ending(store, job_id) == ("running", None)
    assert said(store, done(second, '"b"')) == ["last"]
    assert ending(store, job_id) == ("completed", "all_ok")
    assert states(store, job_id) == ["succeeded"] * 2
    assert log(store, job_id) == []


def test_a_job_of_one_part_ends_with_it(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    (answer,) = settle(store, done(held))
    assert (answer.verdict.value, answer.status, answer.attempt) == ("last", "succeeded", 1)
    assert ending(store, job_id) == ("completed", "all_ok")


def test_every_report_of_the_batch_that_ends_a_job_is_told_so(store: Store) -> None:
    ends, goes_on = make(store, 2), make(store, 3)
    held = claim(store)
    mine = [c for c in held if c.job_id == ends] + [c for c in held if c.job_id == goes_on][:2]
    assert said(store, *map(done, mine)) == ["last", "last", "ok", "ok"]


def test_the_same_result_again_is_a_replay_and_writes_nothing(store: Store) -> None:
    make(store, 2)
    held, _ = claim(store)
    settle(store, done(held, "1"))
    before = snapshot(store)
    for _ in range(3):
        assert said(store, done(held, "1")) == ["replay"]
    assert snapshot(store) == before


def test_another_result_of_the_same_attempt_is_a_conflict_and_writes_nothing(store: Store) -> None:
    make(store, 2)
    held, _ = claim(store)
    settle(store, done(held, "1"))
    before = snapshot(store)
    assert said(store, done(held, "2")) == ["conflict"]
    assert said(store, failed(held)) == ["conflict"]
    assert said(store, retried(held)) == ["conflict"]
    assert said(store, released(held)) == ["conflict"]
    assert snapshot(store) == before


def test_a_report_by_an_overtaken_attempt_is_lost_names_the_holder_and_is_logged(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (zombie,) = claim(store)
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    (held,) = claim(store)
    (answer,) = settle(store, done(zombie, "9"), worker="zombie")
    assert (answer.verdict.value, answer.status, answer.attempt) == ("lost", "running", 2)
    assert said(store, failed(zombie)) == ["lost"]
    rows = say(store, "SELECT attempt, what, worker, holder FROM fanin.attempt_log WHERE what = 'refused'")
    assert rows == [(1, "refused", "zombie", 2)]
    assert said(store, done(held, "1")) == ["last"]
    assert said(store, done(zombie, "9")) == ["lost"]
    assert part(store, job_id, 0)["result"] == "1"


def test_the_right_attempt_with_another_claim_id_is_lost(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    forged = msgspec.structs.replace(held, claim_id=identity.new_claim_id())
    assert said(store, done(forged)) == ["lost"]
    assert said(store, done(held)) == ["last"]


def test_the_right_claim_id_with_another_attempt_is_lost(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert said(store, done(msgspec.structs.replace(held, attempt=2))) == ["lost"]
    assert said(store, done(held)) == ["last"]


def test_a_part_that_does_not_exist_is_unknown(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    before = snapshot(store)
    nobody = "00000000-0000-7000-8000-000000000000"
    no_part = msgspec.structs.replace(held, idx=1)
    no_job = msgspec.structs.replace(held, job_id=nobody)
    assert said(store, done(no_part), failed(no_job)) == ["unknown", "unknown"]
    assert snapshot(store) == before
    assert states(store, job_id) == ["running"]


def test_a_report_after_the_close_is_refused_as_closed(store: Store) -> None:
    job_id = make(store, 2)
    first, second = claim(store)
    settle(store, done(first))
    cancel(store, job_id)
    assert said(store, done(second)) == ["closed"]
    assert said(store, done(first)) == ["replay"]
    assert states(store, job_id) == ["succeeded", "running"]
    assert sweep_all(store) == 1
    assert said(store, done(second)) == ["closed"]
    assert said(store, failed(second)) == ["closed"]
    assert states(store, job_id) == ["succeeded", "abandoned"]
    assert log(store, job_id) == [(1, 1, "refused")]


def test_a_closed_job_in_a_batch_does_not_hold_up_the_others(store: Store) -> None:
    jobs = [make(store, 1) for _ in range(5)]
    held = claim(store)
    closed = {jobs[1], jobs[3]}
    for job_id in closed:
        cancel(store, job_id)
    by_job = dict(zip([c.job_id for c in held], said(store, *map(done, held)), strict=True))
    assert by_job == {j: "closed" if j in closed else "last" for j in jobs}


# What a report does to the allowance


def test_a_retry_gives_the_part_back_and_costs_an_attempt(store: Store) -> None:
    job_id = make(store, 1, attempts=2)
    (held,) = claim(store)
    (answer,) = settle(store, retried(held))
    assert (answer.verdict.value, answer.status) == ("ok", "pending")
    row = part(store, job_id, 0)
    assert (row["status"], row["attempt"], row["attempts_allowed"]) == ("pending", 1, 2)
    assert log(store, job_id) == [(0, 1, "retried")]
    assert said(store, retried(held)) == ["replay"]
    assert said(store, done(held)) == ["lost"]
    assert [c.attempt for c in claim(store)] == [2]


def test_a_retry_without_an_attempt_left_is_a_failure_for_good(store: Store) -> None:
    job_id = make(store, 1, attempts=2)
    settle(store, retried(claim(store)[0]))
    (held,) = claim(store)
    (answer,) = settle(store, retried(held))
    assert (answer.verdict.value, answer.status) == ("last", "failed")
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert log(store, job_id) == [(0, 1, "retried"), (0, 2, "failed")]
    assert said(store, retried(held)) == ["replay"]


def test_a_failure_for_good_does_not_use_the_attempts_that_are_left(store: Store) -> None:
    job_id = make(store, 1, attempts=5)
    (held,) = claim(store)
    assert said(store, failed(held)) == ["last"]
    assert claim(store) == []
    assert said(store, failed(held)) == ["replay"]
    assert said(store, done(held)) == ["lost"]
    assert states(store, job_id) == ["failed"]


def test_a_release_costs_no_attempt_and_never_lowers_the_attempt_number(store: Store) -> None:
    job_id = make(store, 1, attempts=1)
    for n in range(1, 6):
        (held,) = claim(store)
        assert held.attempt == n
        assert said(store, released(held)) == ["ok"]
        row = part(store, job_id, 0)
        assert (row["attempt"], row["attempts_allowed"]) == (n, n + 1)
        assert said(store, released(held)) == ["replay"]
        assert part(store, job_id, 0)["attempts_allowed"] == n + 1
    settle(store, retried(claim(store)[0]))
    assert ending(store, job_id) == ("failed", "too_many_failures")


@pytest.mark.parametrize("say_it", [retried, released])
def test_a_part_given_back_with_a_delay_comes_back_after_it(store: Store, clock: Clock, say_it: Any) -> None:
    make(store, 1)
    (held,) = claim(store)
    settle(store, say_it(held, delay=30.0))
    assert claim(store) == []
    clock.advance(29)
    assert store.run(lambda: lease.wake(0)).queues == []
    clock.advance(2)
    assert store.run(lambda: lease.wake(0)).queues == ["q"]
    assert [c.attempt for c in claim(store)] == [2]
    assert all(what != "lease_lost" for _, _, what in log(store, held.job_id))


@pytest.mark.parametrize("delay", [float("inf"), 1e300, float("nan"), -5.0, -float("inf")])
def test_a_delay_that_is_no_time_is_cut_to_one(store: Store, delay: float) -> None:
    make(store, 1)
    (held,) = claim(store)
    assert said(store, retried(held, delay=delay)) == ["ok"]
    due = store.read(lambda: lease.look(0)).due_in
    if delay > 0:
        assert due is not None
        assert limits.DELAY_SECONDS_MAX - 5 < due <= limits.DELAY_SECONDS_MAX
    else:
        assert len(claim(store)) == 1


def test_delays_may_be_whole_numbers_and_fractions_in_one_batch(store: Store) -> None:
    make(store, 3)
    one, two, three = claim(store)
    assert said(store, retried(one, delay=1), retried(two, delay=0.5), done(three)) == ["ok", "ok", "ok"]


# Batches


def test_one_batch_settles_several_jobs_in_any_order(store: Store) -> None:
    jobs = [make(store, 10, stripes=2) for _ in range(8)]
    held = claim_all(store)
    random.Random(7).shuffle(held)
    assert said(store, *map(done, held)) == ["last"] * 80
    assert [ending(store, j) for j in jobs] == [("completed", "all_ok")] * 8


def test_one_batch_may_say_every_verb(store: Store) -> None:
    job_id = make(store, 5)
    a, b, c, d, _ = claim(store)
    assert said(store, retried(b), done(a), released(d), failed(c)) == ["ok"] * 4
    assert states(store, job_id) == ["succeeded", "pending", "failed", "pending", "running"]
    stripes = say(store, "SELECT created, remaining, succeeded, failed, abandoned FROM fanin.job_stripe")
    assert stripes == [(5, 3, 1, 1, 0)]


def test_a_report_twice_in_one_batch_counts_once(store: Store) -> None:
    job_id = make(store, 2)
    first, second = claim(store)
    assert said(store, done(first), done(first), done(first, "2")) == ["ok", "replay", "conflict"]
    assert said(store, failed(second), failed(second)) == ["last", "replay"]
    assert states(store, job_id) == ["succeeded", "failed"]


def test_a_stale_and_a_present_report_of_one_part_in_one_batch(store: Store) -> None:
    make(store, 1)
    (old,) = claim(store)
    settle(store, retried(old))
    (held,) = claim(store)
    assert said(store, done(old), done(held), done(old)) == ["lost", "last", "lost"]


def test_a_forged_claim_id_beside_the_true_one_in_one_batch(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    forged = msgspec.structs.replace(held, claim_id=identity.new_claim_id())
    assert said(store, done(forged), done(held)) == ["lost", "last"]


def test_an_attempt_number_from_the_future_beside_the_true_one_in_one_batch(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    ahead = msgspec.structs.replace(held, attempt=9)
    assert said(store, done(held), done(ahead)) == ["last", "lost"]


def test_a_batch_of_nothing_settles_nothing(store: Store) -> None:
    assert settle(store) == []


def test_stale_tokens_by_the_thousand_change_nothing(store: Store) -> None:
    job_id = make(store, 500, attempts=100)
    stale: list[Claim] = []
    for _ in range(4):
        held = claim_all(store)
        stale += held
        settle(store, *map(retried, held))
    held = claim_all(store)
    counters = say(store, "SELECT * FROM fanin.job_stripe")
    noise = [done(c, "9") for c in stale] + [failed(c) for c in stale] + [released(c) for c in stale]
    random.Random(1).shuffle(noise)
    assert set(said(store, *noise)) == {"lost"}
    assert say(store, "SELECT * FROM fanin.job_stripe") == counters
    assert states(store, job_id) == ["running"] * 500
    mixed = [done(c) for c in held] + noise[:2000]
    random.Random(2).shuffle(mixed)
    answers = said(store, *mixed)
    assert (answers.count("last"), answers.count("lost")) == (500, 2000)
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_whole_job_reported_three_times_over_ends_once(store: Store) -> None:
    job_id = make(store, 1_000, stripes=8, then=THEN)
    held = claim_all(store)
    reports = [done(c, str(c.idx)) for c in held] * 3
    random.Random(3).shuffle(reports)
    seen: list[str] = []
    for first in range(0, 3_000, 250):
        seen += said(store, *reports[first : first + 250])
    assert (seen.count("ok") + seen.count("last"), seen.count("replay")) == (1_000, 2_000)
    assert len(events(store, job_id)) == len(successors(store, job_id)) == 1


# The end: policies


def finish_with(store: Store, job_id: str, *, fail: int) -> None:
    """Report the parts one by one: first the failures, then the successes, until the job has ended."""
    for n, held in enumerate(claim_all(store)):
        settle(store, failed(held) if n < fail else done(held))


@pytest.mark.parametrize(
    ("rule", "parts", "fail", "status", "outcome"),
    [
        (Policy(), 4, 0, "completed", "all_ok"),
        (Policy(), 4, 1, "failed", "too_many_failures"),
        (Policy(tolerate=1), 4, 1, "completed", "with_failures"),
        (Policy(tolerate=1), 4, 2, "failed", "too_many_failures"),
        (Policy(tolerate_percent=50.0), 4, 2, "completed", "with_failures"),
        (Policy(tolerate_percent=50.0), 4, 3, "failed", "too_many_failures"),
        (Policy(tolerate_percent=100.0), 4, 4, "completed", "with_failures"),
        (Policy(tolerate_percent=0.0), 4, 1, "failed", "too_many_failures"),
        (Policy(quorum=4), 4, 0, "completed", "all_ok"),
    ],
)
def test_a_job_that_runs_to_its_end_is_judged_by_its_policy(
    store: Store, rule: Policy, parts: int, fail: int, status: str, outcome: str
) -> None:
    job_id = make(store, parts, policy=rule, then=THEN)
    finish_with(store, job_id, fail=fail)
    assert ending(store, job_id) == (status, outcome)
    row = job(store, job_id)
    assert (row.succeeded_parts, row.failed_parts, row.abandoned_parts) == (parts - fail, fail, 0)
    assert len(successors(store, job_id)) == (status == "completed")


def test_a_failure_at_the_end_is_judged_when_every_part_has_ended(store: Store) -> None:
    job_id = make(store, 3)
    first, second, third = claim(store)
    settle(store, failed(first))
    assert ending(store, job_id) == ("running", None)
    settle(store, done(second))
    assert said(store, done(third)) == ["last"]
    row = job(store, job_id)
    assert (row.outcome, row.reason) == ("too_many_failures", "1 of 3 parts failed, tolerated 0")


def test_fail_fast_closes_the_job_with_the_first_failure_too_many(store: Store) -> None:
    job_id = make(store, 200, stripes=3, policy=Policy(fail_fast=True, tolerate=1), then=THEN)
    held = claim_all(store)
    assert said(store, failed(held[0])) == ["ok"]
    assert said(store, failed(held[100])) == ["last"]
    assert ending(store, job_id) == ("failed", "too_many_failures")
    row = job(store, job_id)
    assert (row.failed_parts, row.abandoned_parts) == (2, 198)
    assert said(store, done(held[1]), failed(held[101])) == ["closed", "closed"]
    assert sweep_all(store) == 198
    assert successors(store, job_id) == []


def test_a_tolerated_share_is_judged_early_once_the_sample_has_ended(store: Store) -> None:
    rule = Policy(fail_fast=True, tolerate_percent=10.0, sample=10)
    job_id = make(store, 100, policy=rule)
    held = claim_all(store)
    settle(store, *map(done, held[:7]))
    assert said(store, failed(held[7]), failed(held[8])) == ["ok", "ok"]
    assert said(store, failed(held[9])) == ["last"]
    assert ending(store, job_id) == ("failed", "too_many_failures")


def test_without_a_sample_a_tolerated_share_is_judged_against_all_parts(store: Store) -> None:
    job_id = make(store, 100, policy=Policy(fail_fast=True, tolerate_percent=3.0))
    held = claim_all(store)
    assert said(store, *map(failed, held[:3])) == ["ok"] * 3
    assert said(store, failed(held[3])) == ["last"]
    assert ending(store, job_id) == ("failed", "too_many_failures")


def test_a_quorum_closes_the_job_as_a_success_and_the_successor_is_told(store: Store) -> None:
    job_id = make(store, 100, stripes=2, policy=Policy(quorum=3), then=THEN)
    held = claim_all(store)
    assert said(store, done(held[0]), failed(held[1])) == ["ok", "ok"]
    assert said(store, done(held[70])) == ["ok"]
    assert said(store, done(held[71])) == ["last"]
    assert ending(store, job_id) == ("completed", "partial")
    row = job(store, job_id)
    assert (row.succeeded_parts, row.failed_parts, row.abandoned_parts) == (3, 1, 96)
    assert row.reason == "quorum of 3 reached"
    assert len(successors(store, job_id)) == 1
    assert said(store, done(held[2])) == ["closed"]
    assert sweep_all(store) == 96


def test_a_quorum_that_cannot_be_reached_any_more_ends_the_job_as_a_failure(store: Store) -> None:
    job_id = make(store, 4, policy=Policy(quorum=3), then=THEN)
    held = claim(store)
    assert said(store, failed(held[0])) == ["ok"]
    assert said(store, failed(held[1])) == ["last"]
    assert ending(store, job_id) == ("failed", "too_many_failures")
    assert "cannot be reached: 2 of 4 parts failed" in str(job(store, job_id).reason)
    assert successors(store, job_id) == []
    assert sweep_all(store) == 2


def test_a_quorum_of_an_open_job_is_not_impossible_before_the_seal(store: Store) -> None:
    job_id = make_open(store, policy=Policy(quorum=2))
    append(store, job_id, 0, 2)
    held = claim(store)
    assert said(store, failed(held[0])) == ["ok"]
    append(store, job_id, 2, 1)
    seal(store, job_id, 3)
    assert said(store, done(held[1])) == ["ok"]
    assert [v.value for v in run_all(store)] == ["last"]
    assert ending(store, job_id) == ("completed", "with_failures")


def test_a_batch_that_reaches_the_quorum_with_the_last_part_ends_naturally(store: Store) -> None:
    job_id = make(store, 2, policy=Policy(quorum=1))
    assert said(store, *map(done, claim(store))) == ["last", "last"]
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_batch_that_closes_one_job_early_ends_another_by_its_last_part(store: Store) -> None:
    early, natural = make(store, 5, policy=Policy(fail_fast=True)), make(store, 1)
    held = claim(store)
    reports = [failed(c) if c.job_id == early else done(c) for c in held if c.idx == 0]
    assert said(store, *reports) == ["last", "last"]
    assert ending(store, early) == ("failed", "too_many_failures")
    assert ending(store, natural) == ("completed", "all_ok")


# The successor


def test_a_successor_is_created_once_with_what_the_join_found(store: Store) -> None:
    job_id = make(store, 3, key="album", policy=Policy(tolerate=1), then=THEN)
    first, second, third = claim(store)
    settle(store, done(first), failed(second), done(third))
    (child,) = successors(store, job_id)
    assert child == identity.successor_id(job_id, "then", 1)
    row = job(store, child)
    assert (row.task, row.queue, row.status, row.priority, row.attempts) == ("join", "joins", "running", 7, 2)
    assert (row.depth, row.parent_id, row.root_id, row.step, row.key) == (1, job_id, job_id, "then", None)
    (held,) = claim(store, queue="joins", tasks=["join"])
    payload = msgspec.json.decode(held.payload)
    assert payload["extra"] == '{"zip": true}'
    assert {"version": 1, **payload["joined"]} == events(store, job_id)[0]
    joined = payload["joined"]
    assert (joined["succeeded"], joined["failed"], joined["abandoned"], joined["outcome"]) == (
        2, 1, 0, "with_failures",
    )  # fmt: skip
    assert (joined["job_id"], joined["key"], joined["run"]) == (job_id, "album", 1)
    assert said(store, done(held)) == ["last"]
    assert ending(store, child) == ("completed", "all_ok")


def test_a_successor_does_not_wait_behind_a_giant_neighbour(store: Store) -> None:
    then = Spec(task=TASK, queue="q")
    make(store, 1_000)
    claim(store, 100)
    small = make(store, 1, then=then, priority=1)
    (held,) = claim(store, 1)
    assert held.job_id == small
    settle(store, done(held))
    assert claim(store, 1)[0].job_id == successors(store, small)[0]


def test_a_successor_of_a_nested_job_stands_one_level_deeper_under_the_same_root(store: Store) -> None:
    root = identity.new_job_id()
    job_id = make(store, 1, depth=4, parent_id=root, root_id=root, then=THEN)
    run_all(store)
    row = job(store, successors(store, job_id)[0])
    assert (row.depth, row.root_id, row.parent_id) == (5, root, job_id)


def test_a_successor_below_the_depth_limit_is_born_refused_and_its_parent_ends_well(store: Store) -> None:
    job_id = make(store, 1, depth=limits.JOB_DEPTH_LEVELS, then=THEN)
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")
    (child,) = successors(store, job_id)
    assert ending(store, child) == ("failed", "refused")
    assert str(job(store, child).reason).startswith(f"depth {limits.JOB_DEPTH_LEVELS + 1} is over the limit of 50: ")
    assert claim(store, queue="joins", tasks=["join"]) == []


@pytest.mark.parametrize("depth", [limits.JOB_DEPTH_LEVELS - 1])
def test_a_successor_at_the_depth_limit_runs(store: Store, depth: int) -> None:
    job_id = make(store, 1, depth=depth, then=THEN)
    run_all(store)
    assert job(store, successors(store, job_id)[0]).status == "running"


def test_the_error_of_a_failure_is_kept_for_people(store: Store) -> None:
    job_id = make(store, 1, attempts=2)
    settle(store, retried(claim(store)[0], message="first"))
    settle(store, retried(claim(store)[0], message="second"), worker="w2")
    rows = say(store, "SELECT attempt, what, worker, error FROM fanin.attempt_log ORDER BY attempt")
    assert rows == [(1, "retried", "w", error("first")), (2, "failed", "w2", error("second"))]
    assert job(store, job_id).status == "failed"


# Two at once, on the database that has two writers


def blocked(store: Any, pid: int) -> bool:
    return bool(say(store, "SELECT cardinality(pg_blocking_pids(:pid)) > 0", pid=pid)[0][0])


def settle_while(store: Any, uncommitted: list[Report], meanwhile: list[Report]) -> list[str]:
    """Settle a batch on a connection that has not committed, and another at the same time; then commit the first.

    The second must either have ended or wait for the first when that commits: no sleep decides it.
    """
    connection = store.connect()
    answers: list[str] = []
    pid: list[int] = []

    def second() -> None:
        other = store.connect()

        def attempt(factory: Any) -> Any:
            with other.transaction():
                return store.run_in(other, factory())

        pid.append(other.info.backend_pid)
        answers.extend(s.verdict.value for s in retry(attempt, lambda: finish.settle(0, meanwhile, "two"), store.tries))
        other.close()

    with connection.transaction():
        store.run_in(connection, finish.settle(0, uncommitted, "one"))
        thread = threading.Thread(target=second)
        thread.start()
        while thread.is_alive() and not (pid and blocked(store, pid[0])):
            thread.join(0.005)
    thread.join(90)
    connection.close()
    return answers


def test_two_successes_at_once_that_make_the_quorum_together_end_the_job(pg_server: Server, store: Store) -> None:
    job_id = make(store, 128 + 64, stripes=2, policy=Policy(quorum=2))
    held = claim_all(store)
    by_stripe = [held[0], held[64]]
    assert settle_while(store, [done(by_stripe[0])], [done(by_stripe[1])]) == ["last"]
    assert ending(store, job_id) == ("completed", "partial")


def test_a_success_at_the_moment_of_the_quorum_is_counted_or_refused_as_closed(pg_server: Server, store: Store) -> None:
    job_id = make(store, 128, stripes=2, policy=Policy(quorum=1))
    held = claim_all(store)
    assert settle_while(store, [done(held[0])], [done(held[64])]) == ["closed"]
    assert ending(store, job_id) == ("completed", "partial")
    assert job(store, job_id).succeeded_parts == 1


def test_two_last_parts_at_once_end_the_job_once(pg_server: Server, store: Store) -> None:
    job_id = make(store, 128, stripes=2, then=THEN)
    held = claim_all(store)
    settle(store, *map(done, held[1:64] + held[65:]))
    assert settle_while(store, [done(held[0])], [done(held[64])]) == ["last"]
    assert ending(store, job_id) == ("completed", "all_ok")
    assert len(successors(store, job_id)) == 1


def test_the_end_says_which_attempt_ended_it(store: Store) -> None:
    by_report, by_batch, by_lease, by_person = (make(store, n, attempts=1) for n in (1, 3, 1, 2))
    held: dict[str, list[Claim]] = {}
    for one in claim_all(store, seconds=-1.0):
        held.setdefault(one.job_id, []).append(one)
    settle(store, done(held[by_report][0]), worker="a")
    settle(store, *map(done, reversed(held[by_batch])), worker="b")
    cancel(store, by_person)
    assert store.run(lambda: lease.reap(0)) > 0
    said = [events(store, job_id)[-1]["ended_by"] for job_id in (by_report, by_batch, by_lease, by_person)]
    assert said == [
        {"part": 0, "attempt": 1, "worker": "a"}, {"part": 2, "attempt": 1, "worker": "b"},
        {"part": 0, "attempt": 1, "worker": "w"}, None,
    ]  # fmt: skip


def test_a_batch_that_ends_a_job_and_claims_on_says_who_ended_it(store: Store) -> None:
    job_id = make(store, 2)
    reports = [done(held) for held in claim(store)]
    store.run(lambda: exchange.exchange(0, reports, ["q"], {"t": 60.0}, 4, identity.new_claim_id(), "x"))
    assert events(store, job_id)[-1]["ended_by"] == {"part": 1, "attempt": 1, "worker": "x"}


def test_of_a_judged_job_nothing_is_expected_a_second_time(store: Store) -> None:
    quorum, plain = make(store, 3, policy=Policy(quorum=3)), make(store, 3)
    held = {(one.job_id, one.idx): one for one in claim_all(store)}
    stepwise: set[str] = set()

    def say_so(idx: int, *jobs: str) -> list[str]:
        reports = [done(held[job_id, idx]) for job_id in jobs]

        def exchanging() -> Txn[Any]:
            return exchange.exchange(0, reports, ["q"], {"t": 60.0}, 4, identity.new_claim_id(), "x", stepwise)

        made = [statement.query.name for statement in cuts.statements(store, exchanging)]
        assert "log_attempts" not in made  # all were heard
        return [name for name in made if name in ("count_expected", "count_down")]

    assert say_so(0, plain) == ["count_expected"]
    assert say_so(0, quorum) == ["count_expected", "count_down", "count_down"]
    assert stepwise == {quorum}
    assert say_so(1, quorum) == ["count_down", "count_down"]
    assert say_so(1, plain) == ["count_expected"]
    assert say_so(2, plain, quorum) == ["count_down", "count_down", "count_down"]
    assert ending(store, quorum) == ending(store, plain) == ("completed", "all_ok")
