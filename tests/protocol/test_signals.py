"""What an operator watches: each count from the rows, of the last hour or of now, over all buckets."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain.model import Claim, Verdict
from fanin.domain.signals import Signals
from fanin.protocol import lease, outbox, outputs, signals
from fanin.stores.base import Store
from fanin.testing.clock import Clock as Freezer
from tests.protocol.helpers import cancel, claim, done, failed, make, say, settle, sweep_all, verdicts

HOUR = 3600.0
NOON = 1_700_000_000.0


def seen(store: Store, since: float = HOUR) -> dict[str, Any]:
    """The signals that say something."""
    found: Signals = store.read(lambda: signals.signals(range(store.buckets), since))
    return {name: value for name, value in msgspec.to_builtins(found).items() if value and name not in ("at", "since")}


def overtaken(store: Store) -> tuple[Claim, Claim]:
    """A part of which the lease ran out, in the hands of another worker: the claims of both."""
    make(store, 1)
    (early,) = claim(store, seconds=-1.0)
    store.run(lambda: lease.wake(0))
    (late,) = claim(store)
    return early, late


def test_a_quiet_database_has_no_signals(store: Store) -> None:
    make(store, 3)
    settle(store, *map(done, claim(store, 2)))
    assert seen(store) == {}


def test_a_stale_commit_and_its_lost_lease_are_counted_with_both_attempts(store: Store) -> None:
    early, late = overtaken(store)
    assert verdicts(store, done(early)) == [Verdict.LOST]
    assert seen(store) == {"stale_commits": 1, "leases_lost": 1}
    rows = say(store, "SELECT attempt, holder FROM fanin.attempt_log WHERE what = 'refused'")
    assert rows == [(early.attempt, late.attempt)]


def test_a_report_to_a_closed_job_is_counted_apart(store: Store) -> None:
    Freezer(store).freeze(NOON)
    job_id = make(store, 2)
    held = claim(store)
    cancel(store, job_id)
    verdicts(store, *map(done, held))
    assert seen(store) == {"closed_commits": 2, "events_pending": 1}


def test_a_heartbeat_that_stops_work_is_noted_once_with_the_attempt_that_holds_the_part(store: Store) -> None:
    early, late = overtaken(store)
    for _ in range(2):
        assert store.run(lambda: lease.renew(0, [(early, 60.0), (late, 60.0)], "w1")) == [early]
    assert not store.run(lambda: lease.checkpoint(early, 60.0, "1"))
    rows = say(store, "SELECT attempt, worker, holder FROM fanin.attempt_log WHERE what = 'stopped'")
    assert rows == [(1, "w1", 2)]
    assert seen(store) == {"work_stopped": 1, "leases_lost": 1}


def test_a_checkpoint_of_a_swept_part_stops_work_too(store: Store) -> None:
    job_id = make(store, 1)
    (held,) = claim(store)
    cancel(store, job_id)
    sweep_all(store)
    assert not store.run(lambda: lease.checkpoint(held, 60.0, "1"))
    assert seen(store)["work_stopped"] == 1


def test_counts_of_what_happened_end_with_the_window_and_what_waits_does_not(store: Store) -> None:
    clock = Freezer(store)
    clock.freeze(NOON)
    early, _ = overtaken(store)
    verdicts(store, done(early))
    make(store, 0)
    clock.freeze(NOON + HOUR + 1)
    assert seen(store) == {"events_pending": 1, "events_pending_seconds": HOUR + 1}
    assert seen(store, 2 * HOUR)["stale_commits"] == 1


def test_events_on_their_way_and_parked_ones_have_their_age(store: Store) -> None:
    clock = Freezer(store)
    clock.freeze(NOON)
    for _ in range(3):
        make(store, 0)
    clock.freeze(NOON + 10)
    events = store.run(lambda: outbox.take(0, 2, 60.0, "00000000-0000-4000-8000-000000000001", "r"))
    said = [outbox.Said(events[0].key, "mark"), outbox.Said(events[1].key, "park", error="no")]
    store.run(lambda: outbox.settle(0, "00000000-0000-4000-8000-000000000001", said))
    clock.freeze(NOON + 25)
    assert seen(store) == {
        "events_pending": 1, "events_pending_seconds": 25, "events_parked": 1, "events_parked_seconds": 15,
    }  # fmt: skip


def test_outputs_of_lost_attempts_are_orphans_until_they_are_swept(store: Store) -> None:
    clock = Freezer(store)
    clock.freeze(NOON)
    make(store, 2)
    one, two = claim(store)
    for held in (one, two):
        assert store.run(lambda held=held: outputs.stage(held, "a", "/x"))  # type: ignore[misc]
        assert store.run(lambda held=held: outputs.mark_ready(held, "a", 1, "d"))  # type: ignore[misc]
    assert seen(store) == {"outputs_undecided": 2}
    settle(store, done(one), failed(two))
    clock.freeze(NOON + 30)
    found = seen(store)
    assert {name: value for name, value in found.items() if name.startswith("outputs")} == {
        "outputs_undecided": 2, "outputs_orphaned": 1, "outputs_orphaned_seconds": 30,
    }  # fmt: skip
    lost = store.read(lambda: outputs.lost(0, 0.0))
    store.run(lambda: outputs.mark_swept(0, lost))
    store.run(lambda: outputs.keep(0, 0.0))
    found = seen(store)
    assert {name: value for name, value in found.items() if name.startswith("outputs")} == {"outputs_swept": 1}


def test_effects_that_wait_and_those_for_a_person_have_their_age(store: Store) -> None:
    job_id = make(store, 1)
    clock = Freezer(store)
    clock.freeze(NOON)
    for name, status, settled in (
        ("a", "registered", "NULL"), ("b", "unknown", "fanin.clock()"), ("c", "failed", "fanin.clock() + 5"),
        ("d", "done", "fanin.clock()"),
    ):  # fmt: skip
        say(
            store, "INSERT INTO fanin.effect (bucket, job_id, idx, name, mode, status, relayed, attempt, calls, "
            f"calls_allowed, due_at, at, settled_at, request) SELECT 0, '{job_id}', 0, '{name}', 'probe', '{status}', "
            f"true, 1, 0, 3, fanin.clock(), fanin.clock(), {settled}, '1'",
        )  # fmt: skip
    clock.freeze(NOON + 20)
    assert seen(store) == {
        "effects_pending": 1, "effects_pending_seconds": 20, "effects_failed": 1, "effects_unknown": 1,
        "effects_stuck_seconds": 20,
    }  # fmt: skip
    say(store, "DELETE FROM fanin.effect")


def test_buckets_are_added_and_the_oldest_age_counts(store: Store) -> None:
    clock = Freezer(store)
    clock.freeze(NOON)
    make(store, 0)
    clock.freeze(NOON + 7)
    make(store, 0)
    found = store.read(lambda: signals.signals([0, 0], HOUR))
    assert (found.events_pending, found.events_pending_seconds, found.at) == (4, 7, NOON + 7)
