"""What jobs tell beside their end, where they were asked to: failures of parts, and how far they are."""

from __future__ import annotations

import pytest

from fanin.domain.events import Event, JobProgress, PartFailed
from fanin.domain.identity import failed_key, finished_key, progress_key
from fanin.domain.model import Report
from fanin.domain.policy import Policy
from fanin.protocol import deeds, lease, outbox, progress, redrive, skip
from fanin.stores.base import Store
from tests.protocol.helpers import (
    Clock,
    cancel,
    claim,
    done,
    failed,
    make,
    make_open,
    retried,
    settle,
    take,
)
from tests.protocol.test_nested import begin

EVERY = 30.0


def leave(store: Store) -> list[Event]:
    """All events that wait, as a relay takes and marks them: those of a job in their order."""
    found: list[Event] = []
    while True:
        claim_id, batch = take(store)
        if not batch:
            return found
        found += batch
        said = [outbox.Said(event.key, "mark") for event in batch]
        assert store.run(lambda claim_id=claim_id, said=said: outbox.settle(0, claim_id, said)) == []  # type: ignore[misc]


def failures(store: Store) -> list[PartFailed]:
    found = [event.decoded() for event in leave(store) if event.type == "part.failed"]
    assert all(isinstance(one, PartFailed) for one in found)
    return [one for one in found if isinstance(one, PartFailed)]


def test_each_part_that_fails_for_good_has_an_event_before_that_of_the_end(store: Store) -> None:
    job_id = make(store, 4, key="nightly", failure_events=True, policy=Policy(tolerate=4))
    one, two, three, four = claim(store)
    settle(store, failed(one, "no such page"), retried(two), done(three))
    assert [(event.key, event.seq) for event in leave(store)] == [(failed_key(job_id, 1, 0), 1)]
    (two,) = claim(store)
    settle(store, failed(four, "gone"), failed(two))
    found = leave(store)
    assert [(event.key, event.seq) for event in found] == [
        (failed_key(job_id, 1, 1), 2), (failed_key(job_id, 1, 3), 3), (finished_key(job_id, 1), 4),
    ]  # fmt: skip
    assert [event.type for event in found] == ["part.failed", "part.failed", "job.finished"]
    assert found[0].decoded() == PartFailed(1, job_id, 1, 1, 2, "ValueError", "no", "nightly", "t")


def test_a_part_that_fails_again_in_a_later_run_has_an_event_of_that_run(store: Store) -> None:
    job_id = make(store, 1, failure_events=True)
    settle(store, failed(claim(store)[0]))
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    settle(store, failed(claim(store)[0]))
    assert [(one.run, one.attempt) for one in failures(store)] == [(1, 1), (2, 2)]


def test_a_job_that_was_not_asked_tells_its_end_alone(store: Store) -> None:
    make(store, 1)
    settle(store, failed(claim(store)[0]))
    assert [event.type for event in leave(store)] == ["job.finished"]


def test_lost_skipped_and_nested_parts_fail_with_an_event_too(store: Store) -> None:
    lost = make(store, 1, failure_events=True, attempts=1)
    claim(store, seconds=-1.0)
    assert store.run(lambda: lease.reap(0)) == 1
    skipped = make(store, 1, failure_events=True)
    assert store.run(lambda: skip.skip(0, skipped, 0, None, deeds.deed("kim", "broken input")))
    above = make(store, 1, failure_events=True)
    (held,) = claim(store)
    begin(store, held, 1)
    settle(store, failed(claim(store)[0]))
    found = {one.job_id: (one.error, one.part) for one in failures(store)}
    assert found == {lost: ("WorkerLost", 0), skipped: ("Skipped", 0), above: ("NestedFailed", 0)}


def test_a_batch_over_several_jobs_tells_the_failures_of_those_that_were_asked(store: Store) -> None:
    asked = [make(store, 2, failure_events=True, stripes=2) for _ in range(2)]
    other = make(store, 2)
    held = claim(store)
    settle(store, *map(failed, held))
    found = leave(store)
    assert sum(event.type == "part.failed" for event in found) == 4
    assert {event.job_id for event in found if event.type == "part.failed"} == set(asked)
    assert {event.job_id for event in found if event.type == "job.finished"} == {*asked, other}


def test_a_report_to_a_closed_job_tells_nothing(store: Store) -> None:
    job_id = make(store, 2, failure_events=True)
    held = claim(store)
    cancel(store, job_id)
    settle(store, *map(failed, held))
    assert [event.key for event in leave(store)] == [finished_key(job_id, 1)]


def test_an_error_without_a_kind_is_told_as_it_is(store: Store) -> None:
    make(store, 1, failure_events=True)
    (held,) = claim(store)
    settle(store, Report(held, "fail", error="{}"))
    assert [(one.error, one.message) for one in failures(store)] == [("", "")]


def tell(store: Store, job_id: str) -> bool:
    return store.run(lambda: progress.tell(0, job_id))


def due(store: Store) -> list[str]:
    return store.read(lambda: progress.overdue(0))


def test_progress_is_told_when_it_is_due_once_and_only_if_parts_have_ended(store: Store, clock: Clock) -> None:
    job_id = make(store, 3, key="nightly", progress_every=EVERY)
    assert due(store) == []
    assert not tell(store, job_id), "not yet"
    one, two, three = claim(store, seconds=1000.0)
    settle(store, done(one))
    clock.advance(EVERY)
    assert due(store) == [job_id]
    assert tell(store, job_id)
    assert due(store) == []
    assert not tell(store, job_id), "another worker was first"
    clock.advance(EVERY)
    assert not tell(store, job_id), "nothing has ended since"
    assert due(store) == [], "and it is asked again in its time"
    settle(store, done(two))
    clock.advance(EVERY)
    assert tell(store, job_id)
    settle(store, done(three))
    clock.advance(EVERY)
    assert due(store) == []
    assert not tell(store, job_id), "it has ended"
    found = leave(store)
    assert [(event.key, event.seq) for event in found] == [
        (progress_key(job_id, 1, 1), 1), (progress_key(job_id, 1, 2), 2), (finished_key(job_id, 1), 3),
    ]  # fmt: skip
    assert found[1].decoded() == JobProgress(1, job_id, 1, "running", 2, 0, 1, "nightly", "t")


def test_a_later_run_tells_its_progress_anew(store: Store, clock: Clock) -> None:
    job_id = make(store, 2, progress_every=EVERY, policy=Policy(tolerate=0))
    one, two = claim(store)
    settle(store, done(one), failed(two))
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    clock.advance(EVERY)
    assert due(store) == [job_id]
    assert tell(store, job_id), "one part has ended, in the run before"
    assert [event.seq for event in leave(store)] == [1, 2]


def test_an_open_job_without_parts_has_nothing_to_tell(store: Store, clock: Clock) -> None:
    job_id = make_open(store, progress_every=EVERY)
    clock.advance(EVERY)
    assert due(store) == [job_id]
    assert not tell(store, job_id)
    assert leave(store) == []


@pytest.mark.parametrize("every", [None, EVERY])
def test_upkeep_sees_the_next_moment(store: Store, clock: Clock, every: float | None) -> None:
    make(store, 1, progress_every=every)
    seen = store.read(lambda: lease.look(0)).progress_in
    assert seen is None if every is None else EVERY - 1 < (seen or 0.0) <= EVERY
