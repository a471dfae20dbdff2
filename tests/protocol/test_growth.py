"""A job grows by its own live parts alone, each key once, and never past its width; it ends when nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fanin.domain import limits
from fanin.domain.errors import BadOption, KeyConflict, LimitExceeded, NotAllowedNow
from fanin.domain.identity import item_key
from fanin.domain.model import Claim, Report, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import growth, redrive, submit
from fanin.protocol.steps import TxnFactory
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    failed,
    job,
    log,
    make,
    make_open,
    new_job,
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

WIDE = 1_000


def items(*payloads: str) -> tuple[tuple[str, str], ...]:
    return tuple((item_key(payload), payload) for payload in payloads)


def adding(held: Claim, *payloads: str) -> Report:
    """A success that adds parts with these payloads."""
    return Report(held, "succeed", result="1", spawns=items(*payloads))


def spawning(held: Claim, *payloads: str) -> TxnFactory[int | None]:
    return lambda: growth.spawn(held, items(*payloads))


def feed(store: Store, job_id: str, first: int, *payloads: str) -> int:
    return store.run(lambda: submit.append_new(0, job_id, first, items(*payloads)))


def payloads(store: Store, job_id: str) -> list[tuple[int, str, int | None]]:
    """(idx, payload, spawned by) of the parts, by index."""
    text = "SELECT idx, payload, spawned_by FROM fanin.part WHERE bucket = 0 AND job_id = :id ORDER BY idx"
    return [(idx, payload, by) for idx, payload, by in say(store, text, id=job_id)]


def counts(store: Store, job_id: str) -> list[Sequence[Any]]:
    text = (
        "SELECT stripe, created, spawned, remaining FROM fanin.job_stripe "
        "WHERE bucket = 0 AND job_id = :id ORDER BY stripe"
    )
    return list(say(store, text, id=job_id))


def test_a_success_adds_parts_that_run_before_the_job_ends(store: Store) -> None:
    job_id = make(store, 1, width=WIDE, then=THEN)
    (held,) = claim(store)
    assert verdicts(store, adding(held, "a", "b")) == [Verdict.OK]
    assert job(store, job_id).status == "running"
    assert payloads(store, job_id) == [(0, "0", None), (1, "a", 0), (2, "b", 0)]
    first, second = claim(store)
    assert verdicts(store, done(first)) == [Verdict.OK]
    assert verdicts(store, done(second)) == [Verdict.LAST]
    assert ending(store, job_id) == ("completed", "all_ok")
    assert len(successors(store, job_id)) == 1
    assert job(store, job_id).sealed_parts == 1  # the planned one


def test_a_key_that_the_job_has_seen_is_left_out_whoever_brings_it(store: Store) -> None:
    job_id = make(store, ["a", "b"], width=WIDE)
    first, second = claim(store)
    settle(store, adding(first, "b", "c", "c"), adding(second, "a", "c", "d"))
    assert payloads(store, job_id) == [(0, "a", None), (1, "b", None), (2, "c", 0), (3, "d", 1)]
    third, fourth = claim(store)
    settle(store, adding(third, "a", "b", "c", "d"), done(fourth))
    assert ending(store, job_id) == ("completed", "all_ok")


def test_one_that_adds_only_what_is_known_may_be_the_last(store: Store) -> None:
    job_id = make(store, 1, width=WIDE)
    (held,) = claim(store)
    assert verdicts(store, adding(held, "0")) == [Verdict.LAST]
    assert ending(store, job_id) == ("completed", "all_ok")


@pytest.mark.parametrize("verb", ["fail", "retry", "release"])
def test_an_attempt_that_does_not_succeed_adds_nothing(store: Store, verb: str) -> None:
    job_id = make(store, 2, width=WIDE)
    held, _ = claim(store)
    settle(store, Report(held, verb, error="{}", spawns=items("a")))
    assert len(states(store, job_id)) == 2


def test_an_attempt_that_lost_its_part_adds_nothing(store: Store) -> None:
    job_id = make(store, 1, width=WIDE)
    (zombie,) = claim(store, seconds=-1.0)
    settle(store, retried(zombie))
    (held,) = claim(store)
    assert verdicts(store, adding(zombie, "a")) == [Verdict.LOST]
    assert store.run(spawning(zombie, "a")) is None
    assert verdicts(store, adding(held, "b")) == [Verdict.OK]
    assert [payload for _, payload, _ in payloads(store, job_id)] == ["0", "b"]


def test_a_commit_that_is_said_again_adds_nothing_more(store: Store) -> None:
    job_id = make(store, 1, width=WIDE)
    (held,) = claim(store)
    assert verdicts(store, adding(held, "a"), adding(held, "a")) == [Verdict.OK, Verdict.REPLAY]
    assert verdicts(store, adding(held, "a")) == [Verdict.REPLAY]
    assert len(states(store, job_id)) == 2


def test_the_part_of_a_cancelled_job_adds_nothing(store: Store) -> None:
    job_id = make(store, 1, width=WIDE)
    (held,) = claim(store)
    cancel(store, job_id)
    assert store.run(spawning(held, "a")) is None
    assert verdicts(store, adding(held, "a")) == [Verdict.CLOSED]
    assert len(states(store, job_id)) == 1


def test_parts_added_at_once_stand_though_the_attempt_fails_and_its_next_one_adds_no_second(store: Store) -> None:
    job_id = make(store, 1, width=WIDE)
    (held,) = claim(store)
    assert store.run(spawning(held, "a", "b")) == 2
    assert store.run(spawning(held, "b", "c")) == 1
    settle(store, retried(held))
    again = next(one for one in claim_all(store) if one.idx == 0)
    assert store.run(spawning(again, "a", "b", "c")) == 0
    assert [payload for _, payload, _ in payloads(store, job_id)] == ["0", "a", "b", "c"]


def test_a_job_that_was_not_made_to_grow_does_not(store: Store) -> None:
    job_id = make(store, 2)
    one, two = claim(store)
    with pytest.raises(BadOption, match="does not grow"):
        store.run(spawning(one, "a"))
    assert [a.status for a in settle(store, adding(one, "a"), done(two))] == ["failed", "succeeded"]
    assert len(states(store, job_id)) == 2


def test_a_part_whose_spawns_pass_the_width_fails_alone_and_for_good(store: Store) -> None:
    job_id = make(store, 3, width=5, policy=Policy(tolerate=3))
    held = claim(store)
    answers = settle(store, adding(held[0], "a", "b", "c"), adding(held[1], "a", "b"), adding(held[2], "b"))
    assert [answer.status for answer in answers] == ["failed", "succeeded", "succeeded"]
    assert [(by, payload) for _, payload, by in payloads(store, job_id)][3:] == [(1, "a"), (1, "b")]
    assert log(store, job_id) == [(0, 1, "failed")]
    (failure,) = say(store, "SELECT error FROM fanin.attempt_log")
    assert "may have 5 parts" in failure[0]
    assert '"LimitExceeded"' in failure[0]
    run_all(store)
    assert ending(store, job_id) == ("completed", "with_failures")


def test_parts_added_at_once_do_not_pass_the_width_either(store: Store) -> None:
    make(store, 1, width=2)
    (held,) = claim(store)
    before = snapshot(store)
    with pytest.raises(LimitExceeded, match="may have 2 parts and has 1"):
        store.run(spawning(held, "a", "b"))
    assert snapshot(store) == before
    assert store.run(spawning(held, "a")) == 1


def test_spawned_parts_stand_on_the_counter_of_their_spawner(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)
    job_id = make(store, 2, stripes=2, width=WIDE)
    one, two = claim(store)
    settle(store, done(one))
    settle(store, adding(two, "a", "b", "c"))
    assert counts(store, job_id) == [(0, 1, 0, 0), (1, 4, 3, 3)]
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")


def test_what_is_added_stands_behind_what_waits_in_the_queue(store: Store) -> None:
    make(store, 1, width=WIDE)
    (held,) = claim(store)
    settle(store, adding(held, "a"))
    other = make(store, 2)
    settle(store, *map(done, claim(store, 2)))
    (last,) = claim(store)
    assert last.job_id == other


def test_failures_are_judged_by_what_there_is_after_the_growth(store: Store) -> None:
    job_id = make(store, 2, width=WIDE, policy=Policy(tolerate_percent=50.0, fail_fast=True))
    one, two = claim(store)
    settle(store, failed(one), adding(two, "a", "b"))
    assert job(store, job_id).status == "running"  # one of four
    run_all(store)
    assert ending(store, job_id) == ("completed", "with_failures")


def test_a_quorum_ends_a_growing_job_and_what_was_spawned_is_abandoned(store: Store) -> None:
    job_id = make(store, 2, width=WIDE, policy=Policy(quorum=2))
    one, two = claim(store)
    settle(store, adding(one, "a"))
    assert verdicts(store, adding(two, "b")) == [Verdict.LAST]
    assert ending(store, job_id) == ("completed", "partial")


@pytest.mark.parametrize(
    "rule", [Policy(quorum=5), Policy(tolerate_percent=10.0, fail_fast=True)], ids=["quorum", "share"]
)
@pytest.mark.parametrize("opened", [False, True], ids=["map", "open"])
def test_what_live_parts_may_still_add_is_not_judged_as_missing(store: Store, rule: Policy, opened: bool) -> None:
    if opened:
        job_id = make_open(store, width=WIDE, policy=rule)
        feed(store, job_id, 0, "0", "1")
        seal(store, job_id, 2)
    else:
        job_id = make(store, 2, width=WIDE, policy=rule)
    one, two = claim(store)
    assert verdicts(store, failed(one)) == [Verdict.OK]
    assert job(store, job_id).status == "running"
    settle(store, adding(two, *map(str, range(10, 20))))
    run_all(store)
    assert job(store, job_id).status == "completed"


@pytest.mark.parametrize(
    "rule", [Policy(quorum=3), Policy(tolerate_percent=25.0, fail_fast=True)], ids=["quorum", "share"]
)
def test_what_not_even_a_job_of_full_width_could_reach_ends_it_early(store: Store, rule: Policy) -> None:
    job_id = make(store, 3, width=4, policy=rule)
    one, two, _ = claim(store)
    settle(store, failed(one))
    assert job(store, job_id).status == "running"
    assert verdicts(store, failed(two)) == [Verdict.LAST]
    assert ending(store, job_id) == ("failed", "too_many_failures")


@pytest.mark.parametrize(
    "rule", [Policy(fail_fast=True, tolerate=1), Policy(fail_fast=True, tolerate_percent=50.0, sample=2)]
)
def test_a_count_and_a_sample_say_the_same_whatever_may_still_come(store: Store, rule: Policy) -> None:
    job_id = make(store, 3, width=WIDE, policy=rule)
    one, two, _ = claim(store)
    settle(store, failed(one))
    assert job(store, job_id).status == "running"
    assert verdicts(store, failed(two)) == [Verdict.LAST]
    assert ending(store, job_id) == ("failed", "too_many_failures")


@pytest.mark.parametrize(
    "rule", [Policy(quorum=3), Policy(tolerate_percent=10.0, fail_fast=True)], ids=["quorum", "share"]
)
def test_a_growing_job_that_came_to_nothing_more_is_judged_at_its_end(store: Store, rule: Policy) -> None:
    job_id = make(store, 2, width=WIDE, policy=rule)
    one, two = claim(store)
    settle(store, failed(one))
    assert verdicts(store, done(two)) == [Verdict.LAST]
    assert ending(store, job_id) == ("failed", "too_many_failures")


def test_a_redrive_runs_the_spawner_again_and_adds_what_it_had_not(store: Store) -> None:
    job_id = make(store, 1, width=WIDE)
    (held,) = claim(store)
    store.run(spawning(held, "a"))
    settle(store, failed(held))
    run_all(store)
    assert job(store, job_id).status == "failed"
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1)) == 2
    (again,) = claim(store)
    settle(store, adding(again, "a", "b"))
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")
    assert [payload for _, payload, _ in payloads(store, job_id)] == ["0", "a", "b"]


def test_two_planned_parts_with_one_key_are_refused(store: Store) -> None:
    wanted = new_job(store, width=WIDE)
    before = snapshot(store)
    with pytest.raises(KeyConflict, match="two items have one key"):
        store.run(lambda: submit.create(wanted, 3, lambda: [["a"], ["b", "a"]]))
    assert snapshot(store) == before


def test_more_planned_parts_than_the_width_are_refused(store: Store) -> None:
    wanted = new_job(store, width=2)
    with pytest.raises(LimitExceeded, match="3 parts are more than this job may have"):
        store.run(lambda: submit.create(wanted, 3, lambda: [["a", "b", "c"]]))


# An open job that grows.


def test_parts_of_an_open_job_spawn_beside_its_producer(store: Store) -> None:
    job_id = make_open(store, width=WIDE)
    assert feed(store, job_id, 0, "a") == 1
    (held,) = claim(store)
    settle(store, adding(held, "b", "x"))
    assert feed(store, job_id, 1, "b", "c", "c") == 1
    first = limits.JOB_WIDTH_PARTS
    assert payloads(store, job_id) == [(0, "a", None), (2, "c", None), (first, "b", 0), (first + 1, "x", 0)]
    assert seal(store, job_id, 2)
    row = job(store, job_id)
    assert (row.status, row.sealed_parts) == ("running", 2)
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_producer_that_says_all_of_it_again_adds_nothing(store: Store) -> None:
    job_id = make_open(store, width=WIDE)
    feed(store, job_id, 0, "a", "b")
    (held, _) = claim(store)
    settle(store, adding(held, "c"))
    assert feed(store, job_id, 0, "a", "b") == 2
    assert feed(store, job_id, 2, "c", "d") == 1
    assert feed(store, job_id, 2, "c", "d") == 1
    assert len(states(store, job_id)) == 4
    with pytest.raises(KeyConflict, match="part 0"):
        feed(store, job_id, 0, "z")
    with pytest.raises(NotAllowedNow, match="planned 4 parts, but 3"):
        seal(store, job_id, 4)


def test_a_closed_or_full_job_takes_nothing_from_its_producer(store: Store) -> None:
    job_id = make_open(store, width=2)
    feed(store, job_id, 0, "a")
    with pytest.raises(LimitExceeded, match="more than 2 parts"):
        feed(store, job_id, 1, "b", "c")
    cancel(store, job_id)
    with pytest.raises(NotAllowedNow, match="sealed or closed"):
        feed(store, job_id, 1, "b")
    assert len(states(store, job_id)) == 1


def test_an_open_job_that_was_cancelled_is_redriven_with_its_planned_parts(store: Store) -> None:
    job_id = make_open(store, width=WIDE)
    feed(store, job_id, 0, "a")
    (held,) = claim(store)
    store.run(spawning(held, "b"))
    settle(store, failed(held))
    cancel(store, job_id)
    sweep_all(store)
    store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    row = job(store, job_id)
    assert (row.planned_parts, row.sealed_parts) == (1, 1)
    run_all(store)
    assert ending(store, job_id) == ("completed", "all_ok")
