"""`make bench`: a small table in under two minutes. ARGS='--help' lists what else can be asked."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from bench import probes, speed, tables
from bench.databases import Database, databases
from bench.options import parse
from bench.settings import Setting, Work
from bench.summary import Row


def main() -> None:
    options = parse()
    with databases(options.database) as found:
        kind, rows = _measure(found, options)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        tables.show(kind, rows, Console())


def _measure(found: list[Database], options: argparse.Namespace) -> tuple[tables.Kind, list[Row]]:
    if options.idle:
        return tables.IDLE, [probes.idle(database, options.seconds) for database in found]
    if options.pickup:
        return tables.PICKUP, [probes.pickup(database, options.times) for database in found]
    if options.join:
        return tables.JOIN, [probes.join(database, options.times) for database in found]
    if options.memory:
        return tables.MEMORY, [probes.memory(database, n) for database in found for n in (1_000, 100_000)]
    work = Work(options.sleep, options.cpu, options.mode)
    settings = [
        Setting(options.parts, workers, options.concurrency, work, options.jobs, options.batch)
        for workers in options.workers
    ]
    return tables.SPEED, list(speed.rows(found, settings, options.repeat))


if __name__ == "__main__":
    main()
