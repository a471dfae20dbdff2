"""What fanin is to reach, beside what was measured, and what is known about each miss."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.report import markdown as md
from bench.summary import Row

NOTES = Path(__file__).parent / "misses.md"
Values = dict[str, float]
"""Where it was measured, and the figure."""


class Target(NamedTuple):
    """``least`` or ``most`` must hold for every value; ``form`` shows one. ``key`` is its heading in `NOTES`."""

    key: str
    what: str
    values: Callable[[list[Row]], Values]
    form: md.Form
    least: float | None = None
    most: float | None = None

    def met(self, value: float) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    @property
    def wanted(self) -> str:
        bound = self.least if self.least is not None else self.most
        return f"{'at least' if self.least is not None else 'at most'} {self.form(bound)}"


def table(rows: list[Row]) -> str:
    """Each target, what was measured, and whether that is enough."""
    lines = []
    counting = full(rows)
    for target in TARGETS:
        values = target.values(counting)
        shown = ", ".join(f"{where} {target.form(value)}" for where, value in values.items())
        verdict = "not measured" if not values else "met" if all(map(target.met, values.values())) else "**missed**"
        lines.append({"what": target.what, "wanted": target.wanted, "measured": shown or None, "verdict": verdict})
    return md.table([(name, name, str) for name in ("what", "wanted", "measured", "verdict")], lines)


def misses(rows: list[Row]) -> str:
    """What is known about each target that was missed: where the time goes, and what was tried."""
    notes = known(NOTES.read_text("utf-8"))
    counting = full(rows)
    missed = [target for target in TARGETS if not all(map(target.met, target.values(counting).values()))]
    if not missed:
        return "No target that was measured was missed."
    return "\n\n".join(f"**{target.what}.** {notes.get(target.key, 'Not looked into yet.')}" for target in missed)


def full(rows: list[Row]) -> list[Row]:
    """The rows of stages that were not a mere trial: one with few parts says nothing about a target."""
    trials = {row["stage"] for row in rows if row["kind"] == "machine" and row["most"] is not None}
    return [row for row in rows if row["stage"] not in trials]


def known(text: str) -> dict[str, str]:
    """The paragraphs under each ``## key``."""
    pieces = re.split(r"^## (\S+)$", text, flags=re.MULTILINE)
    return {key: note.strip() for key, note in zip(pieces[1::2], pieces[2::2], strict=True)}


def _column(key: str, **wanted: object) -> Callable[[list[Row]], Values]:
    """The figure ``key`` of the rows that have these values, by database."""

    def values(rows: list[Row]) -> Values:
        found = (row for row in rows if all(row.get(name) == value for name, value in wanted.items()))
        return {row["database"]: row[key] for row in found if row.get(key) is not None}

    return values


def _peer(key: str, chosen: Callable[[Row], bool]) -> Callable[[list[Row]], Values]:
    """How many times as fast as the fastest of the chosen libraries."""

    def values(rows: list[Row]) -> Values:
        mine = [row for row in rows if row["kind"] == "peer" and not row["own"] and chosen(row) and row.get(key)]
        fastest = max(mine, key=lambda row: float(row["parts_per_second"] or 0), default=None)
        return {} if fastest is None else {f"{fastest['peer']}:": fastest[key]}

    return values


def _growth(rows: list[Row]) -> Values:
    """Peak memory at the largest size that was measured, as a multiple of that at 1 000 parts."""
    found: Values = {}
    mine = [row for row in rows if row["kind"] == "speed" and row.get("jobs") == 1 and row.get("workers") == 2
            and row.get("work") == "nothing" and row["stage"] in ("speed", "million")]  # fmt: skip
    for database in dict.fromkeys(row["database"] for row in mine):
        sizes = {row["parts"]: row for row in mine if row["database"] == database}
        largest = max(sizes)
        if 1_000 not in sizes or largest < 100_000:
            continue
        for who in ("submit", "worker"):
            before, after = (sizes[n].get(f"{who}_peak_megabytes") for n in (1_000, largest))
            if before is not None and after is not None:
                found[f"{database}, {who}, {md.count(largest)} parts:"] = after / before
    return found


def _durable(row: Row) -> bool:
    return bool(row["database"] != "memory")


_EMPTY: dict[str, object] = {"stage": "speed", "kind": "speed", "parts": 10_000, "workers": 2}
_PROBE: dict[str, object] = {"stage": "probes"}
_SHORT: dict[str, object] = {"stage": "handlers", "kind": "speed", "parts": 200, "workers": 1, "concurrency": 32}

TARGETS = [
    Target("peers-postgres", "PostgreSQL, as fast as the fastest durable library",
           _peer("fanin_postgres_times", _durable), md.times, least=10),
    Target("limit-postgres", "PostgreSQL, 10 000 empty parts, two workers: of the raw limit",
           _column("share_of_limit", database="PostgreSQL", **_EMPTY), md.percent, least=0.4),
    Target("limit-commits", "PostgreSQL, one part in each commit, two workers: of the raw limit",
           _column("share_of_limit", database="PostgreSQL", stage="commits", kind="speed", workers=2, parts=500),
           md.percent, least=0.6),
    Target("peers-huey", "SQLite, as fast as Huey on SQLite",
           _peer("fanin_sqlite_times", lambda row: row["peer"] == "Huey (SQLite)"), md.times, least=30),
    Target("peers-pool", "SQLite, as fast as ProcessPoolExecutor.map, which stores nothing",
           _peer("fanin_sqlite_times", lambda row: row["peer"] == "ProcessPoolExecutor"), md.times, least=2),
    Target("efficiency", "200 handlers of 50 ms, 32 at once: of the ideal",
           _column("efficiency", **_SHORT), md.percent, least=0.95),
    Target("pickup", "PostgreSQL, an idle worker starts a new part: 99 of 100 within",
           _column("p99_seconds", kind="pickup", database="PostgreSQL", **_PROBE), md.milliseconds, most=0.02),
    Target("join", "the successor starts after the last commit: 99 of 100 within",
           _column("p99_seconds", kind="join", **_PROBE), md.milliseconds, most=0.02),
    Target("submit", "submit, 10 000 parts: of a COPY (PostgreSQL), or a prepared INSERT (SQLite), into the same table",
           _column("submit_share_of_fill", **_EMPTY), md.percent, least=0.5),
    Target("submit-memory", "a million parts from a generator: memory of the program that submits",
           _column("submit_peak_megabytes", stage="million", kind="speed", jobs=1, parts=1_000_000),
           lambda value: f"{value:.0f} MB", most=150),
    Target("memory", "memory at the largest size, beside that at 1 000 parts", _growth, md.times, most=1.5),
    Target("idle-postgres", "PostgreSQL, what 100 idle workers cost the server: of one core",
           _column("server_share_of_100", kind="idle", database="PostgreSQL", **_PROBE), md.percent, most=0.05),
    Target("idle-sqlite", "SQLite, an idle worker: of one core",
           _column("cpu_share", kind="idle", database="SQLite", **_PROBE), md.percent, most=0.005),
]  # fmt: skip
