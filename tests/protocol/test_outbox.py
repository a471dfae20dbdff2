"""Events are claimed, published and marked: none is skipped, a lost claim is not heard, one stuck event stops none."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fanin.domain import identity, limits
from fanin.domain.events import Event, JobFinished
from fanin.protocol import finish, outbox, read, redrive
from fanin.protocol.steps import Again
from fanin.stores.base import Store
from fanin.testing.stepper import COMMIT, Script, Session, Watcher
from tests.protocol.helpers import Clock, claim, done, failed, make, publish, run_all, say, settle, take


def ends(store: Store, count: int) -> list[str]:
    """So many jobs that end at once, each with its event; the keys of these."""
    return [identity.finished_key(make(store, 0), 1) for _ in range(count)]


def keys(events: list[Event]) -> set[str]:
    return {event.key for event in events}


def states(store: Store) -> dict[str, tuple[str, int]]:
    """Event key to (status, tries)."""
    return {
        key: (status, tries) for key, status, tries in say(store, "SELECT event_key, status, tries FROM fanin.outbox")
    }


def said(store: Store, claim_id: str, *reports: outbox.Said) -> list[str]:
    return store.run(lambda: outbox.settle(0, claim_id, reports))


def mark(key: str) -> outbox.Said:
    return outbox.Said(key, "mark")


def refuse(key: str, delay: float = 0.0) -> outbox.Said:
    return outbox.Said(key, "refuse", delay, "no thanks")


def park(key: str) -> outbox.Said:
    return outbox.Said(key, "park", error="never")


def release(key: str, delay: float = 0.0) -> outbox.Said:
    return outbox.Said(key, "release", delay)


def test_an_event_is_claimed_by_one_relay_and_marked_by_it(store: Store) -> None:
    (key,) = ends(store, 1)
    claim_id, (event,) = take(store)
    assert (event.key, event.seq, event.type, event.tries) == (key, 1, "job.finished", 1)
    found = event.decoded()
    assert isinstance(found, JobFinished)
    assert found.outcome == "all_ok"
    assert take(store)[1] == []
    assert said(store, claim_id, mark(key)) == []
    assert states(store) == {key: ("published", 1)}
    assert take(store)[1] == []


def test_a_claim_takes_no_more_than_asked_and_the_oldest_first(store: Store, clock: Clock) -> None:
    expected = []
    for _ in range(5):
        expected += ends(store, 1)
        clock.advance(1)
    found = [event.key for _ in range(3) for event in take(store, 2)[1]]
    assert found == expected


def test_a_claim_that_runs_out_is_taken_over_and_the_late_mark_is_refused(store: Store, clock: Clock) -> None:
    (key,) = ends(store, 1)
    old, _ = take(store, seconds=30.0)
    assert take(store)[1] == []
    clock.advance(31)
    new, (event,) = take(store)
    assert event.tries == 2
    assert said(store, old, mark(key)) == [key]
    assert said(store, old, park(key)) == [key]
    assert said(store, old, release(key)) == [key]
    assert states(store) == {key: ("claimed", 2)}
    assert said(store, new, mark(key)) == []
    assert said(store, old, mark(key)) == [key]
    assert states(store) == {key: ("published", 2)}


def test_saying_it_again_changes_nothing(store: Store) -> None:
    one, two, three, four = ends(store, 4)
    claim_id, _ = take(store)
    reports = [mark(one), refuse(two, 5.0), park(three), release(four)]
    assert said(store, claim_id, *reports) == []
    before = say(store, "SELECT * FROM fanin.outbox ORDER BY event_key")
    assert said(store, claim_id, *reports) == []
    assert say(store, "SELECT * FROM fanin.outbox ORDER BY event_key") == before


def test_a_refused_event_waits_for_itself_alone(store: Store, clock: Clock) -> None:
    one, two = ends(store, 2)
    claim_id, _ = take(store)
    assert said(store, claim_id, mark(two), refuse(one, 30.0)) == []
    (three,) = ends(store, 1)
    assert keys(take(store)[1]) == {three}
    clock.advance(31)
    assert keys(take(store)[1]) == {one}
    assert say(store, "SELECT error FROM fanin.outbox WHERE event_key = :key", key=one) == [("no thanks",)]


def test_a_stuck_event_never_stops_the_others(store: Store) -> None:
    bad, *good = ends(store, 30)
    left: list[str] = []
    for _ in range(40):
        claim_id, events = take(store, 4)
        fine = [event.key for event in events if event.key != bad]
        left += fine
        said(store, claim_id, *map(mark, fine), *(refuse(e.key) for e in events if e.key == bad))
    assert sorted(left) == sorted(good)


def test_a_parked_event_stays_until_a_person_retries_it(store: Store, clock: Clock) -> None:
    one, two = ends(store, 2)
    claim_id, _ = take(store)
    said(store, claim_id, mark(two), park(one))
    assert states(store)[one] == ("parked", 1)
    clock.advance(1e6)
    assert take(store)[1] == []
    assert store.run(lambda: outbox.retry(0, [two])) == 0
    assert store.run(lambda: outbox.retry(0, [one])) == 1
    assert store.run(lambda: outbox.retry(0)) == 0
    assert states(store)[one] == ("waiting", 0)
    assert publish(store) == [one]


def test_what_is_given_back_costs_no_try(store: Store, clock: Clock) -> None:
    (key,) = ends(store, 1)
    for _ in range(limits.EVENT_TRIES + 5):
        claim_id, (event,) = take(store)
        assert event.tries == 1
        said(store, claim_id, release(key, 2.0))
        assert take(store)[1] == []
        clock.advance(3)
    assert publish(store) == [key]


def test_an_event_that_is_lost_with_its_relay_again_and_again_is_parked(store: Store, clock: Clock) -> None:
    """As one would be that kills its relay. It does not stay at the head of the queue for ever."""
    (key,) = ends(store, 1)
    for tries in range(1, limits.EVENT_TRIES + 1):
        assert [event.tries for event in take(store, seconds=5.0)[1]] == [tries]
        clock.advance(6)
    assert take(store)[1] == []
    assert states(store) == {key: ("parked", limits.EVENT_TRIES + 1)}
    assert say(store, "SELECT error FROM fanin.outbox") == [(outbox.LOST,)]


def twice(store: Store) -> tuple[str, str]:
    """A job that has ended twice: the keys of its events."""
    job_id = make(store, 1)
    settle(store, failed(claim(store)[0]))
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1)) == 2
    run_all(store)
    return identity.finished_key(job_id, 1), identity.finished_key(job_id, 2)


def test_the_events_of_a_job_leave_in_their_order(store: Store, clock: Clock) -> None:
    first, second = twice(store)
    claim_id, events = take(store)
    assert keys(events) == {first}
    assert take(store)[1] == []
    said(store, claim_id, refuse(first, 10.0))
    assert take(store)[1] == []
    clock.advance(11)
    assert publish(store) == [first]
    assert publish(store) == [second]


def exchange(store: Store, claim_id: str, *reports: outbox.Said, limit: int = 10) -> tuple[list[str], list[Event]]:
    following = identity.new_claim_id()
    return store.run(lambda: outbox.exchange(0, claim_id, reports, limit, 60.0, following, "r"))


def test_a_batch_is_marked_and_the_next_one_claimed_in_one_transaction(store: Store) -> None:
    ends(store, 5)
    claim_id, events = take(store, limit=2)
    lost, following = exchange(store, claim_id, *(mark(event.key) for event in events), limit=2)
    assert (lost, len(following)) == ([], 2)
    assert not keys(following) & keys(events)
    assert sorted(state for state, _ in states(store).values()) == ["claimed"] * 2 + ["published"] * 2 + ["waiting"]


def test_the_mark_of_an_event_lets_the_next_one_of_its_job_go_at_once(store: Store) -> None:
    first, second = twice(store)
    claim_id, events = take(store)
    assert keys(events) == {first}
    lost, following = exchange(store, claim_id, mark(first))
    assert (lost, keys(following)) == ([], {second})


def test_what_was_refused_is_not_claimed_on_before_its_time(store: Store) -> None:
    ends(store, 1)
    claim_id, (event,) = take(store)
    assert exchange(store, claim_id, refuse(event.key, 5.0)) == ([], [])
    assert [state for state, _ in states(store).values()] == ["waiting"]


def test_a_relay_that_was_taken_for_lost_marks_nothing_and_claims_on(store: Store) -> None:
    ends(store, 2)
    old, (event,) = take(store, limit=1, seconds=-1.0)
    new, _ = take(store, limit=1)
    lost, following = exchange(store, old, mark(event.key))
    assert lost == [event.key]
    assert len(following) == 1
    assert said(store, new, mark(event.key)) == []


def test_an_event_that_moves_while_it_is_marked_is_marked_when_all_is_said_again(store: Store) -> None:
    ends(store, 2)
    claim_id, (event,) = take(store, limit=1)
    following = identity.new_claim_id()
    txn = outbox.exchange(0, claim_id, [mark(event.key)], 10, 60.0, following, "r")
    assert next(txn).query.name == "settle_events"
    assert txn.send([]).query.name == "claim_events"  # the row was not where the statement had seen it
    assert txn.send([]).query.name == "look_at_event"
    with pytest.raises(Again) as again:
        txn.send([(claim_id, "claimed")])
    lost, claimed = store.run(again.value.factory)
    assert (lost, len(claimed)) == ([], 1)
    assert sorted(state for state, _ in states(store).values()) == ["claimed", "published"]


def test_a_parked_event_does_not_hold_its_job_back(store: Store) -> None:
    first, second = twice(store)
    claim_id, _ = take(store)
    said(store, claim_id, park(first))
    assert publish(store) == [second]
    assert store.run(lambda: outbox.retry(0)) == 1
    assert publish(store) == [first]


def test_a_relay_that_has_nothing_to_do_is_told_how_long(store: Store, clock: Clock) -> None:
    assert store.read(lambda: outbox.due_in(0)) is None
    (key,) = ends(store, 1)
    due = store.read(lambda: outbox.due_in(0))
    assert due is not None
    assert due <= 0
    claim_id, _ = take(store, seconds=60.0)
    due = store.read(lambda: outbox.due_in(0))
    assert due is not None
    assert 50 < due <= 60
    said(store, claim_id, park(key))
    assert store.read(lambda: outbox.due_in(0)) is None


def test_what_never_ends_is_cut_to_a_year(store: Store) -> None:
    (key,) = ends(store, 1)
    claim_id, _ = take(store)
    said(store, claim_id, refuse(key, float("inf")))
    due = store.read(lambda: outbox.due_in(0))
    assert due is not None
    assert due <= limits.DELAY_SECONDS_MAX


def test_an_event_whose_transaction_commits_late_is_not_skipped(pg_server: Any, store: Any) -> None:
    """The relay has gone past a later event before the earlier one is there."""
    early, late = make(store, 1), make(store, 1)
    held = {c.job_id: c for c in claim(store)}

    def ends_late() -> Script:
        return (yield lambda: finish.settle(0, [done(held[early])]))

    watcher = Watcher(store)
    slow = Session(store, "slow", watcher)
    try:
        slow.play(ends_late())
        slow.hold(COMMIT)
        settle(store, done(held[late]))
        assert publish(store) == [identity.finished_key(late, 1)]
        assert publish(store) == []
        slow.finish()
    finally:
        slow.close()
        watcher.close()
    assert publish(store) == [identity.finished_key(early, 1)]


def test_relays_beside_each_other_claim_each_event_once(store: Store) -> None:
    expected = ends(store, 60)
    found: list[str] = []
    ready = threading.Barrier(3)

    def relay() -> None:
        ready.wait()
        while batch := publish(store):
            found.extend(batch)

    threads = [threading.Thread(target=relay) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A relay may have met only what the others had locked, and gone home.
    while batch := publish(store):
        found += batch
    assert sorted(found) == sorted(expected)


def test_the_events_of_a_job_are_read_with_what_became_of_them(store: Store) -> None:
    first, second = twice(store)
    job_id = first.split("/")[1]
    publish(store)
    rows = store.read(lambda: read.events(0, job_id))
    assert [(row[0], row[5] is None) for row in rows] == [(first, False), (second, True)]
