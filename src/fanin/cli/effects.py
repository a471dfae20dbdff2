"""``fanin effects``: what parts want done outside, what became of it, and a person's word about it."""

from __future__ import annotations

import time
import uuid
from functools import partial
from itertools import groupby
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, console, open_app, option, print_json, say
from fanin.cli.tables import number, print_lines, text
from fanin.domain import limits
from fanin.domain.durations import span
from fanin.domain.effects import Effect
from fanin.domain.errors import BadOption
from fanin.domain.states import EFFECT_STATES
from fanin.protocol import effect
from fanin.protocol.effect import Key

USAGE = "fanin effects [OPTIONS] [JOB] | fanin effects settle KEY --done|--failed | fanin effects retry [KEY...]"
COLOURS = {"registered": "cyan", "calling": "cyan", "done": "green", "failed": "red", "unknown": "bold red"}
HEADINGS = ("effect", "mode", "state", "calls", "age", "said")
VERBS = ("list", "settle", "retry")


def effects(
    verb: Annotated[
        str,
        Parameter(
            name="VERB",
            help="list (default); settle: say whether it happened; retry: call again. Or a job.",
        ),
    ] = "list",
    keys: Annotated[tuple[str, ...], Parameter(name="KEY", help="The effects, as the list shows them.")] = (),
    /,
    *,
    state: Annotated[str | None, option(f"Only effects in this state: {', '.join(EFFECT_STATES)}.", "--status")] = None,
    limit: Annotated[int, Parameter(help="How many.")] = 20,
    done: Annotated[bool, option("With settle: it has happened.", "--done")] = False,
    failed: Annotated[bool, option("With settle: it has not happened.", "--failed")] = False,
    response: Annotated[str | None, Parameter(help="With settle --done: the response, as JSON.")] = None,
    note: Annotated[str | None, Parameter(help="With settle: how you know. Kept with the effect.")] = None,
    common: Common = DEFAULT,
) -> int:
    """List the effects that changed last, or all of a job; say what became of one that nobody knows about; or have
    those called again that failed.
    """
    if state is not None and state not in EFFECT_STATES:
        raise BadOption(f"--status {state!r}: there are {', '.join(EFFECT_STATES)}")
    if not 1 <= limit <= 10_000:
        raise BadOption(f"--limit {limit}: give 1 to 10000")
    if verb != "settle" and (done or failed or response is not None or note is not None):
        raise BadOption("--done, --failed, --response and --note go with settle")
    if verb == "settle":
        return _settle(keys, done, failed, response, note, common)
    if verb == "retry":
        return _retry(keys, common)
    if keys:
        raise BadOption(f"{keys[0]!r}: give one job at most, or one of {', '.join(VERBS)} first")
    return _list(None if verb == "list" else verb, state, limit, common)


def _list(job: str | None, state: str | None, limit: int, common: Common) -> int:
    with open_app(common) as app:
        store = app.store
        if job is None:
            found = store.read(partial(effect.newest, range(store.buckets), state, limit))
        else:
            found = [one for one in app.job(job).effects() if state in (None, one.status)]
        counts = store.read(partial(effect.counts, range(store.buckets)))
    if common.json:
        print_json([msgspec.to_builtins(one) for one in found])
        return exits.OK
    if not found:
        console(common).print("no effects" if state is None else f"no {state} effects")
    else:
        _print(found, common)
    if "unknown" in counts:
        many, age = counts["unknown"]
        say(
            f"{number(many)} unknown, the oldest for {span(age)}: find out whether they happened, then say "
            "`fanin effects settle KEY --done` or `--failed`"
        )
    return exits.OK


def _print(found: list[Effect], common: Common) -> None:
    now = time.time()
    lines = [
        [
            text(one.key), text(one.mode), text(one.status, COLOURS.get(one.status, "yellow")), text(number(one.calls)),
            text(span(now - (one.settled_at or one.at))), text(one.note or one.error or ""),
        ]
        for one in found
    ]  # fmt: skip
    print_lines(console(common), HEADINGS, lines, cut=0, fold=(0,), leave=(4,), right=(3, 4), said=5)


def _settle(
    keys: tuple[str, ...], done: bool, failed: bool, response: str | None, note: str | None, common: Common
) -> int:
    if len(keys) != 1:
        raise BadOption("settle: give the key of one effect, as `fanin effects` shows it")
    if done == failed:
        raise BadOption("settle: say --done (it has happened) or --failed (it has not)")
    if response is not None:
        _check_response(response, done)
    if note is not None and len(note) > limits.REASON_CHARS:
        raise BadOption(f"--note has {len(note)} characters, the limit is {limits.REASON_CHARS}")
    where = _parse(keys[0])
    with open_app(common) as app:
        store = app.store
        status = store.run(partial(effect.by_hand, store.bucket(where[0]), where, done, response, note))
    if common.json:
        print_json({"key": keys[0], "status": status})
    else:
        say(f"effect {keys[0]} is {status}")
    return exits.OK


def _retry(keys: tuple[str, ...], common: Common) -> int:
    wheres = [_parse(key) for key in keys]
    with open_app(common) as app:
        store, again = app.store, []
        if wheres:
            for bucket, mine in groupby(sorted(wheres, key=lambda w: store.bucket(w[0])), lambda w: store.bucket(w[0])):
                again += store.run(partial(effect.retry, bucket, list(mine), limits.EFFECT_CALLS))
        else:
            for bucket in range(store.buckets):
                while some := store.read(partial(effect.refused, bucket)):
                    again += store.run(partial(effect.retry, bucket, some, limits.EFFECT_CALLS))
    if common.json:
        print_json({"retried": len(again)})
        return exits.OK
    if again:
        say(f"{number(len(again))} effects will be called again by the next worker that knows them")
    elif wheres:
        say("nothing to retry: of these none has failed, and one that may have happened must be settled before")
    else:
        say("nothing to retry: no effect has failed")
    return exits.OK


def _check_response(response: str, done: bool) -> None:
    if not done:
        raise BadOption("--response goes with --done")
    try:
        msgspec.json.decode(response)
    except msgspec.DecodeError as problem:
        raise BadOption(f"--response {response!r} is no JSON ({problem}): quote a text, as in '\"sent\"'") from None
    if len(response.encode()) > limits.EFFECT_BYTES:
        raise BadOption(f"--response has more than {limits.EFFECT_BYTES} bytes, which is the limit")


def _parse(key: str) -> Key:
    """The parts of a key. Raises `BadOption`."""
    job_id, _, rest = key.partition("/")
    idx, _, name = rest.partition("/")
    try:
        return str(uuid.UUID(job_id)), int(idx), name
    except ValueError:
        raise BadOption(f"{key!r} is no key of an effect: JOB/PART/NAME, as `fanin effects` shows it") from None
