"""Races for a slot: schedulers that see it at once, and what operators and the job before do meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fanin.protocol import schedule
from fanin.protocol.steps import TxnFactory
from fanin.testing.clock import Clock
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.races.arena import Arena
from tests.races.scenarios import race, three
from tests.races.stage import BUCKET


def actor(name: str, factory: TxnFactory[Any], said: Callable[[Any], str]) -> Actor:
    def script() -> Script:
        return said((yield factory))

    return Actor(name, script)


def fires(arena: Arena, name: str, at: float, **options: Any) -> Actor:
    return actor(name, arena.firing(at, **options), lambda fired: str(fired.what).upper())


def verb(name: str, factory: TxnFactory[Any], yes: str, no: str = "NOTHING") -> Actor:
    return actor(name, factory, lambda did: yes if did else no)


def a_job_for_each_slot(arena: Arena, run: Run) -> list[str]:
    """As many jobs as slots that are said to be fired, and those jobs."""
    jobs = {row["id"] for row in select(arena.store, "SELECT id FROM fanin.job")}
    said = sum(out in ("FIRED", "FILLED") for out in run.outcomes.values())
    before = len(select(arena.store, "SELECT 1 AS n FROM fanin.firing WHERE slot = 0.5"))
    return [] if len(jobs) == said + before else [f"{said} slots were said to be fired, there are {len(jobs)} jobs"]


ONE_JOB_EACH: dict[str, Any] = {"also": a_job_for_each_slot, "preemptions": 1, "always": 2}
"""Two transactions of a dozen statements each have too many schedules to try all."""


def fired_before(arena: Arena) -> None:
    """A schedule whose slot at 0.5 has been fired."""
    arena.scheduled()
    arena.store.run(arena.firing(0.5))


@race(
    "one slot seen by two schedulers",
    "A=FIRED B=PASSED",
    "A=PASSED B=FIRED",
    also=a_job_for_each_slot,
    preemptions=1,
    always=2,
)
def fire_and_fire(arena: Arena) -> list[Actor]:
    """A slot is fired twice."""
    arena.scheduled()
    return [fires(arena, "A", 1.0), fires(arena, "B", 1.0)]


@race(
    "two schedulers that look at different times", "A=FIRED B=PASSED", "A=PASSED B=FIRED", **ONE_JOB_EACH
)  # fmt: skip
def early_and_late(arena: Arena) -> list[Actor]:
    """A slot that was fired is counted as missed, or an older one is fired after a newer."""
    arena.scheduled()
    return [fires(arena, "A", 1.0, overlap="allow"), fires(arena, "B", 2.0, overlap="allow")]


@race("a slot and a pause", "A=FIRED B=PAUSED", "A=PASSED B=PAUSED", **ONE_JOB_EACH)
def fire_and_pause(arena: Arena) -> list[Actor]:
    """A paused schedule fires."""
    arena.scheduled()
    return [fires(arena, "A", 1.0), verb("B", lambda: schedule.pause(BUCKET, "nightly", None), "PAUSED")]


@race("a slot of a pause and its end", "A=PASSED B=RESUMED", **ONE_JOB_EACH)
def fire_and_resume(arena: Arena) -> list[Actor]:
    """A slot that passed while the schedule was paused is fired when it goes on."""
    arena.scheduled()
    arena.store.run(lambda: schedule.pause(BUCKET, "nightly", None))
    return [fires(arena, "A", 1.0), verb("B", lambda: schedule.resume(BUCKET, "nightly"), "RESUMED")]


@race(
    "a slot and the end of the job before",
    "A=SKIPPED W=LAST",
    "A=FIRED W=LAST",
    also=a_job_for_each_slot,
    preemptions=1,
    always=2,
)
def fire_and_finish(arena: Arena) -> list[Actor]:
    """A slot is neither fired nor skipped, or noted as both."""
    fired_before(arena)
    (claim,) = arena.claims(1)
    return [fires(arena, "A", 1.0, seen=0.5), arena.succeeds("W", claim)]


@race("a slot that waits and the end of the job before", "A=WAITING W=LAST", "A=FIRED W=LAST",
      **ONE_JOB_EACH)  # fmt: skip
def wait_and_finish(arena: Arena) -> list[Actor]:
    """A slot that waits is decided all the same."""
    fired_before(arena)
    (claim,) = arena.claims(1)
    return [fires(arena, "A", 1.0, seen=0.5, overlap="queue"), arena.succeeds("W", claim)]


@race(
    "a slot and a firing by hand",
    "A=FIRED B=SKIPPED",
    "A=SKIPPED B=FIRED",
    also=a_job_for_each_slot,
    preemptions=1,
    always=2,
)
def fire_and_hand(arena: Arena) -> list[Actor]:
    """Two jobs of a schedule that must not overlap."""
    arena.scheduled()
    asked = arena.store.run(lambda: schedule.ask(BUCKET, "nightly"))
    return [fires(arena, "A", 1.0), fires(arena, "B", asked, by_hand=True)]


@race(
    "one request for a firing, seen by two",
    "A=FIRED B=PASSED",
    "A=PASSED B=FIRED",
    also=a_job_for_each_slot,
    preemptions=1,
    always=2,
)
def hand_and_hand(arena: Arena) -> list[Actor]:
    """What an operator asked for is done twice."""
    arena.scheduled()
    asked = arena.store.run(lambda: schedule.ask(BUCKET, "nightly"))
    return [fires(arena, "A", asked, by_hand=True), fires(arena, "B", asked, by_hand=True)]


@race(
    "a slot and the end of its schedule", "A=FIRED B=FORGOTTEN", "A=PASSED B=FORGOTTEN", preemptions=1, always=2
)  # fmt: skip
def fire_and_forget(arena: Arena) -> list[Actor]:
    """A note about a slot stands without its schedule."""
    arena.scheduled()
    return [fires(arena, "A", 1.0), verb("B", lambda: schedule.forget(BUCKET, "nightly"), "FORGOTTEN")]


@race(
    "a slot and another timing",
    "A=FIRED B=CHANGED",
    "A=PASSED B=CHANGED",
    also=a_job_for_each_slot,
    preemptions=1,
    always=2,
)
def fire_and_declare(arena: Arena) -> list[Actor]:
    """A slot of the old timing is fired after the schedule has begun anew."""
    arena.scheduled()
    return [fires(arena, "A", 1.0), verb("B", lambda: schedule.declare(BUCKET, "nightly", "[]", "{}"), "CHANGED")]


@race("two workers that bring one schedule along", "A=CHANGED B=NOTHING", "A=NOTHING B=CHANGED")
def declare_and_declare(arena: Arena) -> list[Actor]:
    """The second one puts the mark of the first one back, or fails."""
    declare = lambda: schedule.declare(BUCKET, "nightly", "{}", "{}")  # noqa: E731
    return [verb("A", declare, "CHANGED"), verb("B", declare, "CHANGED")]


@race(
    "two who fill in one slot",
    "A=FILLED B=NOTHING",
    "A=NOTHING B=FILLED",
    also=a_job_for_each_slot,
    preemptions=1,
    always=2,
)
def fill_and_fill(arena: Arena) -> list[Actor]:
    """A slot of the past gets two jobs."""
    arena.scheduled()
    arena.store.run(lambda: schedule.pass_over(BUCKET, schedule.Slot("nightly", 9.0, 0.0, 9)))
    fill = lambda: schedule.fill(BUCKET, schedule.Slot("nightly", 9.0), arena.of_slot(9.0))  # noqa: E731
    return [verb("A", fill, "FILLED"), verb("B", fill, "FILLED")]


# More than two.


def pauser(name: str) -> Actor:
    return verb(name, lambda: schedule.pause(BUCKET, "nightly", None), "PAUSED")


@three(
    "one slot seen by two schedulers, and a pause",
    "A=FIRED B=PASSED P=PAUSED",
    "A=PASSED B=FIRED P=PAUSED",
    "A=PASSED B=PASSED P=PAUSED",
    also=a_job_for_each_slot,
)
def fire_fire_and_pause(arena: Arena) -> list[Actor]:
    """The scheduler that waited fires after the pause, or both do before it."""
    arena.scheduled()
    return [fires(arena, "A", 1.0), fires(arena, "B", 1.0), pauser("P")]


@three(
    "a slot, a firing by hand and a pause",
    "A=FIRED H=FIRED P=PAUSED",
    "A=PASSED H=FIRED P=PAUSED",
    also=a_job_for_each_slot,
)
def fire_hand_and_pause(arena: Arena) -> list[Actor]:
    """What an operator asked for is lost by the pause, or the slot is fired after it."""
    arena.scheduled()
    asked = arena.store.run(lambda: schedule.ask(BUCKET, "nightly"))
    options = {"overlap": "allow"}
    return [fires(arena, "A", 1.0, **options), fires(arena, "H", asked, by_hand=True, **options), pauser("P")]


@three(
    "a slot and a firing by hand, the slot seen by two schedulers",
    "A=FIRED B=PASSED H=SKIPPED",
    "A=PASSED B=FIRED H=SKIPPED",
    "A=SKIPPED B=PASSED H=FIRED",
    "A=PASSED B=SKIPPED H=FIRED",
    also=a_job_for_each_slot,
)
def fire_fire_and_hand(arena: Arena) -> list[Actor]:
    """Jobs of a schedule overlap that must not, or the slot is decided twice."""
    arena.scheduled()
    asked = arena.store.run(lambda: schedule.ask(BUCKET, "nightly"))
    return [fires(arena, "A", 1.0), fires(arena, "B", 1.0), fires(arena, "H", asked, by_hand=True)]


def asks_and_fires(arena: Arena, name: str) -> Actor:
    def script() -> Script:
        asked = yield lambda: schedule.ask(BUCKET, "nightly")
        fired = yield arena.firing(asked, overlap="allow", by_hand=True)
        return str(fired.what).upper()

    return Actor(name, script)


@race(
    "two who ask for a firing at one moment of the clock",
    "A=FIRED B=FIRED",
    "A=FIRED B=PASSED",
    "A=PASSED B=FIRED",
    **ONE_JOB_EACH,
)
def ask_and_ask(arena: Arena) -> list[Actor]:
    """The second request has the moment of the first, and can never be answered."""
    arena.scheduled()
    Clock(arena.store).freeze(1_800_000_000.0)
    return [asks_and_fires(arena, "A"), asks_and_fires(arena, "B")]
