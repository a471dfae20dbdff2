"""Want, call and settle effects: what every test of them does."""

from __future__ import annotations

from typing import Any

from fanin.domain import identity
from fanin.domain.effects import Effect, Intent
from fanin.domain.model import Claim, Report
from fanin.protocol import effect
from fanin.protocol.effect import Begun, Call, Said
from fanin.stores.base import Store


def intent(name: str = "mail", mode: str = "idempotent", request: str = '{"to":"a"}', calls: int = 5) -> Intent:
    return Intent(name, mode, request, 1 if mode == "at_most_once" else calls)


def wanting(held: Claim, *intents: Intent, result: str = "1") -> Report:
    """A success that wants something done."""
    return Report(held, "succeed", result=result, effects=intents)


def begun(store: Store, held: Claim, wanted: Intent | None = None, seconds: float = 60.0) -> Begun:
    """The attempt wants to call."""
    caller_id = identity.new_claim_id()
    return store.run(lambda: effect.begin(held, wanted or intent(), caller_id, "w", seconds))


def begin(store: Store, held: Claim, wanted: Intent | None = None, seconds: float = 60.0) -> Call:
    """The attempt calls."""
    found = begun(store, held, wanted, seconds)
    assert found.call is not None, found
    return found.call


def called(store: Store, name: str = "mail", limit: int = 10, seconds: float = 60.0) -> list[Call]:
    """A relay calls."""
    caller_id = identity.new_claim_id()
    return store.run(lambda: effect.take(0, name, limit, caller_id, "r", seconds))


def said(store: Store, call: Call, verb: str, **more: Any) -> str | None:
    """What became of a call. The state of the effect, None if nobody hears this caller any more."""
    if verb == "mark":
        more.setdefault("response", '"ok"')
    else:
        more.setdefault("error", "no")
    return store.run(lambda: effect.settle(0, [Said(call, verb, **more)])).get(call.where)


def effects(store: Store, job_id: str) -> list[Effect]:
    return store.read(lambda: effect.of_job(0, job_id, effect.FIRST))[0]


def states(store: Store, job_id: str) -> dict[str, str]:
    return {one.name: one.status for one in effects(store, job_id)}
