"""What is submitted: the jobs of a torture, each drawn from the seed and its number alone."""

from __future__ import annotations

import random
from typing import Any

import msgspec

LEASE_SECONDS = 0.8
LONG_LEASES = 2.0
"""So many leases a long part works: it lives on heartbeats."""
KINDS = (
    "all", "all", "fail_fast", "tolerate", "percent", "quorum", "quorum", "proceed", "proceed", "abandon", "abandon",
    "stream", "single", "reaped", "cancel", "cancel", "nested", "nested",
)  # fmt: skip

WISHES = {
    1: ("torture.idempotent",), 3: ("torture.probe",), 5: ("torture.once",), 7: ("torture.now",),
    9: ("torture.idempotent", "torture.probe", "torture.once"),
}  # fmt: skip
"""Of twelve parts, those that want effects, and which."""

FLOW_EVERY, FIRST_FLOW = 8, 3
"""One number in so many is a flow, of which every second must be undone."""


class Shape(msgspec.Struct, frozen=True):
    """One job: how wide, by which policy, and what is done to it."""

    number: int
    kind: str
    key: str
    width: int
    then: bool
    options: dict[str, Any]
    """Further options of `App.map`."""
    cancel_at: float | None
    """Cancelled once this share of its parts has ended."""
    cancel_late: bool
    """Cancelled once it has ended, which must change nothing."""
    redrives: int
    """How often it is redriven, at most, while parts of it have failed or were abandoned."""
    again: bool
    """Submitted twice under its key."""
    on_loop: bool
    """Its handler is an ``async def``."""


class Item(msgspec.Struct, frozen=True):
    """One part's argument. It fails (``bad``: for good) while its attempt is at most ``fails``."""

    job: int
    n: int
    milliseconds: int
    fails: int = 0
    bad: bool = False
    nests: int = 0
    """It ends with a job of so many parts of its own."""

    @property
    def leaves(self) -> bool:
        """It leaves a file, and calls outside."""
        return self.n % 6 == 0

    @property
    def wishes(self) -> tuple[str, ...]:
        """The effects that it asks for."""
        return () if self.nests else WISHES.get(self.n % 12, ())

    @property
    def below(self) -> list[Item]:
        """The parts of its own job."""
        return [Item(self.job, self.n, self.milliseconds, int(self.fails > 0 and n == 0)) for n in range(self.nests)]


def shape(seed: int, number: int, postgres: bool) -> Shape:
    """The job of a number."""
    draw = random.Random(f"{seed}/{number}")
    kind = draw.choice(KINDS)
    if number % FLOW_EVERY == FIRST_FLOW:
        kind = "flow"
    width = 1 if kind == "single" else draw.choice((2, 5, 12) if kind == "nested" else (2, 5, 12, 20, 30, 48))
    options: dict[str, Any] = {"attempts": 1 if kind == "reaped" else 12}
    if kind == "tolerate":
        options |= {"tolerate": draw.randrange(1, 4), "fail_fast": draw.random() < 0.5}
    elif kind == "percent":
        options |= {"tolerate": "10%", "sample": 5}
    elif kind == "fail_fast":
        options |= {"fail_fast": True}
    elif kind == "quorum":
        options |= {"quorum": max(1, width * 3 // 4)}
    elif kind in ("proceed", "abandon"):
        options |= {"give_up": kind, "give_up_after": draw.choice((0.3, 0.6, 1.0, 2.0, 4.0))}
    elif kind == "stream":
        options |= {"stream": True}
    if postgres and kind != "single":
        options |= {"stripes": draw.choice((1, 2, 4))}
    if draw.random() < 0.1 and kind != "stream":
        options |= {"delay": 0.2}
    return Shape(
        number=number,
        kind=kind,
        key=f"torture/{seed}/{number}",
        width=width,
        then=draw.random() < 0.7,
        options=options,
        cancel_at=draw.choice((0.0, 0.5, 0.9, 0.97)) if kind == "cancel" else None,
        cancel_late=draw.random() < 0.3,
        redrives=draw.choice((0, 1, 1, 2)),
        again=draw.random() < 0.15,
        on_loop=draw.random() < 0.3 and kind != "nested",
    )


def items(seed: int, wanted: Shape) -> list[Item]:
    """The arguments of a job's parts."""
    draw = random.Random(f"{seed}/{wanted.number}/items")
    found = []
    for n in range(wanted.width):
        pace = draw.random()
        if pace < 0.01:
            spent = int(LEASE_SECONDS * LONG_LEASES * 1000)
        else:
            spent = draw.randrange(150, 500) if pace < 0.07 else draw.randrange(0, 25)
        fails, bad = 0, False
        luck = draw.random()
        if luck < 0.05:
            fails = draw.randrange(1, 3)
        elif luck < 0.08 and wanted.kind != "all":
            fails, bad = draw.randrange(1, 4), True
        nests = draw.randrange(1, 5) if wanted.kind == "nested" and n % 3 == 0 else 0
        found.append(Item(wanted.number, n, spent, fails, bad, nests))
    return found
