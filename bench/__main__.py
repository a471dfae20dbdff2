"""`make bench`: a small table in under two minutes. ARGS='--help' lists what else can be asked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from rich.console import Console

from bench import end_to_end, limit, probes, report
from bench.databases import Database, databases
from bench.end_to_end import Setting

Row = dict[str, Any]


def main() -> None:
    options = _options()
    with databases(options.database) as found:
        if options.idle:
            title, rows = report.IDLE, [probes.idle(database, options.seconds) for database in found]
        elif options.pickup:
            title, rows = report.PICKUP, [probes.pickup(database, options.times) for database in found]
        elif options.memory:
            title, rows = report.MEMORY, [probes.memory(database, n) for database in found for n in (1_000, 100_000)]
        else:
            title, rows = report.SPEED, _speed(found, options)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        report.show(title, rows, Console())


def _speed(found: list[Database], options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for database in found:
        for workers in options.workers:
            setting = Setting(options.parts, workers, options.concurrency, options.sleep)
            runs: list[Row] = []
            limits: list[Row] = []
            for _ in range(options.repeat):  # side by side, so that both see the same neighbours
                runs.append(end_to_end.measure(database, setting))
                if not setting.sleep:  # the raw program has no handlers
                    limits.append(limit.measure(database, setting.parts, workers))
            rows.append(report.row(database.name, setting, runs, limits))
    return rows


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, allow_abbrev=False)
    add: Callable[..., Any] = parser.add_argument
    add("--database", choices=("sqlite", "postgres", "both"), default="both")
    add("--parts", "-n", type=int, default=10_000, help="parts of the job (%(default)s)")
    add("--workers", "-w", type=int, nargs="+", default=[1, 2], help="worker processes, one row each (1 2)")
    add("--concurrency", "-k", type=int, default=4, help="handlers at once in each worker (%(default)s)")
    add("--sleep", type=float, default=0.0, help="seconds that each handler sleeps (0)")
    add("--repeat", type=int, default=3, help="runs of each row; medians are shown (%(default)s)")
    add("--json", action="store_true", help="print the rows as JSON")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--idle", action="store_true", help="what a worker without work costs")
    which.add_argument("--pickup", action="store_true", help="how soon an idle worker starts a new part")
    which.add_argument("--memory", action="store_true", help="peak memory at 1 000 and 100 000 parts")
    add("--seconds", type=float, default=20.0, help="how long --idle looks (%(default)s)")
    add("--times", type=int, default=100, help="how many parts --pickup submits (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
