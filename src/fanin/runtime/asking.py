"""What `Part.effect` does: an intent for the commit of the part, or a call here and now, under the fence."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from fanin.domain import identity, limits
from fanin.domain.effects import MODES, Intent
from fanin.domain.errors import BadOption, EffectFailed, EffectUnknown, KeyConflict, Unavailable, shown
from fanin.domain.model import Claim
from fanin.protocol import effect
from fanin.protocol.effect import Begun, Call
from fanin.runtime.codec import Codec
from fanin.runtime.effects import MARGIN_SECONDS, Answer, EffectHandler, Handlers, UnderWay, too_late
from fanin.stores.base import Store

log = logging.getLogger("fanin")

WAIT_SECONDS = 0.5


def intended(handlers: Handlers, name: Any, request: Any, mode: str | None) -> Intent:
    """What `Part.effect` is to write. Raises `BadOption`, `BadPayload`."""
    if not isinstance(name, str) or not name or len(name) > limits.NAME_CHARS or not name.isprintable():
        raise BadOption(f"effect name {shown(name)}: use a text of 1 to {limits.NAME_CHARS} printable characters")
    handler = handlers.get(name)
    if handler is None:
        if mode not in MODES:
            raise BadOption(
                f"effect {name!r} has no handler in this application ({_known(handlers)}): decorate a function with "
                f"@app.effect({name!r}, mode=…), or give mode=… if another application performs it"
            )
        codec, calls = Codec(Any, f"the request of effect {name}"), limits.EFFECT_CALLS
    else:
        if mode not in (None, handler.mode, "at_most_once"):
            raise BadOption(
                f"mode={shown(mode)}: the handler of effect {name!r} has mode {handler.mode!r}, and only "
                "'at_most_once' is stricter"
            )
        codec, calls = handler.request, handler.calls
    mode = mode or (handler.mode if handler is not None else mode)
    assert mode is not None
    text = codec.encode(request, limits.EFFECT_BYTES)
    return Intent(name, mode, text, 1 if mode == "at_most_once" else calls)


def call_now(store: Store, handlers: Handlers, held: Claim, intent: Intent, lose: Callable[[], NoReturn]) -> Any:
    """The attempt's own call: its response, or what an earlier call was answered. See `Part.effect`."""
    handler = handlers.get(intent.name)
    if handler is None:
        raise BadOption(
            f"effect {intent.name!r}, now=True: it has no handler in this application ({_known(handlers)}): decorate a "
            f"function with @app.effect({intent.name!r}, mode=…)"
        )
    if _on_a_loop():
        raise BadOption(
            f"effect {intent.name!r}, now=True would keep the event loop from turning: "
            f"await asyncio.to_thread(part.effect, {intent.name!r}, request, now=True)"
        )
    caller_id = identity.new_claim_id()
    limit = handler.timeout + MARGIN_SECONDS
    while True:
        found = store.run(lambda: effect.begin(held, intent, caller_id, f"attempt {held.attempt}", limit))
        if found.call is not None:
            return _call(store, handler, found.call)
        if found.status == "lost":
            lose()
        if found.status != "calling":
            return _standing(intent, identity.effect_key(*held.key, intent.name), found)
        time.sleep(min(found.seconds, WAIT_SECONDS) + 0.01)  # an earlier attempt's call, until its time is over


def _on_a_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _standing(intent: Intent, key: str, found: Begun) -> Any:
    """What stands there already."""
    if found.status == "conflict":
        raise KeyConflict(
            f"effect {key} was named before with another request: one name stands for one effect of a part; give the "
            "second one a name of its own"
        )
    if found.status == "done":
        return None if found.response is None else msgspec.json.decode(found.response)
    if found.status == "unknown":
        raise EffectUnknown(_unknown(key, found.error))
    raise EffectFailed(f"effect {key} is {found.status} and is not called again: {found.error}")


def _call(store: Store, handler: EffectHandler, call: Call) -> Any:
    ready = threading.Event()
    answers: list[Answer] = []
    lock = threading.Lock()
    given_up = False

    def ended(_: UnderWay, answer: Answer) -> None:
        with lock:
            answers.append(answer)
            ready.set()
            late = given_up
        if late:
            late_answer(store, call, answer)

    UnderWay(handler, call, ended)
    ready.wait(handler.timeout)
    with lock:
        given_up = not answers
        answer = answers[0] if answers else too_late(handler, call)
    status = store.run(lambda: effect.settle(call.bucket, [answer.said(call)])).get(call.where)
    if answer.verb == "mark":
        return None if answer.response is None else msgspec.json.decode(answer.response)
    if status == "failed":
        raise EffectFailed(f"effect {call.key} was not performed: {answer.error}")
    raise EffectUnknown(_unknown(call.key, answer.error))


def late_answer(store: Store, call: Call, answer: Answer) -> None:
    """An answer after the deadline: that it has happened is worth keeping, a refusal is not."""
    if answer.verb != "mark":
        log.info("effect %s: refused after its deadline: %s", call.key, answer.error)
        return
    try:
        status = store.run(lambda: effect.settle(call.bucket, [answer.said(call)])).get(call.where)
    except Unavailable as problem:
        log.warning("effect %s was answered after its deadline, and that could not be stored: %s", call.key, problem)
    else:
        tell_late(call, status)


def tell_late(call: Call, status: str | None) -> None:
    if status == "done":
        log.info("effect %s was answered after its deadline: it is done", call.key)
    else:
        log.error("effect %s was answered after its deadline, and was taken for over before. Look at it", call.key)


def _unknown(key: str, error: str | None) -> str:
    return (
        f"nobody knows whether effect {key} has happened: {error}. Find out, then say "
        f"`fanin effects settle {shlex.quote(key)} --done` or `--failed`"
    )


def _known(handlers: Handlers) -> str:
    return "it has " + (", ".join(sorted(handlers)) or "none")
