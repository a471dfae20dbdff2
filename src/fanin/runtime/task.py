"""A task: a named handler with its options."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption, UnknownTask, shown
from fanin.domain.policy import Backoff
from fanin.runtime.codec import Signature
from fanin.runtime.effects import EffectHandler, Handlers
from fanin.runtime.schedule import Declared
from fanin.stores.base import Store

P = ParamSpec("P")
R = TypeVar("R")

Filter = type[BaseException] | tuple[type[BaseException], ...]

MODES = ("thread", "async", "process")


class Task(Generic[P, R]):
    """What ``@app.task`` makes of a function. Calling it runs the function itself, here and now.

    attempts: how often a part may be tried, lost workers included. lease: how long a part stays held without a
    heartbeat; heartbeats go out at a third of it. timeout: how long one attempt may run. backoff: the waits between
    attempts. retry_on, give_up_on: an exception class or a tuple of them; the latter wins. mode: ``thread`` (default
    for ``def``), ``async`` (always for ``async def``) or ``process`` (can be killed, and does not hold the worker's
    interpreter). item_key: the key (a text) of an item in a job that grows; two items with one key are one part.
    Default: all of the item.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        attempts: int = 3,
        lease: Duration = 60.0,
        timeout: Duration | None = None,
        mode: str | None = None,
        queue: str = "default",
        priority: int = 0,
        backoff: Backoff | Duration | None = None,
        retry_on: Filter = (BaseException,),
        give_up_on: Filter = (),
        item_key: Callable[[Any], str] | None = None,
    ) -> None:
        if not callable(function):
            raise BadOption(
                f"{shown(function)} is no function: use @app.task, or @app.task(…) with options by their names"
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.name = check_name(_name_of(function) if name is None else name, "task name")
        self.attempts = check_attempts(attempts)
        self.lease = check_lease(seconds(lease, "lease"))
        self.timeout = None if timeout is None else seconds(timeout, "timeout")
        if self.timeout == 0:
            raise BadOption("timeout=0: give a time above zero, or None for no limit")
        is_async = inspect.iscoroutinefunction(function)
        self.mode = ("async" if is_async else "thread") if mode is None else mode
        if self.mode not in MODES or is_async != (self.mode == "async"):
            kind = "async def" if is_async else "def"
            raise BadOption(
                f"mode={shown(mode)} for a {kind} handler: use 'async' for async def, 'thread' or 'process' for def"
            )
        self.queue = check_name(queue, "queue")
        self.priority = check_priority(priority)
        if backoff is None:
            self.backoff = Backoff()
        elif isinstance(backoff, Backoff):
            self.backoff = backoff
        else:
            self.backoff = Backoff(first=seconds(backoff, "backoff"))
        self.retry_on = check_filter(retry_on, "retry_on")
        self.give_up_on = check_filter(give_up_on, "give_up_on")
        if item_key is not None and not callable(item_key):
            raise BadOption(f"item_key={shown(item_key)}: give a function of an item, or None for all of the item")
        self.item_key = item_key
        self.signature = Signature(function, self.name)
        self.effects: Handlers = {}
        """Those of the application."""
        self.max_parts = limits.JOB_WIDTH_PARTS
        """The width that the application allows a job."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.name}>"


def _name_of(function: Callable[..., Any]) -> str:
    if not hasattr(function, "__qualname__"):  # such as an instance that can be called
        raise BadOption(f"{shown(function)} has no name of its own: give its task one, @app.task(name=…)")
    return f"{_module_of(function)}.{function.__qualname__}"


def _module_of(function: Callable[..., object]) -> str:
    """The module's name. A script that is run is named as it would be imported, so that a worker knows its tasks."""
    if function.__module__ != "__main__":
        return function.__module__
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return PurePath(file).stem if file else "__main__"


class Application(Protocol):
    """What workers and jobs need of an application: its database, its tasks and its schedules by name, its bound, and a
    place for threads that still finish something when nobody waits for it any more."""

    @property
    def url(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def tasks(self) -> dict[str, Task[..., Any]]: ...
    @property
    def schedules(self) -> Mapping[str, Declared]: ...
    @property
    def effects(self) -> dict[str, EffectHandler]: ...
    @property
    def leaving(self) -> list[threading.Thread]: ...
    @property
    def max_parts(self) -> int: ...


def check_task(task: Any) -> None:
    """Raise `UnknownTask` for what is no task."""
    if not isinstance(task, Task):
        raise UnknownTask(f"{shown(task)} is not a task: decorate it with @app.task")


def check_name(value: str, what: str) -> str:
    """A name that fits everywhere it goes: columns, notifications, logs. Raises `BadOption`."""
    return _check_text(value, f"{what} {shown(value)}", limits.NAME_CHARS)


def check_key(value: str | None) -> str | None:
    """The key of a job or a flow. Raises `BadOption`."""
    return None if value is None else _check_text(value, f"key={shown(value)}", limits.KEY_CHARS)


def _check_text(value: Any, said: str, most: int) -> str:
    if not isinstance(value, str) or not value or len(value) > most or not value.isprintable():
        raise BadOption(f"{said}: use a text of 1 to {most} printable characters")
    return value


def check_attempts(value: int) -> int:
    if type(value) is not int or not 1 <= value <= limits.ATTEMPTS:
        raise BadOption(f"attempts={shown(value)}: give a whole number from 1 to {limits.ATTEMPTS}")
    return value


def check_filter(value: Filter, what: str) -> tuple[type[BaseException], ...]:
    kinds: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise BadOption(f"{what}={shown(value)}: give an exception class, or a tuple of them")
    return kinds


def check_priority(value: int) -> int:
    if type(value) is not int or abs(value) > limits.PRIORITY_MAX:
        raise BadOption(
            f"priority={shown(value)}: give a whole number from -{limits.PRIORITY_MAX} to {limits.PRIORITY_MAX}"
        )
    return value


def check_lease(value: float) -> float:
    low, high = limits.LEASE_SECONDS_MIN, limits.LEASE_SECONDS_MAX
    if not low <= value <= high:
        raise BadOption(f"lease={value:g}s: give {low:g} s to {high:g} s; heartbeats renew it while a handler runs")
    return value
