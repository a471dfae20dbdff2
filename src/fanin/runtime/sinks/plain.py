"""Sinks without a network: standard output, and a function of the application."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fanin.domain import events
from fanin.domain.errors import BadOption, Permanent, RetryLater
from fanin.domain.events import Event
from fanin.runtime.sinks.base import ACKED, Answer, Sink, SinkClosed, Target, hopeless, refused


class StdoutSink(Sink):
    """One CloudEvent as JSON per line."""

    def __init__(self, target: Target) -> None:
        self._source = target.source

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        lines = [events.structured(event, self._source) + b"\n" for event in batch]
        try:
            sys.stdout.buffer.write(b"".join(lines))
            sys.stdout.buffer.flush()
        except BrokenPipeError as problem:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SinkClosed("nobody reads standard output any more") from problem
        return [ACKED for _ in batch]


class CallableSink(Sink):
    """Calls ``function(event)`` for each event. What it raises is a refusal: `RetryLater` says when to try again,
    `Permanent` that the event never will be taken."""

    batch = 20

    def __init__(self, function: Callable[[Event], object] | Target) -> None:
        self._call = _load(function) if isinstance(function, Target) else function

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        return [self._one(event) for event in batch]

    def _one(self, event: Event) -> Answer:
        try:
            self._call(event)
        except RetryLater as problem:
            return refused(problem, problem.seconds)
        except Permanent as problem:
            return hopeless(problem)
        except Exception as problem:
            return refused(problem)
        return ACKED


def _load(target: Target) -> Callable[[Event], object]:
    module_name, _, name = target.path.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module_name)
        for attribute in name.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadOption(f"{target.whole}: write python:MODULE:FUNCTION ({problem})") from problem
    if not callable(found):
        raise BadOption(f"{target.whole} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]
