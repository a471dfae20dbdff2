"""Where handlers run: in threads, on one event loop, or in processes that can be killed.

All three take a `Running` and call ``done`` once, from some thread, unless the work was told to stop because its lease
is lost and it obeyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from fanin.domain.errors import BadOption
from fanin.domain.model import Claim, Report
from fanin.runtime import outcome, part
from fanin.runtime.joined import join
from fanin.runtime.outcome import Outcome
from fanin.runtime.part import Part
from fanin.runtime.task import Task
from fanin.stores.base import Store

log = logging.getLogger("fanin")

CLOSE_SECONDS = 2.0
ORPHAN_SECONDS = 0.5
BLOCKED_SECONDS = 1.0
"""An event loop that has not turned for so long is reported, with the handler that keeps it."""


class Running:
    """A claimed part in the hands of this worker, from the claim to its settlement."""

    __slots__ = ("claim", "claimed", "deadline", "handle", "part", "renewed", "said", "sent", "started", "task")

    def __init__(self, claim: Claim, task: Task[..., Any], store: Store, now: float) -> None:
        self.claim = claim
        self.task = task
        self.part = Part(claim, task.lease, store, task)
        self.claimed = now
        self.renewed = now
        """Monotonic time before the claim or the last renewal was sent: the lease cannot end sooner than that."""
        self.started: float | None = None
        self.deadline: float | None = None
        self.said = False
        """Whether its outcome is known; whatever comes later is not heard."""
        self.sent = False
        """Whether its report is in a transaction now, which holds the row."""
        self.handle: Any = None

    def start(self) -> None:
        self.started = time.monotonic()
        if self.task.timeout is not None and self.task.mode == "thread":
            self.deadline = self.started + self.task.timeout

    def report(self, found: Outcome) -> Report:
        return Report(self.claim, found.verb, found.result, found.error, found.delay, found.effects, found.spawns)


Done = Callable[[Running, Outcome], None]


def timed_out(running: Running) -> Outcome:
    task = running.task
    error = outcome.error_json("TimeoutError", f"the attempt took longer than {task.timeout:g} s")
    if isinstance(TimeoutError(), task.give_up_on) or not isinstance(TimeoutError(), task.retry_on):
        return Outcome("fail", error=error)
    return Outcome("retry", error=error, delay=task.backoff.delay(running.claim.attempt))


class Threads:
    """A fixed number of threads. A thread cannot be killed: one whose handler overruns its time is given up and
    replaced, and what it returns later is not heard."""

    def __init__(self, size: int, done: Done, store: Store) -> None:
        self._ready: SimpleQueue[Running | None] = SimpleQueue()
        self._done = done
        self._store = store
        self._size = size
        self._lock = threading.Lock()
        self._busy: set[Running] = set()
        """Whose thread is still ours. The thread and the one who gives it up take the entry out: the first counts."""
        self._threads = 0

    def submit(self, running: Running) -> None:
        if self._threads < self._size:
            self._spawn()
        self._ready.put(running)

    def stop_work(self, running: Running, *, replace: bool) -> None:
        """Ask the handler to stop; ``replace`` its thread if it is in one."""
        running.part.tell_lost()
        if replace and self._take(running):
            self._spawn()

    def take_back(self) -> list[Running]:
        """The parts that no thread has begun."""
        found: list[Running] = []
        while True:
            try:
                running = self._ready.get_nowait()
            except Empty:
                return found
            if running is not None:
                found.append(running)

    def close(self) -> None:
        for _ in range(self._threads):
            self._ready.put(None)

    def _take(self, running: Running) -> bool:
        with self._lock:
            ours = running in self._busy
            self._busy.discard(running)
            return ours

    def _spawn(self) -> None:
        with self._lock:
            self._threads += 1
            name = f"fanin-handler-{self._threads}"
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    def _loop(self) -> None:
        while (running := self._ready.get()) is not None:
            if running.part.cancelled:
                self._done(running, Outcome("lost"))
                continue
            with self._lock:
                self._busy.add(running)
            running.start()
            found = run_handler(running.task, running.claim, running.part, self._store)
            if not self._take(running):
                with self._lock:
                    self._threads -= 1
                return
            self._done(running, found)


def run_handler(task: Task[..., Any], claim: Claim, own: Part, store: Store) -> Outcome:
    """Decode, run, encode. Whatever the handler raises becomes an outcome; nothing escapes."""
    token = part.enter(own)
    try:
        args, kwargs = task.signature.decode(claim.payload, lambda facts, hint: join(store, facts, hint))
        found = outcome.succeeded(task, task.function(*args, **kwargs), own)
        return outcome.complete(found, own) if outcome.unfinished(found) else found
    except BaseException as problem:  # a handler may raise SystemExit, KeyboardInterrupt or worse; all are its failure
        return outcome.failed(task, problem, claim.attempt)
    finally:
        part.leave(token)


class Loop:
    """One event loop in a thread of its own, for ``async def`` handlers; a lost lease or a timeout cancels the task."""

    def __init__(self, size: int, done: Done, store: Store) -> None:
        self._done = done
        self._store = store
        self._lock = threading.Lock()
        self._waiting: set[Running] = set()
        self._places = asyncio.Semaphore(size)
        self._closing = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[asyncio.Task[None], Running] = {}
        self._threads = [
            threading.Thread(target=self._work, name="fanin-loop", daemon=True),
            threading.Thread(target=self._watch, name="fanin-loop-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, running: Running) -> None:
        with self._lock:
            self._waiting.add(running)
        self._loop.call_soon_threadsafe(self._create, running)

    def _create(self, running: Running) -> None:
        running.handle = self._loop.create_task(self._run(running))
        self._tasks[running.handle] = running
        running.handle.add_done_callback(lambda task: self._ended(running, task))

    def _ended(self, running: Running, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        # One that was cancelled before its first step, or while it waited for a place, has not spoken itself.
        if task.cancelled():
            with self._lock:
                self._waiting.discard(running)
            self._done(running, Outcome("lost"))

    async def _run(self, running: Running) -> None:
        async with self._places:
            with self._lock:
                here = running in self._waiting
                self._waiting.discard(running)
            if not here:
                return  # taken back
            found = Outcome("lost")
            if not running.part.cancelled:  # a blocked loop hears of it here before it comes to the cancellation
                running.start()
                found = await self._handle(running)
        self._done(running, found)

    async def _handle(self, running: Running) -> Outcome:
        task, claim = running.task, running.claim
        token = part.enter(running.part)
        scope: asyncio.Timeout | None = None
        try:
            args, kwargs = task.signature.decode(claim.payload, lambda facts, hint: join(self._store, facts, hint))
            async with asyncio.timeout(task.timeout) as scope:
                value = await task.function(*args, **kwargs)
            found = outcome.succeeded(task, value, running.part)
            if outcome.unfinished(found):
                found = await asyncio.to_thread(outcome.complete, found, running.part)
            return found
        except asyncio.CancelledError as problem:
            if running.part.cancelled:
                return Outcome("lost")
            return outcome.failed(task, problem, claim.attempt)
        except TimeoutError as problem:
            expired = scope is not None and scope.expired()
            return timed_out(running) if expired else outcome.failed(task, problem, claim.attempt)
        except BaseException as problem:
            return outcome.failed(task, problem, claim.attempt)
        finally:
            part.leave(token)

    def stop_work(self, running: Running, *, replace: bool) -> None:
        running.part.tell_lost()
        self._loop.call_soon_threadsafe(self._cancel, running)

    @staticmethod
    def _cancel(running: Running) -> None:
        if running.handle is not None:
            running.handle.cancel()

    def take_back(self) -> list[Running]:
        """The parts that wait for a place."""
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
        return taken

    def close(self) -> None:
        """Cancel what is left. A handler that blocks the loop cannot be ended; its thread is left behind."""
        self._closing.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _watch(self) -> None:
        """Report a handler that blocks the loop: all other async handlers wait for it, and their time-outs too."""
        while not self._closing.wait(BLOCKED_SECONDS / 2):
            if not self._tasks:
                continue
            turned, asked, said = threading.Event(), time.monotonic(), False
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(turned.set)
            while not turned.wait(BLOCKED_SECONDS / 10) and not self._closing.is_set():
                if not said and time.monotonic() - asked >= BLOCKED_SECONDS:
                    said = True
                    self._report_blocked()

    def _report_blocked(self) -> None:
        task = asyncio.current_task(self._loop)
        running = self._tasks.get(task) if task is not None else None
        if running is not None:
            who = f"job {running.claim.job_id} part {running.claim.idx}: the handler of task {running.task.name}"
        else:
            who = f"a task that a handler has started ({task.get_coro() if task is not None else 'unknown'})"
        log.warning(
            "%s has kept the event loop from turning for more than %g s; all async handlers of this worker wait. "
            "Await what blocks, for example with asyncio.to_thread", who, BLOCKED_SECONDS,
        )  # fmt: skip

    def _work(self) -> None:
        while not self._closing.is_set():
            try:
                self._loop.run_forever()
            except BaseException:  # SystemExit in a task that a handler has started ends run_forever
                log.exception("a task that a handler has started tried to end the event loop")
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


def require_pebble() -> None:
    """Raises `BadOption` where it is missing: before a part is claimed, not after."""
    try:
        importlib.import_module("pebble")
    except ImportError as problem:
        raise BadOption(
            f"mode='process' needs the package pebble ({problem}): pip install 'fanin[process]'"
        ) from problem


class Processes:
    """Child processes, each started afresh from the module that defines the task. A lost lease or a timeout kills."""

    def __init__(self, size: int, done: Done, store: Store) -> None:
        require_pebble()
        import multiprocessing

        from pebble import ProcessPool

        self._done = done
        self._store = store
        self._pool = ProcessPool(
            max_workers=size,
            context=multiprocessing.get_context("spawn"),
            initializer=begin_child,
            initargs=[os.getpid()],
        )

    def submit(self, running: Running) -> None:
        task, claim = running.task, running.claim
        running.start()  # the pool starts as many as it has processes; the worker claims no more than that
        where = (task.function.__module__, task.function.__qualname__)
        arguments = [where, task.name, self._store.url, claim, task.lease]
        try:
            running.handle = self._pool.schedule(run_in_child, args=arguments, timeout=task.timeout)
        except RuntimeError as problem:  # the pool has given up: its processes end before they take work
            raise BadOption(
                f"mode='process': no process for handlers can be started ({problem}); what it said stands above. "
                "Each one imports the module that defines the task, and a script its main module"
            ) from problem
        running.handle.add_done_callback(lambda future: self._finished(running, future))

    def _finished(self, running: Running, future: Any) -> None:
        from concurrent.futures import CancelledError

        from pebble import ProcessExpired

        try:
            found: Outcome = future.result()
        except CancelledError:
            found = Outcome("lost")
        except TimeoutError:
            found = timed_out(running)
        except ProcessExpired as problem:
            error = outcome.error_json("WorkerLost", f"the handler's process died: {problem}")
            found = Outcome("retry", error=error, delay=running.task.backoff.delay(running.claim.attempt))
        except BaseException as problem:  # what could not cross from the child
            found = outcome.failed(running.task, problem, running.claim.attempt)
        self._done(running, found)

    def stop_work(self, running: Running, *, replace: bool) -> None:
        running.part.tell_lost()
        if running.handle is not None:
            running.handle.cancel()

    def take_back(self) -> list[Running]:
        return []

    def close(self) -> None:
        self._pool.stop()  # type: ignore[no-untyped-call]
        with contextlib.suppress(TimeoutError):
            self._pool.join(CLOSE_SECONDS)


def begin_child(parent: int) -> None:
    """Ctrl-C goes to all processes of a terminal: the worker drains then, and its handlers are not to fail of it.

    A child whose worker was killed ends too: nobody would hear its result, and the next attempt would run beside it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=end_with_parent, name="fanin-orphan", daemon=True).start()


def run_in_child(where: tuple[str, str], name: str, url: str, claim: Claim, lease: float) -> Outcome:
    """In the child: find the task by its module, and run it."""
    from fanin.stores import open_store

    module, qualname = where
    found: Any = sys.modules.get(module) or importlib.import_module(module)
    for step in qualname.split("."):
        found = getattr(found, step)
    if not isinstance(found, Task):
        raise BadOption(
            f"{module}.{qualname} is not the task {name} in a fresh process: define it at the module's top level"
        )
    store = _child_stores.setdefault(url, open_store(url))
    return run_handler(found, claim, Part(claim, lease, store, found), store)


_child_stores: dict[str, Store] = {}

KINDS: dict[str, Callable[[int, Done, Store], Threads | Loop | Processes]] = {
    "thread": Threads,
    "async": Loop,
    "process": Processes,
}
