"""The application that is measured: its handlers, and the successor that reads all results."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.settings import Work
from fanin import App, FanOut, Joined, Task, current

WARM_SLEEP = 0.01


class Tasks:
    """An application with the handlers of the benchmark, in the mode that ``work`` names."""

    def __init__(self, url: str, work: Work = Work()) -> None:  # noqa: B008 - it is frozen
        self.app = App(url)
        self._first = True
        self.part, self.warm = {"sync": self._sync, "async": self._async, "process": self._process}[work.mode](work)

        @self.app.task(name="joined")
        def joined(parts: Joined[int]) -> dict[str, Any]:
            """The successor: reads all results and looks whether they are in order."""
            started = time.time()
            count, ordered = 0, True
            for n in parts:
                ordered = ordered and n == count
                count += 1
            return {"started": started, "done": time.time(), "count": count, "ordered": ordered}

        @self.app.task(name="now")
        def now() -> float:
            """When it was picked up."""
            return time.time()

        @self.app.task(name="added")
        def added(parts: Joined[int]) -> int:
            """What stands below one part of a tree."""
            return sum(parts)

        @self.app.task(name="tree")
        def tree(widths: list[int]) -> int | FanOut:
            """A leaf, or a job of as many parts as the first width says, for what is left of them."""
            if not widths:
                return 1
            return current().fan_out(tree, [widths[1:]] * widths[0], then=added)

        self.joined: Task[..., Any] = joined
        self.now: Task[..., Any] = now

    def _begun(self) -> None:
        """Says once when the first measured part started here."""
        if self._first:
            self._first = False
            say("first", time.time())

    def _sync(self, work: Work) -> tuple[Task[..., Any], Task[..., Any]]:
        sleep, compute = work.sleep, work.compute if work.cpu else None

        def part(n: int) -> int:
            self._begun()
            if sleep:
                time.sleep(sleep)
            if compute:
                compute()
            return n

        def warm(n: int) -> int:
            time.sleep(WARM_SLEEP)
            return n

        return self._register(part), self._register(warm)

    def _async(self, work: Work) -> tuple[Task[..., Any], Task[..., Any]]:
        sleep, compute = work.sleep, work.compute if work.cpu else None

        async def part(n: int) -> int:
            self._begun()
            if sleep:
                await asyncio.sleep(sleep)
            if compute:
                compute()
            return n

        async def warm(n: int) -> int:
            await asyncio.sleep(WARM_SLEEP)
            return n

        return self._register(part), self._register(warm)

    def _process(self, work: Work) -> tuple[Task[..., Any], Task[..., Any]]:
        from bench import child

        for task in (child.part, child.warm):
            self.app.tasks[task.name] = task
        return child.part, child.warm

    def _register(self, function: Callable[..., Any]) -> Task[..., Any]:
        made: Task[..., Any] = self.app.task(name=function.__name__)(function)
        return made


def say(key: str, value: object) -> None:
    """One line for the program that measures."""
    sys.stdout.write(json.dumps({key: value}) + "\n")
    sys.stdout.flush()
