"""Schedules: each slot is decided once, and the job of a slot and the move of the mark are one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fanin.domain import identity, limits
from fanin.domain.errors import NotAllowedNow, UnknownSchedule
from fanin.domain.model import Fired, Firing, NewJob, ScheduleRow
from fanin.protocol import purge, redrive, schedule
from fanin.protocol.schedule import Prepared, Slot
from fanin.protocol.steps import Rows, Statement, Txn
from fanin.stores.base import Store
from fanin.testing.clock import Clock
from fanin.testing.invariants import check_all
from fanin.testing.state import dump
from tests.protocol.helpers import QUEUE, TASK, claim, done, job, listeners, run_all, say, settle

NAME = "nightly"
NOON = 1_700_000_000.0
SLOT = NOON + 60.0


@pytest.fixture
def moved(store: Store) -> Clock:
    """A clock that stands at NOON, with the schedule just declared."""
    made = Clock(store)
    made.freeze(NOON)
    assert declare(store)
    return made


def declare(store: Store, timing: str = "{}", spec: str = "{}") -> bool:
    return store.run(lambda: schedule.declare(0, NAME, timing, spec))


def prepared(at: float, parts: int = 1, *, by_hand: bool = False, **options: Any) -> Prepared:
    made = NewJob(
        id=identity.firing_id(NAME, at, by_hand), bucket=0, task=TASK, queue=QUEUE, step=identity.SCHEDULED + NAME,
        **{"request_hash": "hash", **options},
    )  # fmt: skip
    return Prepared(made, parts, lambda: [["1"] * parts] if parts else [])


def fire(store: Store, at: float = SLOT, seen: float = NOON, *, missed: int = 0, overlap: str = "skip",
         by_hand: bool = False, parts: int = 1, **options: Any) -> Fired:  # fmt: skip
    slot = Slot(NAME, at, seen, missed, overlap, by_hand)
    return store.run(lambda: schedule.fire(0, slot, prepared(at, parts, by_hand=by_hand, **options)))


def row(store: Store) -> ScheduleRow:
    return store.read(lambda: schedule.look(0)).rows[NAME]


def fates(store: Store) -> list[tuple[float, str, int]]:
    return [(f.slot, f.what, f.missed) for f in reversed(firings(store))]


def firings(store: Store) -> list[Firing]:
    return store.read(lambda: schedule.firings(0, NAME, 1_000))


def jobs(store: Store) -> int:
    return int(say(store, "SELECT count(*) FROM fanin.job")[0][0])


# Declaring


def test_a_schedule_begins_when_it_is_first_seen(store: Store, moved: Clock) -> None:
    assert row(store).mark == NOON
    moved.freeze(NOON + 10)
    before = dump(store)
    assert not declare(store)
    assert dump(store) == before


def test_another_timing_begins_anew_and_other_facts_do_not(store: Store, moved: Clock) -> None:
    moved.freeze(NOON + 10)
    assert declare(store, spec='{"misfire": "all"}')
    assert (row(store).mark, row(store).spec) == (NOON, '{"misfire": "all"}')
    assert declare(store, timing='{"tz": "x"}')
    assert (row(store).mark, row(store).timing, row(store).spec) == (NOON + 10, '{"tz": "x"}', "{}")


def test_a_mark_never_moves_back(store: Store, moved: Clock) -> None:
    moved.freeze(NOON - 100)
    assert declare(store, timing='{"tz": "x"}')
    assert row(store).mark == NOON
    assert store.run(lambda: schedule.pause(0, NAME, None))
    assert store.run(lambda: schedule.resume(0, NAME))
    assert row(store).mark == NOON


# Firing


def test_a_slot_that_has_come_becomes_one_job(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fired = fire(store, parts=3, missed=2)
    assert fired == Fired("fired", identity.firing_id(NAME, SLOT))
    assert (row(store).mark, row(store).job_id) == (SLOT, fired.job_id)
    assert firings(store) == [Firing(SLOT, "fired", fired.job_id, 2, False, SLOT)]
    assert fired.job_id is not None
    made = job(store, fired.job_id)
    assert (made.status, made.sealed_parts, made.step) == ("running", 3, "at/nightly")
    before = dump(store)
    assert fire(store, parts=3) == Fired("passed")
    assert dump(store) == before
    assert len(run_all(store)) == 3


def test_a_slot_without_items_is_a_job_that_ends_at_once(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fired = fire(store, parts=0)
    assert fired.job_id is not None
    assert job(store, fired.job_id).status == "completed"


def test_a_slot_that_has_not_come_is_not_fired(store: Store, moved: Clock) -> None:
    """Also not by a scheduler whose own clock is ahead: the database's decides."""
    moved.freeze(SLOT - 0.001)
    before = dump(store)
    assert fire(store) == Fired("passed")
    assert not store.run(lambda: schedule.pass_over(0, Slot(NAME, SLOT, NOON, 1)))
    assert dump(store) == before
    moved.freeze(SLOT)
    assert fire(store).what == "fired"


def test_a_slot_that_was_chosen_from_an_old_mark_is_not_fired(store: Store, moved: Clock) -> None:
    """It would count slots as missed that somebody has fired."""
    moved.freeze(SLOT + 60)
    assert fire(store).what == "fired"
    assert fire(store, SLOT + 60, NOON, missed=1, overlap="allow") == Fired("passed")
    assert fire(store, SLOT + 60, SLOT, overlap="allow").what == "fired"
    assert fates(store) == [(SLOT, "fired", 0), (SLOT + 60, "fired", 0)]


def test_a_mark_that_went_back_makes_no_second_job(store: Store, moved: Clock) -> None:
    """As after a schedule was forgotten, and whatever the code would ask for now."""
    moved.freeze(SLOT)
    fired = fire(store)
    store.run(lambda: schedule.forget(0, NAME))
    moved.freeze(NOON)
    assert declare(store)
    moved.freeze(SLOT)
    assert fire(store, request_hash="another", parts=5) == fired
    assert jobs(store) == 1
    assert (row(store).mark, fates(store)) == (SLOT, [(SLOT, "fired", 0)])


def test_a_schedule_that_is_not_known_is_not_fired(store: Store) -> None:
    assert fire(store) == Fired("passed")
    assert jobs(store) == 0


def test_a_slot_that_came_too_late_is_noted_as_missed(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 1000)
    slot = Slot(NAME, SLOT, NOON, 7)
    assert store.run(lambda: schedule.pass_over(0, slot))
    assert (row(store).mark, fates(store), jobs(store)) == (SLOT, [(SLOT, "missed", 7)], 0)
    assert not store.run(lambda: schedule.pass_over(0, slot))


# Overlap


def test_a_slot_is_skipped_while_the_job_before_is_live_and_says_which(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 120)
    first = fire(store)
    assert fire(store, SLOT + 60, SLOT) == Fired("skipped", first.job_id)
    assert firings(store)[0] == Firing(SLOT + 60, "skipped", first.job_id, 0, False, SLOT + 120)
    assert row(store).job_id == first.job_id
    run_all(store)
    assert fire(store, SLOT + 120, SLOT + 60).what == "fired"
    assert jobs(store) == 2


def test_a_slot_waits_while_the_job_before_is_live(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 60)
    first = fire(store, overlap="queue")
    before = dump(store)
    assert fire(store, SLOT + 60, SLOT, overlap="queue") == Fired("waiting", first.job_id)
    assert dump(store) == before
    run_all(store)
    assert fire(store, SLOT + 60, SLOT, overlap="queue").what == "fired"


def test_slots_may_overlap_where_that_is_allowed(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 60)
    assert fire(store, overlap="allow").what == "fired"
    assert fire(store, SLOT + 60, SLOT, overlap="allow").what == "fired"
    assert len(run_all(store)) == 2


def test_the_successor_belongs_to_the_firing_and_a_listener_does_not(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 60)
    then = '{"task": "join", "queue": "joins"}'
    fire(store, successor=then, listeners=listeners("heard"))
    run_all(store)
    assert fire(store, SLOT + 60, SLOT, overlap="queue").what == "waiting", "the join has not run"
    settle(store, *map(done, claim(store, queue="joins", tasks=["join"])))
    first = row(store).job_id
    live, ended = store.read(lambda: schedule.latest(0, first))
    assert (live, ended) == (False, SLOT + 60)
    assert claim(store, queue="joins", tasks=["heard"]), "the listener's job is still there"
    assert fire(store, SLOT + 60, SLOT, overlap="queue").what == "fired"


def test_a_job_that_is_redriven_is_live_again(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 60)
    first = fire(store)
    (held,) = claim(store)
    settle(store, done(held))
    say(store, "UPDATE fanin.part SET status = 'failed', result = NULL")
    say(store, "UPDATE fanin.job_stripe SET succeeded = 0, failed = 1")
    job_id = first.job_id or ""
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1)) == 2
    assert fire(store, SLOT + 60, SLOT).what == "skipped"
    run_all(store)


# By hand


def test_a_schedule_fires_when_somebody_asks_also_while_it_is_paused(store: Store, moved: Clock) -> None:
    assert store.run(lambda: schedule.pause(0, NAME, "stock-taking"))
    moved.freeze(NOON + 5)
    asked = store.run(lambda: schedule.ask(0, NAME))
    moved.freeze(NOON + 6)
    assert (asked, store.run(lambda: schedule.ask(0, NAME))) == (NOON + 5, NOON + 5)
    assert fire(store, asked + 1, by_hand=True) == Fired("passed"), "nobody has asked for that"
    fired = fire(store, asked, by_hand=True)
    assert fired == Fired("fired", identity.firing_id(NAME, asked, True))
    assert (row(store).asked_at, row(store).mark, row(store).paused_at) == (None, NOON, NOON)
    assert firings(store) == [Firing(asked, "fired", fired.job_id, 0, True, NOON + 6)]
    assert fire(store, asked, by_hand=True) == Fired("passed")


def test_two_firings_that_are_asked_for_at_one_moment_of_the_clock_are_two(store: Store, moved: Clock) -> None:
    fired = []
    for now in (NOON + 5, NOON + 5, NOON + 5, NOON + 4):  # it stands still, and is put back
        moved.freeze(now)
        asked = store.run(lambda: schedule.ask(0, NAME))
        fired.append(fire(store, asked, by_hand=True, overlap="allow"))
    assert [one.what for one in fired] == ["fired"] * 4
    assert sorted(round(f.slot - NOON, 3) for f in firings(store)) == [5.0, 5.001, 5.002, 5.003]
    assert jobs(store) == 4
    moved.freeze(NOON + 6)
    assert store.run(lambda: schedule.ask(0, NAME)) == NOON + 6
    run_all(store)


def test_a_firing_by_hand_keeps_to_the_overlap(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    first = fire(store)
    asked = store.run(lambda: schedule.ask(0, NAME))
    assert fire(store, asked, by_hand=True, overlap="queue") == Fired("waiting", first.job_id)
    assert row(store).asked_at == asked
    assert fire(store, asked, by_hand=True) == Fired("skipped", first.job_id)
    assert row(store).asked_at is None
    assert sorted((f.slot, f.by_hand, f.what) for f in firings(store)) == [
        (SLOT, False, "fired"), (SLOT, True, "skipped"),
    ]  # fmt: skip


def test_a_moment_that_is_a_slot_too_gets_a_job_by_hand_beside_it(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    assert fire(store, overlap="allow").what == "fired"
    assert store.run(lambda: schedule.ask(0, NAME)) == SLOT
    assert fire(store, SLOT, by_hand=True, overlap="allow").what == "fired"
    assert jobs(store) == 2


# Pausing


def test_a_paused_schedule_fires_nothing_and_goes_on_with_the_next_slot(store: Store, moved: Clock) -> None:
    assert store.run(lambda: schedule.pause(0, NAME, "stock-taking"))
    assert not store.run(lambda: schedule.pause(0, NAME, "again"))
    assert (row(store).paused_at, row(store).note) == (NOON, "stock-taking")
    moved.freeze(SLOT + 1)
    assert fire(store) == Fired("passed")
    assert not store.run(lambda: schedule.pass_over(0, Slot(NAME, SLOT, NOON, 1)))
    assert store.run(lambda: schedule.resume(0, NAME))
    assert not store.run(lambda: schedule.resume(0, NAME))
    assert (row(store).paused_at, row(store).note, row(store).mark) == (None, None, SLOT + 1)
    assert fire(store, SLOT, SLOT + 1) == Fired("passed"), "it came while it was paused"
    assert jobs(store) == 0


# Filling in


def test_a_slot_that_was_missed_or_skipped_can_be_filled_in_once(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 100)
    assert store.run(lambda: schedule.pass_over(0, Slot(NAME, SLOT, NOON, 1)))
    assert store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT)))
    assert fates(store) == [(SLOT, "fired", 1)]
    assert not store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT, 7, request_hash="other")))
    assert store.run(lambda: schedule.fill(0, Slot(NAME, SLOT - 600), prepared(SLOT - 600)))
    assert jobs(store) == 2
    assert row(store).mark == SLOT


def test_slots_are_told_by_their_time_and_not_by_when_they_were_filled_in(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fire(store)
    moved.freeze(SLOT + 60)
    for minutes in (30, 20, 40):
        assert store.run(lambda: schedule.fill(0, Slot(NAME, SLOT - 60 * minutes), prepared(SLOT - 60 * minutes)))
    assert [one.slot for one in firings(store)] == [SLOT, SLOT - 1_200, SLOT - 1_800, SLOT - 2_400]
    assert [one.slot for one in store.read(lambda: schedule.firings(0, NAME, 1))] == [SLOT]


def test_a_slot_that_was_fired_is_not_filled_in(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fire(store)
    before = dump(store)
    assert not store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT)))
    assert dump(store) == before


def test_a_slot_whose_job_was_purged_is_not_filled_in(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fire(store, parts=0)
    say(store, "DELETE FROM fanin.outbox")
    say(store, "DELETE FROM fanin.job")
    assert not store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT)))
    assert jobs(store) == 0


def test_a_slot_that_is_still_to_be_decided_is_not_filled_in(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT + 100)
    with pytest.raises(NotAllowedNow, match="still to be decided"):
        store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT)))
    assert jobs(store) == 0


# Each statement by itself


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(
            lambda: schedule.SQL.answer(bucket=0, name=NAME, slot=NOON + 1, job_id=None), id="another request"
        ),
        pytest.param(lambda: schedule.SQL.ask(bucket=0, name=NAME), id="a second request"),
        pytest.param(lambda: schedule.SQL.pause(bucket=0, name=NAME, note="x"), id="a second pause"),
        pytest.param(
            lambda: schedule.SQL.advance(bucket=0, name=NAME, slot=SLOT, seen=NOON, job_id=None), id="a slot of a pause"
        ),
        pytest.param(lambda: schedule.SQL.redeclare(bucket=0, name=NAME, timing="{}", spec="{}"), id="the same again"),
        pytest.param(lambda: schedule.SQL.note_error(bucket=0, name=NAME, error="e"), id="the same error"),
    ],
)
def test_a_statement_said_in_the_wrong_state_finds_no_row(
    store: Store, moved: Clock, said: Callable[[], Statement]
) -> None:
    store.run(lambda: schedule.pause(0, NAME, None))
    store.run(lambda: schedule.ask(0, NAME))
    store.run(lambda: schedule.note_error(0, NAME, "e"))
    before = dump(store)
    moved.freeze(NOON + 5)

    def txn() -> Txn[Rows]:
        return (yield said())

    assert store.run(txn) == []
    assert dump(store) == before


def test_a_slot_is_decided_from_the_mark_that_was_seen_alone(store: Store, moved: Clock) -> None:
    before = dump(store)

    def txn() -> Txn[Rows]:
        return (yield schedule.SQL.advance(bucket=0, name=NAME, slot=SLOT, seen=NOON - 1, job_id=None))

    assert store.run(txn) == []
    assert dump(store) == before


def test_a_schedule_that_is_not_paused_is_not_resumed(store: Store, moved: Clock) -> None:
    moved.freeze(NOON + 5)
    before = dump(store)
    assert not store.run(lambda: schedule.resume(0, NAME))
    assert dump(store) == before


def test_a_slot_that_is_noted_as_fired_is_not_noted_again(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fired = fire(store)
    before = dump(store)

    def txn() -> Txn[Rows]:
        return (yield schedule.SQL.log_filled(bucket=0, name=NAME, slot=SLOT, job_id=fired.job_id))

    moved.freeze(SLOT + 1)
    assert store.run(txn) == []
    assert dump(store) == before


# What is kept


def test_only_the_newest_fates_are_kept_and_all_jobs(
    store: Store, moved: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_FIRINGS", 3)
    seen = NOON
    for n in range(6):
        moved.freeze(SLOT + n)
        assert fire(store, SLOT + n, seen, overlap="allow").what == "fired"
        seen = SLOT + n
    assert [slot for slot, *_ in fates(store)] == [SLOT + 3, SLOT + 4, SLOT + 5]
    assert jobs(store) == 6


def test_the_fates_of_one_moment_are_told_apart_by_their_slots(
    store: Store, moved: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_FIRINGS", 2)
    moved.freeze(SLOT + 100)
    seen = NOON
    for n in range(4):
        fire(store, SLOT + n, seen, overlap="allow")
        seen = SLOT + n
    assert [slot for slot, *_ in fates(store)] == [SLOT + 2, SLOT + 3]


def test_an_error_stands_until_the_slot_is_decided(store: Store, moved: Clock) -> None:
    assert store.run(lambda: schedule.note_error(0, NAME, "ValueError: no"))
    assert not store.run(lambda: schedule.note_error(0, NAME, "ValueError: no"))
    assert row(store).error == "ValueError: no"
    moved.freeze(SLOT)
    fire(store)
    assert row(store).error is None


def test_a_forgotten_schedule_leaves_its_jobs(store: Store, moved: Clock) -> None:
    moved.freeze(SLOT)
    fire(store)
    assert store.run(lambda: schedule.forget(0, NAME))
    assert not store.run(lambda: schedule.forget(0, NAME))
    assert store.read(lambda: schedule.look(0)).rows == {}
    assert (firings(store), jobs(store)) == ([], 1)


def test_a_name_that_is_not_known_is_refused_by_every_verb(store: Store) -> None:
    slot = Slot(NAME, SLOT)
    for factory in (
        lambda: schedule.pause(0, NAME, None), lambda: schedule.resume(0, NAME), lambda: schedule.ask(0, NAME),
        lambda: schedule.fill(0, slot, prepared(SLOT)),
    ):  # fmt: skip
        with pytest.raises(UnknownSchedule, match="fanin schedules"):
            store.run(factory)


def test_the_jobs_of_a_schedule_stand_in_its_bucket() -> None:
    for buckets in (1, 7, 1_024):
        for name in ("a", "nightly", "ü"):
            found = {identity.bucket_of(identity.firing_id(name, at, hand), buckets) for at in (0.0, 60.0, 1e9)
                     for hand in (False, True)}  # fmt: skip
            assert found == {schedule.bucket_of(name, buckets)}


def test_each_slot_and_each_schedule_has_an_id_of_its_own() -> None:
    ids = {identity.firing_id(name, at, hand) for name in "ab" for at in (0.0, 60.0) for hand in (False, True)}
    assert len(ids) == 8
    assert identity.firing_id("a", 60) == identity.firing_id("a", 60.0)


@pytest.mark.parametrize("begun", [False, True], ids=["all is left", "only its name is left"])
@pytest.mark.parametrize("forgotten", [False, True], ids=["the firing is trimmed", "the schedule is forgotten"])
def test_a_slot_is_not_filled_in_as_long_as_rows_of_its_purged_job_are_left(
    store: Store, moved: Clock, forgotten: bool, begun: bool
) -> None:
    """A purge that was killed would go on with the rows of the new one."""
    moved.freeze(SLOT)
    job_id = fire(store, parts=2).job_id
    assert job_id is not None
    run_all(store)
    assert store.run(lambda: purge.purge([0], [(0, job_id)], 0.0, unsent=True)).kept is None
    if begun:
        assert store.run(lambda: purge.portion(1, (0, job_id)))
    moved.freeze(SLOT + 1)
    if forgotten:
        assert store.run(lambda: schedule.forget(0, NAME))
        declare(store)
    else:
        assert store.run(lambda: schedule.pass_over(0, Slot(NAME, SLOT + 1, SLOT)))
        say(store, f"DELETE FROM fanin.firing WHERE slot = {SLOT}")
    before = dump(store)
    with pytest.raises(NotAllowedNow, match=f"the job of '{job_id}' was purged, and its rows are still being removed"):
        store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT, 2)))
    assert dump(store) == before
    while store.run(lambda: purge.portion(1, (0, job_id))):
        pass
    assert store.run(lambda: schedule.fill(0, Slot(NAME, SLOT), prepared(SLOT, 2)))
    check_all(store)


def test_a_firing_by_hand_waits_for_the_rows_of_a_purged_job_of_its_moment(store: Store, moved: Clock) -> None:
    """The clock was put back, and the schedule was forgotten: the moment is that of a firing before."""
    at = store.run(lambda: schedule.ask(0, NAME))
    job_id = fire(store, at, by_hand=True).job_id
    assert job_id is not None
    run_all(store)
    assert store.run(lambda: purge.purge([0], [(0, job_id)], 0.0, unsent=True)).kept is None
    assert store.run(lambda: schedule.forget(0, NAME))
    declare(store)
    assert store.run(lambda: schedule.ask(0, NAME)) == at
    before = dump(store)
    with pytest.raises(NotAllowedNow, match="its rows are still being removed"):
        fire(store, at, by_hand=True)
    assert dump(store) == before
    while store.run(lambda: purge.portion(1, (0, job_id))):
        pass
    assert fire(store, at, by_hand=True) == Fired("fired", job_id)
    check_all(store)
