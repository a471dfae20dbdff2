"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from bench.settings import MODES
from fanin.domain.limits import CLAIM_PARTS

DESCRIPTION = """\
How fast fanin is, end to end and beside the raw limit of the database. Without options: a job of 10 000 parts that do
nothing, one and two workers, both databases; less than two minutes."""
EPILOG = """\
PostgreSQL is the server at FANIN_BENCH_URL, else a private one, started and removed by the benchmark. A run in which
anything was lost, done twice or out of order is void and stops the benchmark with the evidence."""


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    job = parser.add_argument_group("the job")
    add: Callable[..., Any] = job.add_argument
    add("--database", choices=("sqlite", "postgres", "both"), default="both", help="(both)")
    add("--parts", "-n", type=int, default=10_000, metavar="N", help="parts of the job (%(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="so many jobs of that size (%(default)s)")
    add("--workers", "-w", type=int, nargs="+", default=[1, 2], metavar="N", help="worker processes, a row each (1 2)")
    add("--concurrency", "-k", type=int, default=4, metavar="N", help="handlers at once in a worker (%(default)s)")
    add("--batch", type=int, default=CLAIM_PARTS, metavar="N", help="most parts in one commit (%(default)s)")
    add("--sleep", type=float, default=0.0, metavar="SECONDS", help="each handler sleeps so long (0)")
    add("--cpu", type=float, default=0.0, metavar="SECONDS", help="each handler computes so long (0)")
    add("--mode", choices=MODES, default="sync", help="handlers in threads, on an event loop, in processes (sync)")
    add("--repeat", type=int, default=3, metavar="N", help="runs of each row; medians are shown (%(default)s)")
    add("--json", action="store_true", help="print the rows as JSON, with every single run")
    probes = parser.add_argument_group("other questions, instead of the speed")
    which = probes.add_mutually_exclusive_group()
    ask: Callable[..., Any] = which.add_argument
    ask("--idle", action="store_true", help="what a worker without work costs")
    ask("--pickup", action="store_true", help="how soon an idle worker starts a new part")
    ask("--join", action="store_true", help="how soon the successor starts after the last commit")
    ask("--memory", action="store_true", help="peak memory at 1 000 and 100 000 parts")
    add = probes.add_argument
    add("--seconds", type=float, default=20.0, help="how long --idle looks (%(default)s)")
    add("--times", type=int, default=100, metavar="N", help="how many jobs --pickup and --join submit (%(default)s)")
    return parser.parse_args(words)
