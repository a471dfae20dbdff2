"""Tasks for child processes, which import this module afresh. The tests add them to an application of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import fanin

app = fanin.App("sqlite:///tasks-only.db")


@app.task(mode="process", lease="60s")
def double(x: int) -> int:
    return 2 * x


@app.task(mode="process", lease="60s")
def doubles(count: int) -> fanin.FanOut:
    return fanin.current().fan_out(double, ["wrong"] if count < 0 else range(count))


@app.task(mode="process", attempts=2, backoff=0)
def dies_on_three(x: int) -> int:
    if x == 3:
        os.abort()
    return x


@app.task(mode="process", lease="60s")
def waits_for_ever(started: Path) -> None:
    """Leaves its process id, then never returns."""
    temporary = started.with_suffix(f".{os.getpid()}")
    temporary.write_text(str(os.getpid()))
    temporary.rename(started)
    while True:
        time.sleep(1)


@app.task(mode="process")
def process_id() -> int:
    return os.getpid()


@app.task(mode="process", timeout=1.0, attempts=1)
def overruns() -> None:
    while True:
        time.sleep(1)


@app.task(mode="process")
def checkpoints(x: int) -> int:
    part = fanin.current()
    if part.last_checkpoint is None:
        part.checkpoint({"reached": x})
        os.abort()
    return int(part.last_checkpoint["reached"]) + part.attempt


@app.task(mode="process", attempts=1)
def raises_what_cannot_be_pickled(x: int) -> int:
    class Local(Exception):
        def __init__(self, needed: object, more: object) -> None:
            super().__init__(lambda: needed)

    raise Local(1, 2)


@app.task(mode="process")
def grow(x: int) -> int:
    if x > 0:
        fanin.current().spawn([x - 1], now=x % 2 == 0)
    return x
