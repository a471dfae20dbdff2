"""What came of one execution of a handler, and how an exception is written down. Recording a failure cannot fail."""

from __future__ import annotations

import traceback
from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.durations import wait_of
from fanin.domain.effects import Intent
from fanin.domain.errors import (
    BadOption,
    BadPayload,
    KeyConflict,
    LeaseLost,
    LimitExceeded,
    Permanent,
    RetryLater,
    Unavailable,
)
from fanin.domain.model import NESTED, NESTED_FAILED
from fanin.protocol.nest import Nested
from fanin.runtime.fanout import FanOut
from fanin.runtime.part import Part, hand_over, intents_of, large_result, spawns_of
from fanin.runtime.task import Task

_SAME_AGAIN = (Permanent, BadPayload, BadOption, KeyConflict, LimitExceeded)
"""What another attempt would meet again."""
SAID_CHARS = 300
"""So much of a message stands in a line."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """``verb`` as in `fanin.domain.model.Report`, or ``lost`` when the handler stopped because it lost its lease, or
    ``waits`` when the part waits for a job of its own."""

    verb: str
    result: str | None = None
    error: str | None = None
    delay: float = 0.0
    fan_out: FanOut | None = None
    spawns: tuple[tuple[str, str], ...] = ()
    effects: tuple[Intent, ...] = ()


def succeeded(task: Task[..., Any], value: Any, own: Part) -> Outcome:
    """A result that cannot be stored is a failure for good: the next attempt would return the same."""
    if isinstance(value, FanOut):
        if intents_of(own):
            raise BadOption(
                "a part that ends with fan_out cannot have effects of its own: name them in its parts or then="
            )
        return Outcome("waits", fan_out=value)
    try:
        text = task.signature.result.encode(value, limits.LARGE_RESULT_BYTES)
        return Outcome("succeed", result=text, spawns=spawns_of(own), effects=intents_of(own))
    except BadPayload as problem:
        if isinstance(value, list | tuple) and any(isinstance(one, FanOut) for one in value):
            said = f"the result of task {task.name} is a list with a fan_out in it: return one fan_out of all the items"
            return Outcome("fail", error=describe(BadPayload(said)))
        return Outcome("fail", error=describe(problem))


def unfinished(found: Outcome) -> bool:
    """Whether it has to go through `complete`: the result does not fit the part's row, or is a job of its own."""
    return found.fan_out is not None or (
        found.result is not None
        and (len(found.result) * 4 > limits.RESULT_BYTES and len(found.result.encode()) > limits.RESULT_BYTES)
    )


def complete(found: Outcome, own: Part) -> Outcome:
    """The same outcome with its result among the part's outputs, or with its job made. Raises what `Part.output` and
    `fanout.hand_over` raise."""
    if found.fan_out is not None:
        handed = hand_over(own, found.fan_out)
        if handed.why is not None:
            return Outcome("fail", error=error_json(NESTED_FAILED, handed.why))
        completed = handed.what is Nested.COMPLETED
        return Outcome("succeed", result=NESTED + handed.job_id) if completed else Outcome("waits")
    return msgspec.structs.replace(found, result=large_result(own, found.result or ""))


def failed(task: Task[..., Any], problem: BaseException, attempt: int) -> Outcome:
    """Whether to try again, and when, by the task's filters."""
    if isinstance(problem, LeaseLost):
        return Outcome("lost")
    error = describe(problem)
    if isinstance(problem, Unavailable):  # a database that is away is no failure of the part
        return Outcome("release", error=error, delay=task.backoff.delay(attempt))
    if isinstance(problem, RetryLater):
        return Outcome("retry", error=error, delay=wait_of(problem.seconds))
    if isinstance(problem, (*_SAME_AGAIN, *task.give_up_on)) or not isinstance(problem, task.retry_on):
        return Outcome("fail", error=error)
    return Outcome("retry", error=error, delay=task.backoff.delay(attempt))


def describe(problem: BaseException) -> str:
    """Type, message and traceback as JSON, bounded, whatever the exception's own methods do."""
    try:
        trace = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
    except BaseException:  # a traceback whose parts cannot be printed
        trace = ""
    try:
        message = str(problem)
    except BaseException as unprintable:
        message = f"(the message cannot be printed: {type(unprintable).__name__})"
    return error_json(type(problem).__qualname__, message, trace)


def error_json(kind: str, message: str, trace: str = "") -> str:
    """A failure as JSON of at most `limits.ERROR_BYTES` bytes."""
    share = limits.ERROR_BYTES // 4
    while True:
        record = {"type": _clean(kind, 200), "message": _clean(message, share), "traceback": _clean(trace, 2 * share)}
        data = msgspec.json.encode(record)
        if len(data) <= limits.ERROR_BYTES:
            return data.decode()
        share //= 2  # a character may take six bytes


def in_a_line(error: str) -> str:
    """What `error_json` made, as ``ValueError: first line of its message``."""
    said: dict[str, Any] = msgspec.json.decode(error)
    return f"{said.get('type', '')}: {said.get('message', '').partition(chr(10))[0][:SAID_CHARS]}"


def _clean(text: str, limit: int) -> str:
    """Without lone surrogates, and cut in the middle: both ends of a traceback tell something."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n… {len(text) - limit} characters cut …\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
