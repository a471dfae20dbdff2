"""The full run: its stages, what each measures, and how long it takes on two quiet cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench import contention, decay, flows, probes, speed, tree
from bench.databases import Database
from bench.peers import rounds
from bench.peers.catalog import PEERS
from bench.settings import MODES, Setting, Work
from bench.summary import Row

WORKERS = (1, 2, 4)


class Extent(NamedTuple):
    """How much of it: runs of each row, and the most parts that a run may have (None: as planned)."""

    repeat: int = 5
    most: int | None = None

    def parts(self, planned: int) -> int:
        return planned if self.most is None else min(planned, self.most)


class Stage(NamedTuple):
    """``minutes``: the time of five runs of each row. ``asked``: whether it is run only when it is named."""

    name: str
    what: str
    minutes: float
    rows: Callable[[list[Database], Extent], Iterator[Row]]
    asked: bool = False


def _speed(found: list[Database], extent: Extent) -> Iterator[Row]:
    return _sized(found, extent, [(100, 2), (1_000, 1), (1_000, 2), *((10_000, w) for w in WORKERS), (100_000, 2)])


def _cross(found: list[Database], extent: Extent) -> Iterator[Row]:
    return _sized(found, extent, [(100, 1), (100, 4), (1_000, 4), (100_000, 1), (100_000, 4)])


def _sized(found: list[Database], extent: Extent, sizes: list[tuple[int, int]]) -> Iterator[Row]:
    settings = dict.fromkeys(Setting(extent.parts(n), workers) for n, workers in sizes)
    return speed.rows(found, settings, extent.repeat)


def _commits(found: list[Database], extent: Extent) -> Iterator[Row]:
    settings = [Setting(extent.parts(500), workers, batch=1) for workers in WORKERS]
    return speed.rows(found, settings, extent.repeat)


def _handlers(found: list[Database], extent: Extent) -> Iterator[Row]:
    works = [(2_000, Work(sleep=0.001)), (200, Work(sleep=0.05)), (200, Work(cpu=0.005))]
    settings = [
        Setting(extent.parts(n), workers=2, concurrency=4, work=Work(work.sleep, work.cpu, mode))
        for n, work in works
        for mode in MODES
    ]
    many = Setting(extent.parts(4_000), workers=2, concurrency=100, work=Work(sleep=0.05, mode="async"))
    short = Setting(extent.parts(200), workers=1, concurrency=32, work=Work(sleep=0.05))
    return speed.rows(found, [*settings, many, short], extent.repeat)


def _jobs(found: list[Database], extent: Extent) -> Iterator[Row]:
    return speed.rows(found, [Setting(extent.parts(100), workers=2, jobs=100)], extent.repeat)


def _probes(found: list[Database], extent: Extent) -> Iterator[Row]:
    times = extent.parts(200)
    for database in found:
        yield probes.idle(database, seconds=extent.parts(20))
        yield probes.pickup(database, times // 2)
        yield probes.join(database, times)


def contended(found: list[Database], extent: Extent) -> Iterator[Row]:
    """The grid of `contention`, on PostgreSQL."""
    for database in found:
        if database.name == "PostgreSQL":  # an SQLite file has one writer at a time, whatever it counts
            for connections, stripes in contention.GRID:
                yield contention.row(database, connections, stripes, extent.parts(1_500), extent.repeat)


def _peers(found: list[Database], extent: Extent) -> Iterator[Row]:
    return rounds.rows(found, list(PEERS), extent.repeat, extent.most)


def _million(found: list[Database], extent: Extent) -> Iterator[Row]:
    settings = [Setting(extent.parts(1_000_000), workers=2), Setting(extent.parts(1_000), workers=2, jobs=1_000)]
    return speed.rows(found, settings, repeat=1)


def _decay(found: list[Database], extent: Extent) -> Iterator[Row]:
    for database in found:
        total = extent.parts(5_000_000)
        yield from decay.rows(database, total, step=min(100_000, max(1, total // 5)))


def _tree(found: list[Database], extent: Extent) -> Iterator[Row]:
    for database in found:
        for leaves in dict.fromkeys(extent.parts(leaves) for leaves in tree.LEAVES):
            yield from tree.rows(database, leaves)


def _flows(found: list[Database], extent: Extent) -> Iterator[Row]:
    for database in found:
        yield from flows.rows(database, tuple(dict.fromkeys(map(extent.parts, flows.SIZES))), extent.repeat)


STAGES = [
    Stage("speed", "parts that do nothing: 100 to 100 000, with 1, 2 and 4 workers", 8, _speed),
    Stage("commits", "one part in each commit", 3, _commits),
    Stage("handlers", "parts that sleep and parts that compute, in threads, on a loop, in processes", 7, _handlers),
    Stage("jobs", "many small jobs", 2, _jobs),
    Stage("probes", "an idle worker, the pick-up and the join", 3, _probes),
    Stage("contention", "1 to 64 connections at one job, 1 to 64 stripes", 3, contended),
    Stage("peers", "the same on other libraries", 9, _peers),
    Stage("cross", "the other sizes with the other numbers of workers", 7, _cross, asked=True),
    Stage("million", "a million parts, in one job and in 1 000 (one run each)", 12, _million, asked=True),
    Stage("flows", "flows of 10, 100 and 1 000 steps, as a chain and in layers", 8, _flows, asked=True),
    Stage("decay", "five million parts, 100 000 to a job, nothing removed (one run)", 30, _decay, asked=True),
    Stage("tree", "nested jobs, five levels deep: 1 000 to 100 000 leaves (one run each)", 10, _tree, asked=True),
]


def chosen(names: list[str]) -> list[Stage]:
    """The stages of these names; without names those that need not be asked for. Raises LookupError."""
    known = {stage.name: stage for stage in STAGES}
    if missing := [name for name in names if name not in known]:
        raise LookupError(f"no stage is called {missing[0]!r}; there are: {', '.join(known)}")
    return [known[name] for name in names] or [stage for stage in STAGES if not stage.asked]


def plan(stages: list[Stage]) -> str:
    """What they measure and how long they take, for people."""
    lines = [f"{stage.name:<12}{stage.minutes:>4.0f} min  {stage.what}" for stage in stages]
    return "\n".join([*lines, f"{'together':<12}{sum(stage.minutes for stage in stages):>4.0f} min"])
