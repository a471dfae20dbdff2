"""An operator ends a part without a run of it: it counts like any other end, and its holder is not heard any more."""

from __future__ import annotations

import pytest

from fanin.domain.errors import NotAllowedNow, UnknownJob, UnknownPart
from fanin.domain.policy import Policy
from fanin.protocol import deeds, lease, pause, read, skip
from fanin.protocol.deeds import Deed
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    Clock,
    cancel,
    claim,
    done,
    ending,
    events,
    failed,
    log,
    make,
    part,
    retried,
    run_all,
    say,
    settle,
    states,
    successors,
    verdicts,
)
from tests.protocol.test_pause import NOWHERE, pauses


def skips(store: Store, job_id: str, idx: int, result: str | None = "null", deed: Deed | None = None) -> bool:
    return store.run(lambda: skip.skip(0, job_id, idx, result, deed or deeds.deed("kim", "broken input")))


def test_a_skipped_part_counts_and_its_result_is_read_like_any_other(store: Store) -> None:
    job_id = make(store, 2)
    assert skips(store, job_id, 1, '{"a":1}') is False
    assert states(store, job_id) == ["pending", "succeeded"]
    assert [held.idx for held in claim(store)] == [0]
    assert store.read(lambda: read.results(0, job_id, 1)) == [(1, "succeeded", '{"a":1}')]
    assert say(store, "SELECT what, idx, who, reason, run FROM fanin.job_log") == [
        ("skipped", 1, "kim", "broken input", 1)
    ]


@pytest.mark.parametrize(("result", "outcome"), [("1", "all_ok"), (None, "with_failures")])
def test_the_skip_of_the_last_part_ends_the_job(store: Store, result: str | None, outcome: str) -> None:
    job_id = make(store, 2, policy=Policy(tolerate=1), then=THEN)
    settle(store, done(claim(store, 1)[0]))
    assert skips(store, job_id, 1, result) is True
    assert ending(store, job_id) == ("completed", outcome)
    (event,) = events(store, job_id)
    assert event["ended_by"] == {"part": 1, "attempt": 1, "worker": "kim"}
    assert len(successors(store, job_id)) == 1


def test_a_part_that_is_declared_failed_says_why(store: Store) -> None:
    job_id = make(store, 1)
    assert skips(store, job_id, 0, None) is True
    assert ending(store, job_id) == ("failed", "too_many_failures")
    (failure,) = store.read(lambda: read.failures(0, job_id, 0))
    assert (failure.status, failure.type, failure.message) == ("failed", "Skipped", "broken input")


def test_whoever_holds_a_skipped_part_is_not_heard_any_more(store: Store) -> None:
    job_id = make(store, 2)
    one, two = claim(store)
    skips(store, job_id, one.idx, '"by hand"')
    assert store.run(lambda: lease.renew(0, [(one, 60.0), (two, 60.0)])) == [one]
    assert store.run(lambda: lease.checkpoint(one, 60.0, "1")) is False
    assert [v.value for v in verdicts(store, done(one), failed(one), retried(one))] == ["lost"] * 3
    assert (part(store, job_id, 0)["result"], part(store, job_id, 0)["attempt"]) == ('"by hand"', 2)
    assert log(store, job_id) == [(0, 1, "refused"), (0, 1, "stopped")]
    assert {row["holder"] for row in store.read(lambda: read.history(0, job_id)) if row["what"] == "refused"} == {2}


def test_a_part_without_an_attempt_left_can_be_skipped(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, attempts=1)
    claim(store, 1)
    clock.advance(100.0)
    skips(store, job_id, 0)
    assert store.run(lambda: lease.reap(0)) == 0
    assert states(store, job_id) == ["succeeded", "pending"]


def test_what_cannot_be_skipped_is_refused_and_nothing_is_written(store: Store) -> None:
    job_id, closed = make(store, 2), make(store, 2)
    settle(store, done(claim(store, 1)[0]))
    with pytest.raises(NotAllowedNow, match=r"part 0 of job .* is succeeded: only a part that has not ended"):
        skips(store, job_id, 0)
    with pytest.raises(UnknownPart, match="no part 2"):
        skips(store, job_id, 2)
    with pytest.raises(UnknownJob):
        skips(store, NOWHERE, 0)
    cancel(store, closed)
    with pytest.raises(NotAllowedNow, match="has ended: its part 1"):
        skips(store, closed, 1)
    assert say(store, "SELECT what FROM fanin.job_log") == [("cancelled",)]


def test_a_skip_whose_answer_was_lost_can_be_said_again(store: Store) -> None:
    job_id, deed = make(store, 2), deeds.deed("kim")
    assert [skips(store, job_id, 0, deed=deed), skips(store, job_id, 0, deed=deed)] == [False, False]
    assert len(say(store, "SELECT what FROM fanin.job_log")) == 1
    assert states(store, job_id) == ["succeeded", "pending"]


def test_a_failure_by_hand_is_judged_by_the_policy(store: Store) -> None:
    job_id = make(store, 3, policy=Policy(fail_fast=True))
    assert skips(store, job_id, 1, None) is True
    assert ending(store, job_id) == ("failed", "too_many_failures")
    quorum = make(store, 3, policy=Policy(quorum=2), then=THEN)
    assert [skips(store, quorum, 0), skips(store, quorum, 2)] == [False, True]
    assert ending(store, quorum) == ("completed", "partial")


def test_a_part_that_is_held_back_can_be_skipped(store: Store) -> None:
    job_id = make(store, 1)
    pauses(store, job_id)
    assert skips(store, job_id, 0) is True
    assert ending(store, job_id) == ("completed", "all_ok")
    assert store.run(lambda: pause.walk(0, job_id)) is False


def test_a_skipped_part_that_failed_before_tells_of_both(store: Store) -> None:
    job_id = make(store, 2, attempts=3)
    settle(store, retried(claim(store, 1)[0]))
    skips(store, job_id, 0, None)
    assert log(store, job_id) == [(0, 1, "retried"), (0, 2, "failed")]
    (failure,) = store.read(lambda: read.failures(0, job_id, 0))
    assert failure.type == "Skipped"
    assert len(run_all(store)) == 1
