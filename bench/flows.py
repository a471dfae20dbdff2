"""Flows of many steps, as a chain and in layers: how long they take to declare, start and run, and in what memory.

Each is declared, started and run by a process of its own, with one worker of four threads in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from bench.databases import Database
from bench.end_to_end import Void, check
from bench.processes import Program, peak_megabytes
from bench.summary import Row, median
from bench.tasks import say
from fanin.app import App
from fanin.flow import Flow, Step
from fanin.runtime.task import Task

SIZES = (10, 100, 1_000)
SHAPES = ("chain", "layers")
WIDTH = 10
BEFORE = 3
"""A layer has so many steps, each after so many of the layer before."""


def one(n: int) -> int:
    """What each step does."""
    return n


def declare(flow: Flow, task: Task[[int], int], shape: str, steps: int) -> None:
    """The steps of a flow, all of one call. Raises ValueError for another shape than those of `SHAPES`."""
    if shape == "chain":
        after: list[Step] = []
        for n in range(steps):
            after = [flow.step(task, n, name=f"s{n}", after=after)]
        return
    if shape != "layers":
        raise ValueError(f"{shape!r}: there are {', '.join(SHAPES)}")
    layer: list[Step] = []
    for first in range(0, steps, WIDTH):
        last, layer = layer, []
        for n in range(first, min(first + WIDTH, steps)):
            before = [last[(n + k) % len(last)] for k in range(min(BEFORE, len(last)))] if last else []
            layer.append(flow.step(task, n, name=f"s{n}", after=before))


def run(url: str, shape: str, steps: int) -> None:
    """In a process of its own: says the seconds of each phase, and the peak memory in megabytes."""
    with App(url) as app:
        task = app.task(one)
        app.jobs()  # connected
        begun = time.perf_counter()
        flow = app.flow("bench")
        declare(flow, task, shape, steps)
        declared = time.perf_counter()
        started = flow.start()
        written = time.perf_counter()
        app.run_worker(until_idle=True, concurrency=4)
        done = time.perf_counter()
        say("flow", {"status": started.status, "declare": declared - begun, "start": written - declared,
                     "run": done - written, "peak": peak_megabytes(os.getpid())})  # fmt: skip


def rows(database: Database, sizes: tuple[int, ...], repeat: int) -> Iterator[Row]:
    """A row for each shape and size: medians of the seconds, and the highest peak. Raises `Void` if one has not
    completed, or has left something broken."""
    for shape in SHAPES:
        for steps in sizes:
            runs = [_run(database, shape, steps) for _ in range(repeat)]
            peaks = [one["peak"] for one in runs if one["peak"] is not None]
            figures = {
                f"{phase}_seconds": median([one[phase] for one in runs]) for phase in ("declare", "start", "run")
            }
            each = figures["run_seconds"]
            yield {
                "kind": "flow", "database": database.name, "shape": shape, "steps": steps, **figures,
                "milliseconds_per_step": None if each is None else 1_000 * each / steps,
                "peak_megabytes": max(peaks, default=None),
            }  # fmt: skip


def _run(database: Database, shape: str, steps: int) -> Row:
    with database.fresh() as url:
        program = Program("flow", url, shape, steps)
        found: Row = program.said("flow")
        program.stop()
        if found["status"] != "completed":
            raise Void(f"a {shape} of {steps} steps is {found['status']}")
        check(url)
    return found
