"""Schedules in workers: what is declared is fired, at its slots by the database's clock, and by one worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import fanin
from fanin.domain.errors import BadOption, BadPayload, NotAllowedNow, UnknownTask
from fanin.domain.identity import firing_id
from fanin.domain.timing import Timing
from fanin.protocol import schedule
from fanin.runtime import schedule as loop
from fanin.runtime.schedule import Scheduler
from fanin.schedule import Schedule
from fanin.testing.clock import Clock
from tests.runtime.working import until, working

MIDNIGHT = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class Night:
    """An application with a clock that the test moves, and a scheduler that it steps."""

    def __init__(self, app: fanin.App) -> None:
        self.app = app
        self.clock = Clock(app.store)
        self.at(MIDNIGHT - timedelta(hours=1))
        self.found = 0

        @app.task(name="note")
        def note(text: str) -> str:
            return text

        self.note = note

    def at(self, moment: datetime) -> None:
        self.now = moment
        self.clock.freeze(moment.timestamp())

    def scheduler(self) -> Scheduler:
        def found() -> None:
            self.found += 1

        return Scheduler(self.app.store, self.app.schedules, found)

    def tick(self, moment: datetime | None = None, scheduler: Scheduler | None = None) -> None:
        """A scheduler comes by, and stays until it has nothing to do."""
        if moment is not None:
            self.at(moment)
        stepped = scheduler or self.scheduler()
        for _ in range(200):
            if stepped.step() > loop.SOONEST_SECONDS:
                return
        raise AssertionError("it finds something to do again and again")

    def work(self) -> None:
        self.app.run_worker(until_idle=True)


@pytest.fixture
def night(app: fanin.App) -> Night:
    return Night(app)


def fates(made: Schedule) -> list[tuple[datetime, str, int]]:
    """(slot, what, missed), oldest first."""
    return [(made.timing.local(f.slot).astimezone(UTC), f.what, f.missed) for f in reversed(made.firings(999))]


def nightly(night: Night, **options: Any) -> Schedule:
    return night.app.schedule("nightly", "0 0 * * *", night.note, ["a", "b"], **options)


# Slots


def test_each_slot_becomes_a_job_with_its_items(night: Night) -> None:
    made = nightly(night, overlap="allow")
    night.tick()
    assert fates(made) == [], "it begins when it is first seen"
    night.tick(MIDNIGHT - timedelta(seconds=1))
    assert fates(made) == []
    for n in range(3):
        night.tick(MIDNIGHT + n * DAY)
        night.tick(MIDNIGHT + n * DAY + timedelta(hours=1))
    assert fates(made) == [(MIDNIGHT + n * DAY, "fired", 0) for n in range(3)]
    assert night.found == 3
    night.work()
    jobs = made.jobs()
    assert [job.result() for job in jobs] == [["a", "b"]] * 3
    assert jobs[-1].id == firing_id("nightly", MIDNIGHT.timestamp())


def test_a_real_worker_fires_and_works(night: Night) -> None:
    made = nightly(night)
    night.tick()
    night.at(MIDNIGHT)
    with working(night.app):
        (job,) = until(lambda: made.jobs(), "the slot is fired")
        assert job.result(90) == ["a", "b"]


def test_of_many_schedulers_one_fires_a_slot(night: Night) -> None:
    made = nightly(night)
    night.tick()
    night.at(MIDNIGHT)
    schedulers = [night.scheduler() for _ in range(8)]
    for one in schedulers:
        one._known.add("nightly")
    barrier = threading.Barrier(len(schedulers))
    problems: list[BaseException] = []

    def step(one: Scheduler) -> None:
        barrier.wait(90)
        try:
            one.step()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=step, args=(one,)) for one in schedulers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert problems == []
    assert fates(made) == [(MIDNIGHT, "fired", 0)]
    assert len(night.app.jobs()) == 1


def test_the_night_in_which_two_comes_twice_has_one_job(night: Night) -> None:
    made = night.app.schedule("berlin", "30 2 * * *", night.note, ["a"], tz="Europe/Berlin", overlap="allow")
    moment = datetime(2026, 10, 24, 23, 0, tzinfo=UTC)
    night.tick(moment)
    for n in range(1, 31):
        night.tick(moment + timedelta(minutes=10 * n))
    assert fates(made) == [(datetime(2026, 10, 25, 0, 30, tzinfo=UTC), "fired", 0)]


def test_the_night_in_which_two_is_left_out_has_one_job(night: Night) -> None:
    made = night.app.schedule("berlin", "30 2 * * *", night.note, ["a"], tz="Europe/Berlin", overlap="allow")
    moment = datetime(2026, 3, 28, 23, 0, tzinfo=UTC)
    night.tick(moment)
    for n in range(1, 31):
        night.tick(moment + timedelta(minutes=10 * n))
    assert fates(made) == [(datetime(2026, 3, 29, 1, 0, tzinfo=UTC), "fired", 0)]


def test_a_clock_that_goes_back_fires_no_slot_again(night: Night) -> None:
    made = nightly(night, overlap="allow")
    night.tick()
    night.tick(MIDNIGHT + DAY / 2)
    night.tick(MIDNIGHT - timedelta(minutes=1))
    night.tick(MIDNIGHT)
    assert fates(made) == [(MIDNIGHT, "fired", 0)]
    night.tick(MIDNIGHT + DAY)
    assert fates(made)[1:] == [(MIDNIGHT + DAY, "fired", 0)]


# Slots that were missed


def test_once_makes_up_for_the_latest_slot_alone(night: Night) -> None:
    made = nightly(night, misfire="once")
    night.tick()
    night.tick(MIDNIGHT + 3.5 * DAY)
    assert fates(made) == [(MIDNIGHT + 3 * DAY, "fired", 3)]


def test_skip_makes_up_for_none_that_is_later_than_the_grace(night: Night) -> None:
    made = nightly(night, misfire="skip", grace="10m")
    night.tick()
    night.tick(MIDNIGHT + 3.5 * DAY)
    assert fates(made) == [(MIDNIGHT + 3 * DAY, "missed", 4)]
    night.tick(MIDNIGHT + 4 * DAY + timedelta(minutes=10))
    assert fates(made)[1:] == [(MIDNIGHT + 4 * DAY, "fired", 0)]


def test_all_makes_up_for_each_of_the_latest(night: Night) -> None:
    made = nightly(night, misfire="all", overlap="allow", catch_up=3)
    night.tick()
    night.tick(MIDNIGHT + 4.5 * DAY)
    assert fates(made) == [
        (MIDNIGHT + 2 * DAY, "fired", 2), (MIDNIGHT + 3 * DAY, "fired", 0), (MIDNIGHT + 4 * DAY, "fired", 0),
    ]  # fmt: skip


def test_all_in_a_queue_is_one_job_after_the_other(night: Night) -> None:
    made = nightly(night, misfire="all", overlap="queue")
    night.tick()
    night.at(MIDNIGHT + 2.5 * DAY)
    for count in (1, 2, 3):
        night.tick()
        night.tick()
        assert len(fates(made)) == count, "the next waits for the job before"
        night.work()
    night.tick()
    assert [what for _, what, _ in fates(made)] == ["fired"] * 3


def test_one_slot_waits_behind_a_long_job_and_it_is_the_latest(night: Night) -> None:
    made = nightly(night, misfire="once", overlap="queue")
    night.tick()
    night.tick(MIDNIGHT)
    for n in (1, 2, 3):
        night.tick(MIDNIGHT + n * DAY)
    assert fates(made) == [(MIDNIGHT, "fired", 0)]
    night.work()
    night.tick()
    assert fates(made)[1:] == [(MIDNIGHT + 3 * DAY, "fired", 2)]


def test_a_slot_that_waited_is_not_late_when_its_turn_comes(night: Night) -> None:
    made = nightly(night, misfire="skip", grace="1m", overlap="queue")
    night.tick()
    night.tick(MIDNIGHT)
    night.tick(MIDNIGHT + 1.5 * DAY)
    night.work()
    night.tick()
    assert fates(made) == [(MIDNIGHT, "fired", 0), (MIDNIGHT + DAY, "fired", 0)]


def test_a_slot_is_skipped_and_recorded_while_the_job_before_is_live(night: Night) -> None:
    made = nightly(night, overlap="skip")
    night.tick()
    night.tick(MIDNIGHT)
    night.tick(MIDNIGHT + DAY)
    assert fates(made) == [(MIDNIGHT, "fired", 0), (MIDNIGHT + DAY, "skipped", 0)]
    assert made.firings(1)[0].job_id == made.jobs()[0].id
    night.work()
    night.tick(MIDNIGHT + 2 * DAY)
    assert fates(made)[2:] == [(MIDNIGHT + 2 * DAY, "fired", 0)]


# A change of the code


def test_another_expression_begins_anew(night: Night) -> None:
    nightly(night, misfire="all", overlap="allow")
    night.tick()
    del night.app.schedules["nightly"]
    night.at(MIDNIGHT + 2.5 * DAY)
    made = night.app.schedule("nightly", "0 * * * *", night.note, ["a"], misfire="all", overlap="allow")
    night.tick()
    assert fates(made) == [], "neither what the old one has missed, nor what the new one would have had"
    night.tick(MIDNIGHT + 2.5 * DAY + timedelta(hours=1))
    assert fates(made) == [(MIDNIGHT + 2.5 * DAY + timedelta(hours=1), "fired", 0)]


def test_another_rule_or_other_items_keep_the_mark(night: Night) -> None:
    nightly(night)
    night.tick()
    del night.app.schedules["nightly"]
    night.at(MIDNIGHT + 0.5 * DAY)
    made = night.app.schedule("nightly", "0 0 * * *", night.note, ["c"], misfire="skip", grace="13h")
    night.tick()
    assert fates(made) == [(MIDNIGHT, "fired", 0)]


def test_workers_of_two_versions_do_not_fight(night: Night) -> None:
    """Each goes by its own expression, and an instant that both have is one job."""
    old = nightly(night, overlap="allow")
    old_scheduler = night.scheduler()
    night.tick(scheduler=old_scheduler)
    newer = fanin.App(night.app.url)
    newer.store = night.app.store
    newer.tasks = night.app.tasks
    new = newer.schedule("nightly", "0 */12 * * *", night.note, ["a"], overlap="allow")
    new_scheduler = Scheduler(newer.store, newer.schedules, lambda: None)
    new_scheduler.step()
    for hours in range(0, 48, 3):
        night.at(MIDNIGHT + timedelta(hours=hours))
        night.tick(scheduler=old_scheduler)
        while new_scheduler.step() <= loop.SOONEST_SECONDS:
            pass
    assert fates(new) == [(MIDNIGHT + timedelta(hours=n), "fired", 0) for n in (0, 12, 24, 36)]
    assert fates(old) == fates(new)


def test_a_schedule_that_was_forgotten_begins_anew(night: Night) -> None:
    made = nightly(night)
    stepped = night.scheduler()
    night.tick(scheduler=stepped)
    assert night.app.store.run(lambda: schedule.forget(made._bucket, "nightly"))
    night.at(MIDNIGHT + DAY / 2)
    night.tick(scheduler=stepped)
    night.tick(scheduler=stepped)
    assert (fates(made), made.row().mark) == ([], (MIDNIGHT + DAY / 2).timestamp())


# Bounds and jitter


def test_a_schedule_has_a_start_and_an_end(night: Night) -> None:
    made = nightly(night, start=MIDNIGHT + DAY, end=MIDNIGHT + 2 * DAY, overlap="allow")
    night.tick()
    for n in range(5):
        night.tick(MIDNIGHT + n * DAY)
    assert fates(made) == [(MIDNIGHT + DAY, "fired", 0), (MIDNIGHT + 2 * DAY, "fired", 0)]
    assert made.next() == []


def test_jitter_spreads_the_parts_of_a_job_and_not_the_slots(night: Night) -> None:
    made = nightly(night, jitter="1h", overlap="allow")
    night.tick()
    starts = []
    for n in range(8):
        night.tick(MIDNIGHT + n * DAY)
        prepared = made._prepare((MIDNIGHT + n * DAY).timestamp())
        assert prepared.job.delay == made._prepare((MIDNIGHT + n * DAY).timestamp()).job.delay
        starts.append(prepared.job.delay)
    assert all(0 <= start < 3600 for start in starts)
    assert len(set(starts)) == 8
    assert [slot for slot, *_ in fates(made)] == [MIDNIGHT + n * DAY for n in range(8)]


# Items


def test_items_may_be_a_function_of_the_slot(night: Night) -> None:
    asked: list[datetime] = []

    def items(slot: datetime) -> Iterator[str]:
        asked.append(slot)
        yield slot.isoformat()

    made = night.app.schedule("berlin", "0 1 * * *", night.note, items, tz="Europe/Berlin")
    night.tick()
    assert asked == [], "not at the declaration"
    night.tick(MIDNIGHT)
    assert [at.isoformat() for at in asked] == ["2026-03-01T01:00:00+01:00"]
    night.work()
    assert made.jobs()[0].result() == "2026-03-01T01:00:00+01:00"


def test_items_may_be_a_function_of_nothing(night: Night) -> None:
    made = night.app.schedule("nightly", "0 0 * * *", night.note, lambda: ["x"])
    night.tick()
    night.tick(MIDNIGHT)
    night.work()
    assert made.jobs()[0].result() == "x"


def test_without_items_the_job_has_one_part_which_may_ask_for_its_slot(night: Night) -> None:
    @night.app.task(name="bare")
    def bare(times: int = 2) -> int:
        return times

    @night.app.task(name="slotted")
    def slotted(slot: datetime) -> str:
        return slot.isoformat()

    one = night.app.schedule("one", "0 0 * * *", bare)
    other = night.app.schedule("other", "0 0 * * *", slotted, tz="Asia/Tokyo")
    night.tick()
    night.tick(MIDNIGHT + timedelta(hours=15))
    night.work()
    assert one.jobs()[0].result() == 2
    assert other.jobs()[0].result() == "2026-03-02T00:00:00+09:00"


def test_a_slot_without_items_is_a_job_that_ends_with_its_successor(night: Night) -> None:
    @night.app.task(name="after")
    def after(found: fanin.Joined[str]) -> int:
        return len(found)

    made = night.app.schedule("nightly", "0 0 * * *", night.note, [], then=after)
    night.tick()
    night.tick(MIDNIGHT)
    night.work()
    (job,) = made.jobs()
    assert job.status == "completed"
    assert job.successor is not None
    assert job.successor.result() == 0


def test_items_that_cannot_be_had_are_asked_for_again_and_hold_up_nobody(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "AGAIN_SECONDS", 0.0)
    broken = [True]

    def items() -> list[str]:
        if broken[0]:
            raise OSError("the list is away \0")
        return ["a"]

    made = night.app.schedule("a", "0 0 * * *", night.note, items)
    other = night.app.schedule("b", "0 0 * * *", night.note, ["b"])
    stepped = night.scheduler()
    night.tick(scheduler=stepped)
    night.tick(MIDNIGHT, scheduler=stepped)
    assert (fates(made), [what for _, what, _ in fates(other)]) == ([], ["fired"])
    assert made.row().error == "OSError: the list is away \\0"
    broken[0] = False
    night.tick(scheduler=stepped)
    assert fates(made) == [(MIDNIGHT, "fired", 0)]
    assert made.row().error is None


def test_a_schedule_whose_items_fail_is_left_alone_for_a_while(night: Night) -> None:
    calls: list[int] = []

    def items() -> list[str]:
        calls.append(1)
        raise OSError("no")

    night.app.schedule("a", "0 0 * * *", night.note, items)
    stepped = night.scheduler()
    night.tick(scheduler=stepped)
    night.tick(MIDNIGHT, scheduler=stepped)
    night.tick(scheduler=stepped)
    assert len(calls) == 1


# What may be asked of a schedule


def test_the_next_slots_are_told_in_the_schedules_zone(night: Night) -> None:
    made = night.app.schedule("berlin", "30 2 * * *", night.note, ["a"], tz="Europe/Berlin")
    night.at(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert [at.isoformat() for at in made.next(2)] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_a_paused_schedule_passes_its_slots(night: Night) -> None:
    made = nightly(night, misfire="all", overlap="allow")
    assert made.pause("stock-taking")
    assert not made.pause()
    night.tick(MIDNIGHT + 2.5 * DAY)
    assert (fates(made), made.row().note) == ([], "stock-taking")
    assert made.resume()
    assert not made.resume()
    night.tick(MIDNIGHT + 3 * DAY)
    assert fates(made) == [(MIDNIGHT + 3 * DAY, "fired", 0)]


def test_a_schedule_is_fired_by_hand(night: Night) -> None:
    made = nightly(night, jitter="1h")
    made.pause()
    job = made.fire()
    assert job is not None
    night.work()
    assert job.result() == ["a", "b"]
    assert [(f.by_hand, f.what, f.job_id) for f in made.firings()] == [(True, "fired", job.id)]


def test_a_firing_by_hand_keeps_to_the_overlap(night: Night) -> None:
    made = nightly(night)
    assert made.fire() is not None
    night.at(MIDNIGHT - timedelta(minutes=1))
    with pytest.raises(NotAllowedNow, match="still live"):
        made.fire()
    queued = night.app.schedule("queued", "0 0 * * *", night.note, ["a"], overlap="queue")
    assert queued.fire() is not None
    night.at(MIDNIGHT - timedelta(seconds=30))
    assert queued.fire() is None
    night.tick()
    assert len(fates(queued)) == 1
    night.work()
    night.tick()
    assert [f.by_hand for f in queued.firings()] == [True, True]


def test_a_firing_that_was_asked_for_elsewhere_is_done_by_a_worker(night: Night) -> None:
    made = nightly(night)
    night.tick()
    asked = night.app.store.run(lambda: schedule.ask(made._bucket, "nightly"))
    night.tick()
    assert [(f.slot, f.by_hand, f.what) for f in made.firings()] == [(asked, True, "fired")]


def test_slots_of_the_past_are_filled_in_once(night: Night) -> None:
    made = nightly(night)
    night.tick()
    night.tick(MIDNIGHT)
    jobs = made.backfill(MIDNIGHT - 3 * DAY, MIDNIGHT + 99 * DAY)
    assert [job.id for job in jobs] == [
        firing_id("nightly", (MIDNIGHT - n * DAY).timestamp()) for n in (3, 2, 1)
    ]  # fmt: skip
    assert made.backfill(MIDNIGHT - 3 * DAY, MIDNIGHT) == []
    with pytest.raises(BadOption, match="time zone"):
        made.backfill(datetime(2026, 1, 1), MIDNIGHT)
    with pytest.raises(BadOption, match="comes before since="):
        made.backfill(MIDNIGHT, MIDNIGHT - DAY)
    for ask in (made.next, made.firings, made.jobs):
        with pytest.raises(BadOption, match="=-1: give a whole number from 1 to 1000000"):
            ask(-1)
    with pytest.raises(BadOption, match="more than 1000 slots"):
        made.backfill(MIDNIGHT - 2000 * DAY, MIDNIGHT)


def test_a_schedule_that_is_fired_in_a_handler_is_nobodys_child(night: Night) -> None:
    made = nightly(night)

    @night.app.task(name="fires")
    def fires() -> str:
        job = made.fire()
        assert job is not None
        return job.id

    job = night.app.submit(fires)
    night.work()
    row = night.app.job(job.result()).row()
    assert (row.parent_id, row.depth, row.step) == (None, 0, "at/nightly")


def test_the_async_twin_does_the_same(migrated_url: str) -> None:
    async def main() -> None:
        app = fanin.AsyncApp(migrated_url)
        Clock(app.store).freeze(MIDNIGHT.timestamp() - 60)

        @app.task(name="note")
        async def note(text: str) -> str:
            return text

        made = app.schedule("nightly", "0 0 * * *", note, ["a"])
        assert app.schedules["nightly"].name == made.name == "nightly"
        assert await made.next() == [MIDNIGHT]
        assert (await made.row()).mark == MIDNIGHT.timestamp() - 60
        assert await made.pause("why")
        assert await made.resume()
        job = await made.fire()
        assert job is not None
        await app.run_worker(until_idle=True)
        assert await job.result() == "a"
        assert [one.id for one in await made.jobs()] == [job.id]
        assert (await made.firings())[0].by_hand
        assert len(await made.backfill(MIDNIGHT - DAY, MIDNIGHT)) == 1
        assert repr(made) == "<AsyncSchedule 'nightly' 0 0 * * * UTC>"
        await app.close()

    asyncio.run(main())


# What is refused at the declaration, without a database


def test_a_declaration_that_cannot_work_is_refused_before_anything_is_opened() -> None:
    app = fanin.App("postgresql://nowhere.invalid/fanin")
    foreign = fanin.App("sqlite:///other.db")

    @app.task(name="note")
    def note(text: str) -> str:
        return text

    @foreign.task(name="theirs")
    def theirs(text: str) -> str:
        return text

    def declare(*args: Any, **options: Any) -> Schedule:
        return app.schedule(*(args or ("n", "0 0 * * *", note, ["a"])), **options)

    refused: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (BadOption, "schedule name", ("", "0 0 * * *", note, ["a"]), {}),
        (BadOption, "cron=", ("n", "0 0 * *", note, ["a"]), {}),
        (BadOption, "tz=", (), {"tz": "Berlin/Europe"}),
        (BadOption, "misfire", (), {"misfire": "never"}),
        (BadOption, "overlap", (), {"overlap": "never"}),
        (BadOption, "grace", (), {"grace": "soon"}),
        (BadOption, "jitter", (), {"jitter": -1}),
        (BadOption, "quorum", (), {"quorum": 2}),
        (BadOption, "tolerate", (), {"tolerate": "many"}),
        (BadOption, "attempts", (), {"attempts": 0}),
        (BadOption, "queue", (), {"queue": ""}),
        (BadOption, "priority", (), {"priority": 10_000}),
        (BadOption, "give_up_after", (), {"give_up_after": "x"}),
        (BadPayload, "meta", (), {"meta": object()}),
        (BadPayload, "part 0", ("n", "0 0 * * *", note, [7]), {}),
        (BadPayload, "note", ("n", "0 0 * * *", note), {}),
        (UnknownTask, "theirs", ("n", "0 0 * * *", theirs, ["a"]), {}),
        (UnknownTask, "theirs", (), {"then": theirs}),
        (BadOption, "plain function", ("n", "0 0 * * *", note, note), {}),
    ]
    for kind, said, args, options in refused:
        with pytest.raises(kind, match=said):
            declare(*args, **options)
    assert app.schedules == {}
    declare()
    with pytest.raises(BadOption, match="is taken"):
        declare()
    assert app.schedules["n"].timing == Timing("0 0 * * *")
    with pytest.raises(BadOption, match="note"):
        app.schedules["n"].pause("x" * 2000)
