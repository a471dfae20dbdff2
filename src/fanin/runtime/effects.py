"""Handlers of effects, and one call of one of them: in a thread of its own, with a hard deadline."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds, wait_of
from fanin.domain.effects import MODES
from fanin.domain.errors import (
    BadOption,
    BadPayload,
    Permanent,
    RetryLater,
    shown,
)
from fanin.domain.policy import Backoff
from fanin.protocol.effect import Call, Said
from fanin.runtime.codec import Codec, annotations_of

log = logging.getLogger("fanin")

CALL_SECONDS = 30.0
MARGIN_SECONDS = 10.0
"""A claim outlives the deadline of its call by this, so that the answer can be stored."""
WAIT_SECONDS = 0.5
BACKOFF = Backoff(first=1.0, factor=2.0, cap=900.0)


class EffectHandler:
    """What ``@app.effect`` makes of a function. Calling it runs the function itself, here and now.

    mode: what the receiver promises (`fanin.domain.effects.MODES`). timeout: how long a call may take. probe: for mode
    ``probe``, a function like the handler that finds out whether an earlier call has taken effect: it returns None if
    it surely has not, else the response. attempts: calls, unless a person asks for more. backoff: the waits between
    them. concurrency: calls at once in one worker.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        mode: str,
        timeout: Duration = CALL_SECONDS,
        probe: Callable[..., Any] | None = None,
        attempts: int | None = None,
        backoff: Backoff | Duration | None = None,
        concurrency: int = 8,
    ) -> None:
        if mode not in MODES:
            raise BadOption(
                f"mode={shown(mode)}: say what the receiver promises: 'idempotent' (it honours the key, a call may be "
                "repeated), 'probe' (it can be asked, by probe=), or 'at_most_once' (never call twice)"
            )
        if (probe is not None) != (mode == "probe"):
            raise BadOption(
                f"mode={shown(mode)}, probe={shown(probe)}: mode 'probe' needs a probe, no other has a use for one"
            )
        if attempts is not None and (type(attempts) is not int or not 1 <= attempts <= limits.ATTEMPTS):
            raise BadOption(f"attempts={shown(attempts)}: give a whole number from 1 to {limits.ATTEMPTS}")
        if mode == "at_most_once" and attempts not in (None, 1):
            raise BadOption(f"attempts={attempts}: mode 'at_most_once' makes one call, and a person decides about more")
        if type(concurrency) is not int or not 1 <= concurrency <= limits.CLAIM_EFFECTS:
            raise BadOption(f"concurrency={shown(concurrency)}: give 1 to {limits.CLAIM_EFFECTS}")
        self.function = function
        self.name = name
        self.mode = mode
        self.timeout = seconds(timeout, "timeout")
        if not 0 < self.timeout <= limits.CALL_SECONDS_MAX:
            raise BadOption(
                f"timeout={shown(timeout)}: give more than 0 and at most {limits.CALL_SECONDS_MAX:g} seconds"
            )
        self.probe = probe
        self.calls = 1 if mode == "at_most_once" else attempts or limits.EFFECT_CALLS
        self.backoff = backoff if isinstance(backoff, Backoff) else BACKOFF
        if backoff is not None and not isinstance(backoff, Backoff):
            self.backoff = Backoff(first=seconds(backoff, "backoff"))
        self.concurrency = concurrency
        self.request = _request_codec(function, name)
        for made in (function, probe):
            if made is not None:
                _check_signature(made, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<effect {self.name}>"


Handlers = Mapping[str, EffectHandler]


class Answer(msgspec.Struct, frozen=True):
    """What came of a call; the fields are those of `fanin.protocol.effect.Said`."""

    verb: str
    response: str | None = None
    error: str | None = None
    doubtful: bool = False
    final: bool = False
    delay: float = 0.0

    def said(self, call: Call) -> Said:
        return Said(call, self.verb, self.response, self.error, self.doubtful, self.final, self.delay)


def too_late(handler: EffectHandler, call: Call) -> Answer:
    error = f"TimeoutError: no answer within {handler.timeout:g} s"
    return Answer("refuse", error=error, doubtful=True, delay=handler.backoff.delay(call.calls))


class UnderWay:
    """A call in a thread of its own. ``ended`` is called once, there, with what came of it, however late."""

    def __init__(self, handler: EffectHandler, call: Call, ended: Callable[[UnderWay, Answer], None]) -> None:
        self.handler = handler
        self.call = call
        self.deadline = time.monotonic() + handler.timeout
        self._ended = ended
        threading.Thread(target=self._run, name=f"fanin-effect-{handler.name}", daemon=True).start()

    def _run(self) -> None:
        self._ended(self, perform(self.handler, self.call))


def perform(handler: EffectHandler, call: Call) -> Answer:
    """Call the receiver, here and now. Whatever is raised becomes an answer."""
    doubtful = call.doubtful
    try:
        request = handler.request.decode(call.request)
        if doubtful and handler.probe is not None:
            found = _run(handler, handler.probe, request, call.key)
            if found is not None:
                return _happened(handler, found)
            doubtful = False
    except BaseException as problem:  # nothing was called this time; an earlier call stays in doubt
        return _refused(handler, call, problem, doubtful)
    try:
        return _happened(handler, _run(handler, handler.function, request, call.key))
    except (Permanent, RetryLater) as problem:
        return _refused(handler, call, problem, doubtful)
    except BaseException as problem:  # it may have happened
        return _refused(handler, call, problem, True)


def _run(handler: EffectHandler, function: Callable[..., Any], request: Any, key: str) -> Any:
    if inspect.iscoroutinefunction(function):
        import asyncio

        async def within() -> Any:
            return await asyncio.wait_for(function(request, key), handler.timeout)

        return asyncio.run(within())
    return function(request, key)


def _happened(handler: EffectHandler, value: Any) -> Answer:
    """It has happened, whatever it answered: a response that cannot be kept changes nothing about that."""
    try:
        return Answer(
            "mark", response=Codec(Any, f"the response of effect {handler.name}").encode(value, limits.EFFECT_BYTES)
        )
    except BadPayload as problem:
        return Answer("mark", error=f"the response was not kept: {problem}")


def _refused(handler: EffectHandler, call: Call, problem: BaseException, doubtful: bool) -> Answer:
    delay = wait_of(problem.seconds) if isinstance(problem, RetryLater) else handler.backoff.delay(call.calls)
    return Answer(
        "refuse",
        error=_told(problem),
        doubtful=doubtful,
        final=isinstance(problem, Permanent | BadPayload),
        delay=delay,
    )


def _told(problem: BaseException) -> str:
    try:
        text = f"{type(problem).__name__}: {problem}"
    except BaseException as unprintable:
        text = f"{type(problem).__name__} (its message cannot be printed: {type(unprintable).__name__})"
    return text.encode("utf-8", "backslashreplace").decode()[: limits.REASON_CHARS]


def _request_codec(function: Callable[..., Any], name: str) -> Codec:
    hints = annotations_of(function)
    first = next(iter(inspect.signature(function).parameters), None)
    return Codec(hints.get(first or "", inspect.Parameter.empty), f"the request of effect {name}")


def _check_signature(function: Callable[..., Any], name: str) -> None:
    try:
        inspect.signature(function).bind(None, "")
    except TypeError as problem:
        raise BadOption(f"effect {name!r}: {function!r} is called with (request, key): {problem}") from None
