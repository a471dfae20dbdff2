"""Join policies, as functions over counts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.domain import limits, policy, states
from fanin.domain.errors import BadOption
from fanin.domain.policy import Backoff, Counts, Policy, parse_tolerate

COUNTS = st.integers(1, 50).flatmap(
    lambda parts: st.integers(0, parts).flatmap(
        lambda ended: st.integers(0, ended).map(lambda ok: Counts(parts, parts - ended, ok, ended - ok, True))
    )
)
RULES = st.builds(
    Policy,
    tolerate=st.integers(0, 10),
    tolerate_percent=st.none() | st.floats(0, 100),
    fail_fast=st.booleans(),
    quorum=st.none() | st.integers(1, 60),
)


def at_the_end(counts: Counts, more: int) -> Counts:
    """The counts of the whole job when ``more`` of the live parts succeed and the others fail."""
    left = counts.remaining - more
    return Counts(counts.created, 0, counts.succeeded + more, counts.failed + left, True)


@given(RULES, COUNTS, st.data())
def test_a_job_is_closed_early_only_when_nothing_that_may_still_come_would_change_the_answer(
    rule: Policy, counts: Counts, data: st.DataObject
) -> None:
    early = policy.close_early(rule, counts)
    natural = policy.natural_end(rule, at_the_end(counts, data.draw(st.integers(0, counts.remaining))))
    if early is not None:
        assert (early.status, early.proceeds) == (natural.status, natural.proceeds)


@given(RULES, COUNTS, st.integers(0, 50), st.data())
def test_nor_a_growing_job_when_nothing_that_its_parts_may_still_add_would(
    rule: Policy, counts: Counts, room: int, data: st.DataObject
) -> None:
    """Live parts may add up to ``room`` others, of which any may succeed."""
    early = policy.close_early(rule, counts, counts.created + room)
    added = data.draw(st.integers(0, room if counts.remaining else 0))
    grown = counts._replace(created=counts.created + added, remaining=counts.remaining + added)
    natural = policy.natural_end(rule, at_the_end(grown, data.draw(st.integers(0, grown.remaining))))
    if early is not None:
        assert (early.status, early.proceeds) == (natural.status, natural.proceeds)


@given(RULES, COUNTS)
def test_an_end_is_a_success_and_proceeds_or_a_failure_and_does_not(rule: Policy, counts: Counts) -> None:
    ending = policy.natural_end(rule, at_the_end(counts, counts.remaining))
    assert ending.proceeds == (ending.status == "completed")
    assert (ending.outcome in ("all_ok", "with_failures")) == ending.proceeds
    assert (ending.reason is None) == ending.proceeds


@pytest.mark.parametrize("parts", [100, 1_000, 10_000, 10_000_000])
def test_a_share_that_is_a_whole_number_of_parts_tolerates_exactly_that_many(parts: int) -> None:
    for hundredths in range(10_001):
        if parts * hundredths % 10_000 == 0:
            rule, whole = Policy(tolerate_percent=hundredths / 100), parts * hundredths // 10_000
            assert policy.tolerated(rule, parts) >= whole
            assert policy.tolerated(rule, parts) < whole + 1


def test_the_sample_judges_a_share_of_what_has_ended_and_the_seal_a_share_of_all() -> None:
    rule = Policy(fail_fast=True, tolerate_percent=10.0, sample=20)
    assert policy.close_early(rule, Counts(1_000, 981, 9, 10, True)) is None
    assert policy.close_early(rule, Counts(1_000, 980, 10, 10, True)) is not None
    assert policy.close_early(rule, Counts(1_000, 980, 18, 2, False)) is None
    assert policy.close_early(rule, Counts(15, 5, 0, 10, True)) is not None
    assert policy.close_early(rule, Counts(15, 5, 0, 10, False)) is None


def test_the_names_of_all_endings_are_outcomes_of_the_state_table() -> None:
    said = {policy.gave_up(Policy(give_up=how)).outcome for how in ("proceed", "abandon")}
    said |= {policy.cancelled(None).outcome, "refused"}
    for counts in (Counts(2, 0, 2, 0, True), Counts(2, 0, 1, 1, True)):
        for rule in (Policy(), Policy(tolerate=1)):
            said.add(policy.natural_end(rule, counts).outcome)
    assert said == set(states.OUTCOMES)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [(None, (0, None)), (3, (3, None)), ("3", (3, None)), (" 1.5% ", (0, 1.5)), ("0%", (0, 0.0)), ("100%", (0, 100.0))],
)
def test_what_is_tolerated_is_a_number_or_a_share(text: int | str | None, meaning: tuple[int, float | None]) -> None:
    assert parse_tolerate(text) == meaning


@pytest.mark.parametrize(
    "text", [-1, "-1", "x", "", "%", "101%", "-1%", "nan%", "inf%", 1.5, True, "²", limits.JOB_WIDTH_PARTS + 1]
)
def test_what_is_no_number_and_no_share_is_refused(text: int | str) -> None:
    with pytest.raises(BadOption, match="give a number of parts such as 3, or a share"):
        parse_tolerate(text)


@given(
    st.builds(
        Backoff,
        first=st.floats(0, 1e6),
        factor=st.floats(1, 1e6),
        cap=st.floats(0, 1e12),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, limits.ATTEMPTS),
    st.floats(0, 1),
)
def test_a_pause_never_overflows_and_never_passes_its_cap(rule: Backoff, attempt: int, draw: float) -> None:
    assert 0 <= rule.delay(attempt, draw) <= min(rule.cap, limits.DELAY_SECONDS_MAX)


def test_pauses_grow_by_the_factor_up_to_the_cap() -> None:
    rule = Backoff(first=1.0, factor=3.0, cap=50.0, jitter=0.0)
    pauses = [rule.delay(n) for n in range(1, 8)]
    assert pauses == [1.0, 3.0, 9.0, 27.0, 50.0, 50.0, 50.0]
    assert all(a <= b for a, b in pairwise(pauses))
    assert Backoff(first=10.0, jitter=1.0).delay(1, 1.0) == 0.0
