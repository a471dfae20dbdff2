"""`make bench`: a small table in under two minutes. ARGS='--help' lists what else can be asked."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator

from rich.console import Console

from bench import decay, machine, probes, results, speed, stages, tables
from bench.databases import Database, databases
from bench.options import parse
from bench.peers import catalog, rounds
from bench.report import files
from bench.settings import Setting, Work
from bench.stages import Extent
from bench.summary import Row

TABLE_REPEAT, FULL_REPEAT = 3, 5


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers and workers are stopped
    try:
        return _answer(options)
    except LookupError as problem:
        print(problem.args[0], file=sys.stderr)
        return 2


def _answer(options: argparse.Namespace) -> int:
    if options.plan is not None:
        print(stages.plan(stages.chosen(options.plan)))
    elif options.report:
        for file in files.write(results.read(options.results)):
            print(file)
    elif options.full is not None:
        _full(options)
    else:
        with databases(options.database) as found:
            kind, rows = _measure(found, options)
        if options.json:
            print(json.dumps(rows, indent=2))
        else:
            tables.show(kind, rows, Console())
    return 0


def _full(options: argparse.Namespace) -> None:
    """Stage after stage; every row is in the file as soon as it is known."""
    wanted = stages.chosen(options.full)
    extent = Extent(options.repeat or FULL_REPEAT, options.most)
    print(stages.plan(wanted), flush=True)
    with databases(options.database) as found:
        for stage in wanted:
            begun = time.monotonic()
            about = machine.describe(found, extent)
            measured = stage.rows(found, extent)
            for row in results.write(options.results, stage.name, _after(about, measured)):
                print(f"{time.monotonic() - begun:7.0f} s  {tables.line(row)}", flush=True)
            print(f"{stage.name}: {(time.monotonic() - begun) / 60:.1f} min", flush=True)


def _after(about: Row, measured: Iterator[Row]) -> Iterator[Row]:
    yield about
    yield from measured


def _measure(found: list[Database], options: argparse.Namespace) -> tuple[tables.Kind, list[Row]]:
    repeat = options.repeat or TABLE_REPEAT
    if options.idle:
        return tables.IDLE, [probes.idle(database, options.seconds) for database in found]
    if options.pickup:
        return tables.PICKUP, [probes.pickup(database, options.times) for database in found]
    if options.join:
        return tables.JOIN, [probes.join(database, options.times) for database in found]
    if options.memory:
        return tables.MEMORY, [probes.memory(database, n) for database in found for n in (1_000, 100_000)]
    if options.contention:
        return tables.CONTENTION, list(stages.contended(found, Extent(repeat, options.most)))
    if options.decay is not None:
        step = max(1, min(100_000, options.decay // 5))
        return tables.DECAY, [row for database in found for row in decay.rows(database, options.decay, step)]
    if options.peers is not None:
        return tables.PEERS, list(rounds.rows(found, catalog.chosen(options.peers), repeat, options.most))
    work = Work(options.sleep, options.cpu, options.mode)
    settings = [
        Setting(options.parts, workers, options.concurrency, work, options.jobs, options.batch)
        for workers in options.workers
    ]
    return tables.SPEED, list(speed.rows(found, settings, repeat))


if __name__ == "__main__":
    sys.exit(main())
