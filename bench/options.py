"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.results import FILE
from bench.settings import MODES
from fanin.domain.limits import CLAIM_PARTS

DESCRIPTION = """\
How fast fanin is, end to end and beside the raw limit of the database. Without options: a job of 10 000 parts that do
nothing, one and two workers, both databases; less than two minutes."""
EPILOG = """\
PostgreSQL is the server at FANIN_BENCH_URL, else a private one, started and removed by the benchmark. A run in which
anything was lost, done twice or out of order is void and stops the benchmark with the evidence."""


def _form(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=32, width=120)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", usage="%(prog)s [options]", description=DESCRIPTION, epilog=EPILOG,
        allow_abbrev=False, formatter_class=_form,
    )  # fmt: skip
    job = parser.add_argument_group("the job")
    add: Callable[..., Any] = job.add_argument
    add(
        "--database",
        choices=("sqlite", "postgres", "both"),
        default="both",
        metavar="WHICH",
        help="sqlite, postgres or both (both)",
    )
    add("--parts", "-n", type=int, default=10_000, metavar="N", help="parts of the job (%(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="so many jobs of that size (%(default)s)")
    add("--workers", "-w", type=int, nargs="+", default=[1, 2], metavar="N", help="worker processes, a row each (1 2)")
    add("--concurrency", "-k", type=int, default=4, metavar="N", help="handlers at once in a worker (%(default)s)")
    add("--batch", type=int, default=CLAIM_PARTS, metavar="N", help="most parts in one commit (%(default)s)")
    add("--sleep", type=float, default=0.0, metavar="SECONDS", help="each handler sleeps so long (0)")
    add("--cpu", type=float, default=0.0, metavar="SECONDS", help="each handler computes so long (0)")
    add(
        "--mode",
        choices=MODES,
        default="sync",
        metavar="MODE",
        help="how handlers run: sync (threads), async (an event loop) or process (sync)",
    )
    add("--repeat", type=int, metavar="N", help="runs of each row; medians are shown (3, of --full 5)")
    add("--json", action="store_true", help="print the rows as JSON, with every single run")
    probes = parser.add_argument_group("other questions, instead of the speed")
    which = probes.add_mutually_exclusive_group()
    ask: Callable[..., Any] = which.add_argument
    ask("--idle", action="store_true", help="what a worker without work costs")
    ask("--pickup", action="store_true", help="how soon an idle worker starts a new part")
    ask("--join", action="store_true", help="how soon the successor starts after the last commit")
    ask("--memory", action="store_true", help="peak memory at 1 000 and 100 000 parts")
    ask("--contention", action="store_true", help="1 to 64 connections at one job, 1 to 64 stripes; PostgreSQL")
    ask("--decay", type=int, metavar="PARTS", help="whether the speed falls while so many parts pile up")
    ask("--peers", nargs="*", metavar="NAME", help="the same job on other libraries (all), in .venv-peers/")
    add = probes.add_argument
    add("--seconds", type=float, default=20.0, metavar="S", help="how long --idle looks (%(default)s)")
    add("--times", type=int, default=100, metavar="N", help="how many jobs --pickup and --join submit (%(default)s)")
    full = parser.add_argument_group("the full run, stage by stage, and the report")
    what = full.add_mutually_exclusive_group()
    ask = what.add_argument
    ask("--plan", nargs="*", metavar="STAGE", help="print the stages and how long they take")
    ask("--full", nargs="*", metavar="STAGE", help="measure these stages (all that need not be asked for)")
    ask("--report", action="store_true", help="write docs/benchmarks.md, its plots and the README's figures")
    add = full.add_argument
    add("--results", type=Path, default=FILE, metavar="FILE", help="where the rows are kept (bench/results.jsonl)")
    add("--most", type=int, metavar="N", help="no run has more parts than N: to see whether everything works")
    return parser.parse_args(words)
