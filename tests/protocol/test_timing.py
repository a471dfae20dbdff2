"""Slots of cron expressions, also where the clock is changed, and what is chosen of those that were missed."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from fanin.domain import limits
from fanin.domain.errors import BadOption
from fanin.domain.timing import Choice, Rule, Timing, choose, make_rule, make_timing, soon

ZONES = (
    "UTC", "Europe/Berlin", "Australia/Sydney", "America/Santiago", "Australia/Lord_Howe", "Asia/Kolkata",
    "America/New_York", "Pacific/Apia",
)  # fmt: skip
CRONS = (
    "30 2 * * *", "0 0 * * *", "15,45 1,2 * * *", "*/20 * * * *", "0 * * * *", "*/30 2 * * *", "10 3 * * SUN",
    "0 2 1 * *", "@daily", "0 12 L * *", "30 1-3 * * 1-5",
)  # fmt: skip


def timing(cron: str, tz: str = "UTC", **bounds: Any) -> Timing:
    return make_timing(cron, tz, bounds.get("start"), bounds.get("end"))


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def slots(made: Timing, after: str, count: int) -> list[str]:
    return [made.local(slot).isoformat() for slot in soon(made, moment(after), count)]


# Where the clock is changed


@pytest.mark.parametrize(
    ("cron", "tz", "after", "found"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T20:00Z",
         ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        ("30 2 * * *", "Australia/Sydney", "2026-10-03T00:00Z",
         ["2026-10-04T03:00:00+11:00", "2026-10-05T02:30:00+11:00"]),
        ("0 0 * * *", "America/Santiago", "2026-09-05T12:00Z",
         ["2026-09-06T01:00:00-03:00", "2026-09-07T00:00:00-03:00"]),
        ("15,45 2 * * *", "Europe/Berlin", "2026-03-28T20:00Z",
         ["2026-03-29T03:00:00+02:00", "2026-03-30T02:15:00+02:00"]),
    ],
)  # fmt: skip
def test_a_time_that_the_clock_leaves_out_fires_once_where_it_goes_on(
    cron: str, tz: str, after: str, found: list[str]
) -> None:
    assert slots(timing(cron, tz), after, 2) == found


@pytest.mark.parametrize(
    ("tz", "after", "found"),
    [
        ("Europe/Berlin", "2026-10-24T20:00Z", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        ("Australia/Sydney", "2026-04-04T00:00Z", ["2026-04-05T02:30:00+11:00", "2026-04-06T02:30:00+10:00"]),
        ("America/New_York", "2026-11-01T00:00Z", ["2026-11-01T02:30:00-05:00", "2026-11-02T02:30:00-05:00"]),
    ],
)
def test_a_time_that_comes_twice_fires_at_the_first(tz: str, after: str, found: list[str]) -> None:
    assert slots(timing("30 2 * * *", tz), after, 2) == found


def test_between_the_two_the_next_is_that_of_the_next_day() -> None:
    """02:10 of the second time round looks as if 02:30 were still to come."""
    second = timing("30 2 * * *", "Europe/Berlin")
    assert slots(second, "2026-10-25T01:10Z", 1) == ["2026-10-26T02:30:00+01:00"]
    assert second.latest(moment("2026-10-24T20:00Z"), moment("2026-10-25T01:10Z"), 9) == [moment("2026-10-25T00:30Z")]


def test_a_star_in_minute_or_hour_counts_by_elapsed_time() -> None:
    made = timing("*/30 2 * * *", "Europe/Berlin")
    assert slots(made, "2026-03-28T20:00Z", 1) == ["2026-03-30T02:00:00+02:00"], "there is no such hour that night"
    night = made.latest(moment("2026-10-24T20:00Z"), moment("2026-10-25T20:00Z"), 99)
    assert len(night) == 4, "that hour comes twice"
    hourly = timing("0 * * * *", "Europe/Berlin").latest(moment("2026-10-24T22:00Z"), moment("2026-10-25T23:00Z"), 99)
    assert {a - b for a, b in pairwise(hourly)} == {3600.0}


@given(
    st.sampled_from(CRONS), st.sampled_from(ZONES), st.datetimes(datetime(2011, 1, 1), datetime(2035, 1, 1)),
    st.integers(0, 40 * 24 * 60),
)  # fmt: skip
@example("30 2 * * *", "Europe/Berlin", datetime(2026, 10, 25, 0, 40), 20)
@example("30 1-3 * * 1-5", "Australia/Lord_Howe", datetime(2026, 4, 4, 14, 50), 3000)
def test_the_slots_are_the_same_forwards_and_backwards(cron: str, tz: str, start: datetime, minutes: int) -> None:
    made = timing(cron, tz)
    low = start.replace(tzinfo=UTC).timestamp()
    high = low + 60.0 * minutes
    forwards: list[float] = []
    while (slot := made.after(forwards[-1] if forwards else low)) is not None and slot <= high:
        assert slot > (forwards[-1] if forwards else low)
        forwards.append(slot)
    assert made.latest(low, high, 100_000) == forwards[::-1]


# Bounds


def test_there_is_no_slot_before_the_start_or_after_the_end() -> None:
    start, end = datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
    made = timing("0 0 * * *", start=start, end=end)
    long_before = moment("2020-01-01T00:00Z")
    found = [datetime(2026, 1, day, tzinfo=UTC).timestamp() for day in (2, 3, 4)]
    assert soon(made, long_before, 99) == found
    assert made.latest(long_before, moment("2030-01-01T00:00Z"), 99) == found[::-1]
    assert made.after(end.timestamp()) is None
    later = timing("0 0 * * *", start=start + timedelta(microseconds=1))
    assert later.after(long_before) == found[1]


def test_a_start_in_another_zone_is_the_same_moment() -> None:
    start = datetime.fromisoformat("2026-01-02T05:30+05:30")
    assert timing("0 0 * * *", start=start).after(0.0) == moment("2026-01-02T00:00Z")


# What is refused


@pytest.mark.parametrize("cron", ["61 * * * *", "* * *", "0 2 * * * * *", "@reboot", "", "0 0 30 2 *", "a b c d e"])
def test_an_expression_that_cannot_be_read_is_refused_with_its_value(cron: str) -> None:
    with pytest.raises(BadOption, match="cron=") as refused:
        timing(cron)
    assert repr(cron) in str(refused.value)


def test_seconds_go_with_stars_only() -> None:
    made = timing("*/10 * * * * *", "Europe/Berlin")
    assert soon(made, 0.0, 2) == [10.0, 20.0]
    with pytest.raises(BadOption, match="seconds in front"):
        timing("0 30 2 * * *", "Europe/Berlin")


@pytest.mark.parametrize("tz", ["Europe/Berln", "", "../../etc/passwd", "Mars/Base", None])
def test_a_zone_that_does_not_exist_is_refused(tz: Any) -> None:
    with pytest.raises(BadOption, match="no time zone"):
        timing("0 2 * * *", tz)


def test_a_misspelt_zone_gets_a_hint() -> None:
    with pytest.raises(BadOption, match="did you mean 'Europe/Berlin'"):
        timing("0 2 * * *", "Europe/Berln")


def test_a_naive_bound_is_refused() -> None:
    """F049"""
    with pytest.raises(BadOption, match="time zone"):
        timing("0 2 * * *", start=datetime(2026, 1, 1))
    with pytest.raises(BadOption, match="before start"):
        timing("0 2 * * *", start=datetime(2026, 1, 2, tzinfo=UTC), end=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"misfire": "twice"}, "misfire='twice'"),
        ({"overlap": "wait"}, "overlap='wait'"),
        ({"misfire": "all"}, "overlap='queue'"),
        ({"catch_up": 0}, "catch_up=0"),
        ({"catch_up": limits.SCHEDULE_CATCH_UP_SLOTS + 1}, "catch_up="),
        ({"catch_up": True}, "catch_up=True"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    values: dict[str, Any] = {"misfire": "once", "overlap": "skip", "grace": 60.0, "catch_up": 100, "jitter": 0.0}
    with pytest.raises(BadOption, match=said):
        make_rule(**{**values, **options})


# What is chosen

DAILY = timing("0 0 * * *")
DAY = 86_400.0


def test_nothing_is_chosen_before_a_slot_has_come() -> None:
    for misfire in ("skip", "once", "all"):
        rule = Rule(misfire, "allow")
        assert choose(DAILY, rule, 0.0, DAY - 0.001) is None
        assert choose(DAILY, rule, 0.0, DAY) == Choice(DAY, True, 0)


def test_once_is_the_latest_however_late() -> None:
    assert choose(DAILY, Rule("once"), 0.0, 4.5 * DAY) == Choice(4 * DAY, True, 3)


def test_skip_is_the_latest_within_the_grace() -> None:
    rule = Rule("skip", grace=60.0)
    assert choose(DAILY, rule, 0.0, 4 * DAY + 60.0) == Choice(4 * DAY, True, 3)
    assert choose(DAILY, rule, 0.0, 4 * DAY + 60.5) == Choice(4 * DAY, False, 4)


def test_nothing_is_late_while_it_waits_for_the_job_before() -> None:
    rule = Rule("skip", "queue", grace=60.0)
    now = 4.5 * DAY
    assert choose(DAILY, rule, 0.0, now, free_at=now - 30.0) == Choice(4 * DAY, True, 3)
    assert choose(DAILY, rule, 0.0, now, free_at=now - 90.0) == Choice(4 * DAY, False, 4)


def test_all_is_one_after_the_other_from_the_oldest_that_is_made_up_for() -> None:
    rule = Rule("all", "allow", catch_up=3)
    assert choose(DAILY, rule, 0.0, 5 * DAY) == Choice(3 * DAY, True, 2)
    assert choose(DAILY, rule, 3 * DAY, 5 * DAY) == Choice(4 * DAY, True, 0)
    assert choose(DAILY, rule, 4 * DAY, 5 * DAY) == Choice(5 * DAY, True, 0)
    assert choose(DAILY, rule, 5 * DAY, 5 * DAY) is None


def test_a_long_absence_is_counted_up_to_a_limit() -> None:
    every = timing("* * * * *")
    chosen = choose(every, Rule("once"), 0.0, 60.0 * 50_000)
    assert chosen == Choice(60.0 * 50_000, True, limits.SCHEDULE_MISSED_SLOTS - 1)
    assert math.isfinite(chosen.slot)
