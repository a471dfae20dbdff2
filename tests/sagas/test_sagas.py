"""Flows of many shapes that end badly in every way: each step has a defined end, and what took effect is undone once.

The short form runs a share of the cases, spread over all of them; ``FANIN_LONG=1`` all, in each order in which workers
and upkeep may come.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from fanin.domain.model import Claim
from fanin.protocol import flow
from fanin.protocol.effect import Call
from fanin.runtime.outcome import Outcome
from tests.sagas.outside import Outside
from tests.sagas.shapes import SHAPES
from tests.sagas.survey import Survey, surveyed
from tests.sagas.walk import BUCKET, Walk

Surveyed = Callable[[str, int], AbstractContextManager[Survey]]
UNDONE = [shape for shape in SHAPES if shape != "plain"]
CALLING = ["calling", "nested", "split"]
"""The shapes with effects."""
LATE: dict[str, Callable[[Walk], bool]] = {
    "when its step was closed": lambda walk: walk.run.status != "running",
    "while its flow is being undone": lambda walk: walk.undoing,
    "when all is over": lambda walk: False,
}


@pytest.fixture
def survey(migrated_url: str, shape: str) -> Surveyed:
    """``survey(suite, every)``."""
    return partial(surveyed, migrated_url, shape)


def failing(*items: str) -> Outside:
    return Outside(refuses=frozenset(items))


def last_fails(cases: Survey) -> Callable[[], Outside]:
    """The last part of all fails, so as much as possible is undone."""
    return lambda: failing(cases.items[-1])


def failures(cases: Survey) -> Iterator[tuple[str, ...]]:
    """Each part; all parts of each step that has several; and two steps, where one provides for another."""
    steps: dict[str, list[str]] = {}
    for item in cases.items:
        steps.setdefault(item.partition("/")[0], []).append(item)
        yield (item,)
    yield from (tuple(items) for items in steps.values() if len(items) > 1)
    if cases.shape == "conditional":
        yield from (("b/0", "c/0"), ("b/0", "d/0"))


@pytest.mark.parametrize("shape", SHAPES)
def test_it_fails_at_every_part_of_every_step(survey: Surveyed) -> None:
    with survey("a part fails", 1) as cases:
        for items in failures(cases):
            cases.case(f"{items} fail", partial(failing, *items), Walk.nothing)


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_cancelled_at_every_point(survey: Surveyed) -> None:
    with survey("cancelled", 3) as cases:
        cases.every_point("cancelled", last_fails(cases), Walk.cancel)


@pytest.mark.parametrize("shape", SHAPES)
def test_its_process_dies_at_every_point(survey: Surveyed) -> None:
    with survey("the process dies", 4) as cases:
        cases.every_point("dies", last_fails(cases), Walk.die)


@pytest.mark.parametrize("shape", SHAPES)
def test_its_deadline_passes_at_every_point(survey: Surveyed) -> None:
    with survey("the deadline passes", 12) as cases:
        cases.every_point("gives up", last_fails(cases), Walk.give_up, give_up_after="1d")


@pytest.mark.parametrize("shape", SHAPES)
def test_another_worker_comes_in_at_every_point_of_a_cancel(survey: Surveyed) -> None:
    """Also between two transactions of one round of upkeep."""

    def lead(walk: Walk, count: int) -> None:
        walk.go(lambda: len(walk.outside.deeds) >= count)
        walk.run.cancel("enough")

    with survey("cancelled, and another worker comes", 24) as cases:
        for count in range(len(cases.items) + 1):
            led = partial(lead, count=count)
            cases.every_point(f"after {count} deeds", Outside, Walk.run_what_is_ready, lead=led)


@pytest.mark.parametrize("shape", UNDONE)
def test_an_undo_fails_at_every_part_of_every_step(survey: Surveyed) -> None:
    """Once, and is tried again; or for good: then a person tries again, says what was done, or gives it up."""
    with survey("an undo fails", 6) as cases:
        last = cases.items[-1]
        for item in cases.items[:-1]:
            step = item.partition("/")[0]
            shaky = partial(lambda item: Outside(refuses=frozenset([last]), shaky={item: 1}), item)
            cases.case(f"the undo of {item} fails once", shaky, Walk.nothing)
            for word in ("retry", "abandon", "resolve"):
                stuck = partial(lambda item: Outside(refuses=frozenset([last]), stuck={item: 1}), item)
                cases.case(f"the undo of {item} fails for good, {word}", stuck, Walk.nothing, words={step: word})


@pytest.mark.parametrize("shape", SHAPES)
def test_an_attempt_reports_late(survey: Surveyed) -> None:
    """It has done its deed. Its lease ran out and another ran the part; or the flow was cancelled meanwhile."""

    def lead(walk: Walk, number: int, moment: str, overtaken: bool) -> None:
        kept: list[tuple[Claim, Outcome]] = []
        left = itertools.count()

        def late(claim: Claim, found: Outcome) -> bool:
            if next(left) != number:
                return False
            kept.append((claim, found))
            if overtaken:
                walk.lapse()
            else:
                walk.cancel()
            return True

        walk.late = late
        walk.go(lambda: bool(kept) and LATE[moment](walk))
        for claim, found in kept:
            walk.report(claim, found)

    with survey("an attempt reports late", 12) as cases:
        for number, moment, overtaken in itertools.product(range(len(cases.items) + 2), LATE, (True, False)):
            led = partial(lead, number=number, moment=moment, overtaken=overtaken)
            cases.case(f"attempt {number} reports {moment}, overtaken: {overtaken}", last_fails(cases), led)


@pytest.mark.parametrize("shape", CALLING)
def test_a_call_lands_late(survey: Surveyed) -> None:
    """A relay has taken it, and stalls: its time is over, so another one calls, or a person is asked."""

    def lead(walk: Walk, number: int, moment: str, lapses: bool) -> None:
        kept: list[Call] = []
        left = itertools.count()

        def stalls(call: Call) -> bool:
            if next(left) != number:
                return False
            kept.append(call)
            return True

        walk.stalls = stalls
        walk.go(lambda: bool(kept))
        if lapses:
            walk.lapse()
        over = not walk.go(lambda: bool(kept) and LATE[moment](walk))
        if over and kept:
            walk.lapse()
            walk.go()
        for call in kept:
            walk.call(call)

    with survey("a call lands late", 8) as cases:
        for number, moment, lapses in itertools.product(range(4), LATE, (True, False)):
            led = partial(lead, number=number, moment=moment, lapses=lapses)
            cases.case(f"call {number} lands {moment}, lapsed: {lapses}", last_fails(cases), led)


@pytest.mark.parametrize("shape", CALLING)
def test_nobody_hears_whether_a_call_has_happened(survey: Surveyed) -> None:
    with survey("a call is not answered", 4) as cases:
        last = cases.items[-1]
        for item, word in itertools.product(cases.items, ("retry", "abandon", "resolve")):
            silent = partial(lambda item: Outside(refuses=frozenset([last]), silent=frozenset([item])), item)
            cases.case(
                f"the answer of {item} is lost, {word}", silent, Walk.nothing, words={item.partition("/")[0]: word}
            )


@pytest.mark.parametrize("shape", ["plain"])
@pytest.mark.parametrize("act", [Walk.nothing, Walk.die, Walk.cancel])
def test_it_is_run_again_at_every_point_after_it_ended(survey: Surveyed, act: Callable[[Walk], None]) -> None:
    """What held it up is gone; what was done is not done again. The new run too may die or be cancelled."""

    def again(walk: Walk) -> None:
        walk.outside.refuses = frozenset()
        if (row := walk.run.row()).ended and row.status != "completed":
            walk.store.run(lambda: flow.run_again(BUCKET, walk.run.id, row.run))

    def ended(walk: Walk) -> None:
        walk.go(lambda: walk.run.row().ended)

    def begun(walk: Walk) -> None:
        ended(walk)
        again(walk)

    def complete(walk: Walk) -> None:
        walk.go()
        again(walk)
        walk.go()
        assert walk.run.status == "completed"
        assert walk.outside.done_again == []

    with survey(f"run again, {act.__name__}", 64) as cases:
        for items in failures(cases):
            name, outside = f"{items} failed, run again", partial(failing, *items)
            cases.every_point(name, outside, again, lead=ended, then=complete)
            cases.every_point(name, outside, act, lead=begun, then=complete)
