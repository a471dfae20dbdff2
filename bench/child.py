"""The handlers of ``--mode process``: at a module's top level, where a fresh process finds them."""

from __future__ import annotations

import os
import time
from functools import partial

from bench.settings import Work
from bench.tasks import WARM_SLEEP, say
from fanin import Task

VARIABLE = "FANIN_BENCH_WORK"
WORK = Work.parse(os.environ.get(VARIABLE, Work().spell()))
_said: list[bool] = []


@partial(Task, name="part", mode="process")
def part(n: int) -> int:
    """The unit of work."""
    if not _said:
        _said.append(True)
        say("first", time.time())
    if WORK.sleep:
        time.sleep(WORK.sleep)
    WORK.compute()
    return n


@partial(Task, name="warm", mode="process")
def warm(n: int) -> int:
    """Sleeps a little, so that no worker can take all of the warm-up."""
    time.sleep(WARM_SLEEP)
    return n
