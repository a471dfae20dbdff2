"""``fanin events``: what is on its way out, what has left, and what is stuck."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json, say
from fanin.cli.tables import number, print_lines, text
from fanin.domain.durations import span
from fanin.domain.errors import BadOption
from fanin.domain.states import EVENT_STATES
from fanin.protocol import outbox, read

USAGE = "fanin events [OPTIONS] | fanin events retry [KEY...]"
COLOURS = {"waiting": "cyan", "claimed": "cyan", "published": "green", "parked": "red"}
HEADINGS = ("event", "type", "state", "tries", "age", "said")


def events(
    verb: Annotated[str, Parameter(help="list (default), or retry: let parked events wait again.")] = "list",
    keys: Annotated[tuple[str, ...], Parameter(name="KEY", help="With retry: only these events.")] = (),
    /,
    *,
    state: Annotated[str | None, option(f"Only events in this state: {', '.join(EVENT_STATES)}.", "--status")] = None,
    limit: Annotated[int, Parameter(help="How many.")] = 20,
    common: Common = DEFAULT,
) -> int:
    """List the newest events, newest first, or let parked ones be tried again."""
    if verb not in ("list", "retry"):
        raise BadOption(f"{verb!r}: there are list and retry")
    if state is not None and state not in EVENT_STATES:
        raise BadOption(f"--status {state!r}: there are {', '.join(EVENT_STATES)}")
    if not 1 <= limit <= 10_000:
        raise BadOption(f"--limit {limit}: give 1 to 10000")
    if verb == "retry":
        return _retry(keys, common)
    if keys:
        raise BadOption(f"{keys[0]!r}: the list takes no keys; filter it with --status")
    with open_app(common) as app:
        store = app.store
        found = store.read(lambda: read.outgoing(range(store.buckets), state, limit))
    if common.json:
        print_json([{**row, "payload": msgspec.Raw(row["payload"].encode())} for row in found])
    elif not found:
        console(common).print("no events" if state is None else f"no {state} events")
    else:
        _print(found, common)
    return exits.OK


def _print(found: list[dict[str, Any]], common: Common) -> None:
    now = time.time()
    lines = [
        [
            text(row["key"]), text(row["type"]), text(row["status"], COLOURS[row["status"]]),
            text(number(row["tries"])), text(span(now - row["at"])), text(row["error"] or ""),
        ]
        for row in found
    ]  # fmt: skip
    print_lines(console(common), HEADINGS, lines, cut=0, fold=(0,), leave=(4,), right=(3, 4), said=5)


def _retry(keys: tuple[str, ...], common: Common) -> int:
    with open_app(common) as app:
        store, count = app.store, 0
        for bucket in range(store.buckets):
            while some := store.run(partial(outbox.retry, bucket, list(keys) or None)):
                count += some
    if common.json:
        print_json({"retried": count})
    elif count:
        say(f"{number(count)} events will be tried again by the next relay")
    else:
        say("nothing to retry: no such event is parked")
    return exits.OK
