"""The world outside a saga: what its handlers did there, in order, and what is to go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import fanin

MAIL, CHARGE = "mail", "charge"


@dataclass
class Outside:
    """One case. An item is a text such as ``b/1``: what stands before the first slash is its step."""

    refuses: frozenset[str] = frozenset()
    """Items whose handler fails for good."""
    stuck: dict[str, int] = field(default_factory=dict)
    """Item to how many more times its undo fails for good."""
    shaky: dict[str, int] = field(default_factory=dict)
    """Item to how many more times its undo fails, to be tried again."""
    silent: frozenset[str] = frozenset()
    """Items whose calls happen, but whose answers are lost."""
    deeds: list[tuple[str, str, str]] = field(default_factory=list)
    """(what, item, key): ``did`` by a handler, ``undid`` by that of an undo, ``person`` for a whole step, ``went on``
    for a report that was accepted too late."""
    called: list[str] = field(default_factory=list)
    """Keys of effects that have happened."""

    accepted: set[str] = field(default_factory=set)
    """Items of parts that have succeeded."""
    done_again: list[str] = field(default_factory=list)
    """Items that a handler was given after that."""

    def do(self, item: str) -> str:
        self.deeds.append(("did", item, str(fanin.current().idempotency_key)))
        self.done_again += self.accepted & {item}
        if item in self.refuses:
            raise fanin.Permanent(f"{item} is refused")
        return item

    def undo(self, item: str) -> None:
        if self.shaky.get(item, 0) > 0:
            self.shaky[item] -= 1
            raise ConnectionError(f"{item} cannot be undone now")
        if self.stuck.get(item, 0) > 0:
            self.stuck[item] -= 1
            raise fanin.Permanent(f"{item} cannot be undone")
        self.deeds.append(("undid", item, str(fanin.current().idempotency_key)))

    def call(self, item: str, key: str) -> str:
        self.called.append(key)
        if item in self.silent:
            raise ConnectionError("no answer")
        return "ok"


class Firm:
    """The application whose flows are surveyed. ``outside`` is exchanged for each case."""

    def __init__(self, app: fanin.App) -> None:
        self.app = app
        self.outside = Outside()

        @app.effect(MAIL, mode="idempotent", attempts=2, backoff=0)
        def mail(item: str, key: str) -> str:
            return self.outside.call(item, key)

        @app.effect(CHARGE, mode="at_most_once")
        def charge(item: str, key: str) -> str:
            return self.outside.call(item, key)

        @app.task(attempts=4, backoff=0)
        def do(item: str) -> str:
            return self.outside.do(item)

        @app.task(attempts=4, backoff=0)
        def notify(item: str) -> str:
            fanin.current().effect(MAIL, item)
            return self.outside.do(item)

        @app.task(attempts=4, backoff=0)
        def bill(item: str) -> str:
            fanin.current().effect(CHARGE, item, now=True)
            return self.outside.do(item)

        @app.task(attempts=4, backoff=0)
        def order(item: str) -> str:
            fanin.current().effect(CHARGE, item)
            return self.outside.do(item)

        @app.task(attempts=4, backoff=0)
        def listing(item: str, of: list[str]) -> list[str]:
            self.outside.do(item)
            return of

        @app.task(attempts=4, backoff=0)
        def gather(parts: fanin.Joined[str]) -> list[str]:
            return list(parts)

        @app.task(attempts=4, backoff=0)
        def tree(item: str) -> fanin.FanOut:
            return fanin.current().fan_out(do, [f"{item}/{n}" for n in range(2)])

        @app.task(attempts=4, backoff=0)
        def joined(item: str) -> fanin.FanOut:
            return fanin.current().fan_out(notify, [f"{item}/{n}" for n in range(2)], then=gather)

        @app.task(attempts=4, backoff=0)
        def wide(item: str) -> fanin.FanOut:
            return fanin.current().fan_out(notify, [f"{item}/{n}" for n in range(4)], overflow="split")

        @app.task(attempts=3, backoff=0)
        def back(what: Any) -> None:
            for item in what if isinstance(what, list) else [what]:
                self.outside.undo(item)

        @app.task(attempts=3, backoff=0)
        def forget(found: list[str]) -> None:
            self.outside.undo("a/0")  # what was listed

        self.do, self.notify, self.bill, self.order, self.listing = do, notify, bill, order, listing
        self.tree, self.joined, self.wide, self.back, self.forget = tree, joined, wide, back, forget
