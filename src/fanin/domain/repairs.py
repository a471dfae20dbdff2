"""What a job's rows must say, as its parts stand, and what is said about it where they do not."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from fanin.domain import limits

NATURAL = ("all_ok", "with_failures")
"""Outcomes of a run that ended with its last part."""


class Counter(NamedTuple):
    """A stripe: as it is stored, or as its parts say."""

    created: int
    remaining: int
    succeeded: int
    failed: int
    abandoned: int
    spawned: int
    sealed: bool
    closed: bool


class Repair(msgspec.Struct, frozen=True):
    """One thing that was wrong in a job, and what was done about it.

    ``what`` is ``stripe`` (a counter), ``part``, ``job`` (what its row says about its counters), ``ended`` (it had no
    part left to wait for), or ``damaged``: nothing can be done about it without a person. ``which`` is the number of
    the stripe or part, else 0. ``before`` and ``after`` hold the columns that differ; of damage, what was found.
    """

    job: str
    what: str
    which: int
    before: dict[str, Any]
    after: dict[str, Any]

    def __str__(self) -> str:
        return told(self.what, self.which, self.before, self.after)


class Repaired(msgspec.Struct):
    """What a pass did, or would do.

    ``looked`` jobs were looked at, ``repaired`` ones had something wrong that could be put right, in ``parts`` of their
    parts among others, ``ended`` ones ended by it, and ``damaged`` ones need a person. ``repairs`` says what was done,
    and what is damaged: the first 1 000 lines; each is kept with its job.
    """

    looked: int = 0
    repaired: int = 0
    parts: int = 0
    ended: int = 0
    damaged: int = 0
    repairs: list[Repair] = msgspec.field(default_factory=list)


class Seen(msgspec.Struct, frozen=True):
    """A job in one snapshot. ``overdue``: seconds since its deadline, None without one. ``keys``: those of a job that
    grows. ``announced``: the event of the end of its present run stands. ``wrong`` parts wait for what will not come,
    ``astray`` ones are held back for ever.
    """

    status: str
    outcome: str | None
    run: int
    planned: int | None
    sealed: int | None
    open_stripes: int
    stripes: int
    walk_from: int | None
    ended_counts: tuple[int | None, int | None, int | None]
    paused: bool
    overdue: float | None
    keys: int | None
    announced: bool
    stored: dict[int, Counter]
    counted: dict[int, Counter]
    wrong: int
    astray: int

    @property
    def live(self) -> bool:
        return self.status in ("open", "running")

    @property
    def job(self) -> dict[str, int | None]:
        """The columns of the job's row that follow from its parts."""
        names = ("succeeded_parts", "failed_parts", "abandoned_parts")
        counts = dict(zip(names, self.ended_counts, strict=True))
        return {"open_stripes": self.open_stripes, "walk_from": self.walk_from, **counts}


class Plan(msgspec.Struct, frozen=True):
    """What is to be done about a job. ``job`` holds the columns of its row that differ, as they should be."""

    damage: str | None = None
    stripes: dict[int, Counter] = {}
    job: dict[str, Any] = {}
    ends: bool = False
    wrong: int = 0

    def __bool__(self) -> bool:
        return self != Plan()


def plan(seen: Seen) -> Plan:
    """Compare what is stored with what the parts say. A plan without anything is false: nothing is wrong.

    What was planned cannot be known from the parts. So a job that goes on and has more or fewer of them than it was
    sealed with is damaged, and its counters are left alone: with others it could end without a part that was promised.
    """
    if seen.outcome == "refused":
        return Plan()
    if (found := _damage(seen)) is not None:
        return Plan(found, wrong=seen.wrong)
    nothing = Counter(0, 0, 0, 0, 0, 0, False, False)
    counted = {stripe: seen.counted.get(stripe, nothing) for stripe in seen.stored}
    remaining = sum(one.remaining for one in counted.values())
    closed = not seen.live and (remaining > 0 or any(one.closed for one in seen.stored.values()))
    right = {n: one._replace(sealed=seen.sealed is not None, closed=closed) for n, one in counted.items()}
    ends = seen.status == "running" and remaining == 0
    job: dict[str, Any] = {}
    if seen.status == "running" and not ends:
        open_stripes = sum(one.remaining > 0 for one in right.values())
        if open_stripes != seen.open_stripes:
            job["open_stripes"] = open_stripes
    if not seen.live:
        names = ("succeeded_parts", "failed_parts", "abandoned_parts")
        ones = right.values()
        sums = (
            sum(o.succeeded for o in ones),
            sum(o.failed for o in ones),
            sum(o.abandoned + o.remaining for o in ones),
        )
        differ = zip(names, seen.ended_counts, sums, strict=True)
        job |= {name: should for name, stands, should in differ if stands != should}
    if seen.astray:
        job["walk_from"] = 0
    differing = {n: one for n, one in right.items() if one != seen.stored[n]}
    return Plan(None, differing, job, ends, seen.wrong)


def _damage(seen: Seen) -> str | None:
    parts = sum(one.created for one in seen.counted.values())
    planned = parts - sum(one.spawned for one in seen.counted.values())
    if len(seen.stored) != seen.stripes or seen.counted.keys() - seen.stored.keys():
        return f"{len(seen.stored)} of its {seen.stripes} counters are there"
    if not seen.live:
        if seen.outcome in NATURAL and any(one.remaining for one in seen.counted.values()):
            return "it ended with its last part, and parts of it live"
        return None
    if seen.announced:
        return f"it goes on, and the event of the end of run {seen.run} stands"
    if seen.keys is not None and seen.keys != parts:
        return f"{seen.keys} parts were added to it, {parts} are there"
    if seen.status == "open":
        if seen.overdue is None or seen.overdue > limits.OVERDUE_SECONDS:
            return "it is open, its deadline has passed, and nobody has given it up"
        return None
    promised = seen.sealed if seen.planned is None else seen.planned
    if promised is None or not promised == seen.sealed == planned:
        return f"{promised} parts were planned, {planned} are there"
    return None


def told(what: str, which: int, before: dict[str, Any], after: dict[str, Any]) -> str:
    """A repair in words."""
    if what == "damaged":
        return f"damaged: {before['found']}" + ("; paused" if after.get("paused") else "")
    if what == "ended":
        return f"ended by repair: {after['status']}, {after['outcome']}" if after else "to be ended by repair"
    name = {"stripe": f"counter {which} repaired", "part": f"part {which} repaired", "job": "job repaired"}[what]
    return f"{name}: " + ", ".join(f"{column} {_value(before[column])} → {_value(after[column])}" for column in after)


def _value(value: Any) -> str:
    return {True: "true", False: "false", None: "none"}[value] if value is None or type(value) is bool else f"{value}"
