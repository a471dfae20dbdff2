"""Races for an effect: attempts and relays that call, late answers, people, and jobs that close beside them."""

from __future__ import annotations

import msgspec

from fanin.domain.effects import Intent
from fanin.domain.model import Claim, Report
from fanin.protocol import effect, finish, lease
from fanin.protocol.effect import Call, Said
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.races.arena import Arena, canceller, counted, reaper
from tests.races.scenarios import held, race
from tests.races.stage import BUCKET, LAPSED, succeed

ONCE = Intent("once", "at_most_once", '{"to":"a"}', 1)
OFTEN = Intent("often", "idempotent", '{"to":"a"}', 3)


def wanting(claim: Claim, *intents: Intent) -> Report:
    return msgspec.structs.replace(succeed(claim), effects=intents)


def wanted(arena: Arena, intent: Intent) -> Claim:
    """A part that has succeeded, and wants this done."""
    _, (one,) = held(arena, 1, successor=None)
    arena.settled([wanting(one, intent)])
    return one


def row(arena: Arena) -> dict[str, object]:
    """The only effect."""
    (found,) = select(arena.store, "SELECT status, calls, calls_allowed, relayed, doubtful, attempt FROM fanin.effect")
    return found


def taker(arena: Arena, name: str, intent: Intent) -> Actor:
    """A relay that claims."""
    taking = arena.calling(intent.name)

    def script() -> Script:
        calls = yield taking
        return f"{len(calls)}"

    return Actor(name, script)


def caller(arena: Arena, name: str, intent: Intent, verb: str) -> Actor:
    """A relay that claims, calls, and says what came of it."""
    taking = arena.calling(intent.name)

    def script() -> Script:
        calls = yield taking
        if not calls:
            return "NOTHING"
        found = yield lambda: effect.settle(BUCKET, [Said(calls[0], verb, response="1")])
        return found.get(calls[0].where, "unheard").upper()

    return Actor(name, script)


def sayer(name: str, call: Call, verb: str, *, doubtful: bool = False) -> Actor:
    """A caller whose answer has come."""

    def script() -> Script:
        found = yield lambda: effect.settle(BUCKET, [Said(call, verb, response="1", doubtful=doubtful)])
        return found.get(call.where, "unheard").upper()

    return Actor(name, script)


def beginner(arena: Arena, name: str, claim: Claim, intent: Intent, seconds: float = 60.0) -> Actor:
    """The holder of a part that is about to call."""
    beginning = arena.beginning(claim, intent, seconds)

    def script() -> Script:
        found = yield beginning
        return "CALLS" if found.call is not None else found.status.upper()

    return Actor(name, script)


def expirer(name: str) -> Actor:
    def script() -> Script:
        return f"EXPIRED {len((yield lambda: effect.expire(BUCKET)))}"

    return Actor(name, script)


def called_no_more_than_once(arena: Arena, run: Run) -> list[str]:
    """What was begun is what the callers were told to begin."""
    calls = sum(int(str(out)) if str(out).isdigit() else str(out) == "CALLS" for out in run.outcomes.values())
    found = row(arena)
    return [] if found["calls"] == calls <= 1 else [f"{calls} calls were begun, the row says {found}"]


@race("two relays claim one effect that may be called once", "A=1 B=0", "A=0 B=1", also=called_no_more_than_once)
def take_and_take_effect(arena: Arena) -> list[Actor]:
    """A call that may be made once is made by both."""
    wanted(arena, ONCE)
    return [taker(arena, "A", ONCE), taker(arena, "B", ONCE)]


@race("the expiry of a call that may be made once and a relay", "X=EXPIRED 1 B=0")
def expire_and_take_effect(arena: Arena) -> list[Actor]:
    """What has just become unknown is claimed by a relay that saw it before."""
    wanted(arena, ONCE)
    arena.called(ONCE.name, seconds=-1.0)
    return [expirer("X"), taker(arena, "B", ONCE)]


@race("the expiry of a call and its answer, which comes late", "X=EXPIRED 1 M=DONE", "X=EXPIRED 0 M=DONE")
def expire_and_mark_effect(arena: Arena) -> list[Actor]:
    """An effect that is known to have happened is handed to a person."""
    wanted(arena, ONCE)
    call = arena.called(ONCE.name, seconds=-1.0)
    return [expirer("X"), sayer("M", call, "mark")]


@race("the expiry of a call and its refusal, which comes late", "X=EXPIRED 1 M=UNKNOWN", "X=EXPIRED 0 M=FAILED")
def expire_and_refuse_effect(arena: Arena) -> list[Actor]:
    """A refusal is heard after a person was told that nobody knows."""
    wanted(arena, ONCE)
    call = arena.called(ONCE.name, seconds=-1.0)
    return [expirer("X"), sayer("M", call, "refuse")]


@race("a late refusal and the relay that takes the call up", "M=REGISTERED B=DONE", "M=UNHEARD B=DONE",
      "M=REGISTERED B=NOTHING")  # fmt: skip
def refuse_and_take_effect(arena: Arena) -> list[Actor]:
    """An effect that is done is put back by a caller that was taken for lost."""
    wanted(arena, OFTEN)
    call = arena.called(OFTEN.name, seconds=-1.0)
    return [sayer("M", call, "refuse", doubtful=True), caller(arena, "B", OFTEN, "mark")]


@race("a late answer and the relay that takes the call up", "M=DONE B=DONE", "M=DONE B=NOTHING")
def mark_and_take_effect(arena: Arena) -> list[Actor]:
    """The second answer overwrites the first, or the effect is open again."""
    wanted(arena, OFTEN)
    call = arena.called(OFTEN.name, seconds=-1.0)
    return [sayer("M", call, "mark"), caller(arena, "B", OFTEN, "mark")]


@race("a late answer and the refusal of the call that took it up", "M=DONE B=UNHEARD", "M=DONE B=REGISTERED",
      "M=DONE B=NOTHING")  # fmt: skip
def mark_and_refuse_effect(arena: Arena) -> list[Actor]:
    """A refusal reopens what an earlier call has done."""
    wanted(arena, OFTEN)
    call = arena.called(OFTEN.name, seconds=-1.0)
    return [sayer("M", call, "mark"), caller(arena, "B", OFTEN, "refuse")]


@race("two people who have one effect called again", "A=RETRIED 1 B=RETRIED 0", "A=RETRIED 0 B=RETRIED 1")
def retry_and_retry_effect(arena: Arena) -> list[Actor]:
    """A second press of the button allows a second call."""
    one = wanted(arena, ONCE)
    call = arena.called(ONCE.name)
    arena.store.run(lambda: effect.settle(BUCKET, [Said(call, "refuse")]))
    where = (*one.key, ONCE.name)

    def presser(name: str) -> Actor:
        def script() -> Script:
            return f"RETRIED {len((yield lambda: effect.retry(BUCKET, [where], 5)))}"

        return Actor(name, script)

    return [presser("A"), presser("B")]


@race("a person who says that it has not happened and the answer that it has", "P=IS failed M=DONE", "P=REFUSED M=DONE")
def by_hand_and_mark_effect(arena: Arena) -> list[Actor]:
    """A person's guess stands above the receiver's answer, and the effect is called again."""
    one = wanted(arena, ONCE)
    call = arena.called(ONCE.name, seconds=-1.0)
    arena.store.run(lambda: effect.expire(BUCKET))
    said = counted("P", lambda: effect.by_hand(BUCKET, (*one.key, ONCE.name), False, None, None), "IS")
    return [said, sayer("M", call, "mark")]


@race("a compensation that cancels and a relay that claims", "C=CANCELLED 1 B=0", "C=CANCELLED 0 B=1")
def cancel_and_take_effect(arena: Arena) -> list[Actor]:
    """What was cancelled is called all the same."""
    one = wanted(arena, OFTEN)
    return [counted("C", lambda: effect.cancel(BUCKET, one.job_id), "CANCELLED"), taker(arena, "B", OFTEN)]


# The part, its job, and the effect.


@race("an attempt that is about to call and the cancel of its job", "E=CALLS C=CANCELLED", "E=LOST C=CANCELLED")
def begin_and_cancel(arena: Arena) -> list[Actor]:
    """An effect is named after its job was closed, and a compensation has looked at what there is."""
    job_id, (one, _) = held(arena, 2, stripes=2)
    return [beginner(arena, "E", one, ONCE), canceller("C", job_id)]


@race("an attempt that is about to call and the one that takes over its part", "E=CALLS W=NOTHING",
      "E=CALLS W=CALLING", "E=LOST W=CALLS", preemptions=2)  # fmt: skip
def begin_and_reclaim(arena: Arena) -> list[Actor]:
    """Both attempts call, or the loser does after it has lost."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1, LAPSED)
    claiming = arena.claiming()
    caller_id = arena._claim_id()

    def script() -> Script:
        yield lambda: lease.wake(BUCKET)
        claims = yield claiming
        if not claims:
            return "NOTHING"
        found = yield lambda: effect.begin(claims[0], ONCE, caller_id, "w", 60.0)
        return "CALLS" if found.call is not None else found.status.upper()

    return [beginner(arena, "E", one, ONCE), Actor("W", script)]


@race("an attempt that is about to call and the reaper of its part", "E=CALLS R=REAPED 1", "E=LOST R=REAPED 1")
def begin_and_reap(arena: Arena) -> list[Actor]:
    """A part that has failed for good calls."""
    arena.job(1, attempts=1, successor=None)
    (one,) = arena.claims(1, LAPSED)
    return [beginner(arena, "E", one, ONCE), reaper("R")]


@race("two attempts at the same call of one part", "A=CALLS B=CALLING", "A=CALLING B=CALLS",
      also=called_no_more_than_once)  # fmt: skip
def begin_and_begin(arena: Arena) -> list[Actor]:
    """Two threads of a handler name one effect, and both call."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1)
    return [beginner(arena, "A", one, ONCE), beginner(arena, "B", one, ONCE)]


def accepted_means_written(arena: Arena, run: Run) -> list[str]:
    """The effects are those of parts that have succeeded, and of these all."""
    text = (
        "SELECT p.idx FROM fanin.part AS p WHERE (p.status = 'succeeded') <> EXISTS "
        "(SELECT 1 FROM fanin.effect AS e WHERE e.job_id = p.job_id AND e.idx = p.idx)"
    )
    return [f"accepted without its effect, or refused with it: {found}" for found in select(arena.store, text)]


@race("a report that wants something done and the cancel of its job", "A=OK C=CANCELLED", "A=CLOSED C=CANCELLED",
      also=accepted_means_written)  # fmt: skip
def want_and_cancel(arena: Arena) -> list[Actor]:
    """The effect of a part that was not accepted is performed, or that of one that was is lost."""
    job_id, (one, _) = held(arena, 2)
    return [arena.reporter("A", [wanting(one, ONCE)]), canceller("C", job_id)]


@race("a report that wants something done and the next attempt of its part", "Z=LAST W=NOTHING", "Z=LOST W=LAST",
      preemptions=2, always=3)  # fmt: skip
def want_and_reclaim(arena: Arena) -> list[Actor]:
    """The loser's effect is performed."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1, LAPSED)
    claiming = arena.claiming()

    def script() -> Script:
        yield lambda: lease.wake(BUCKET)
        claims = yield claiming
        if not claims:
            return "NOTHING"
        reports = [wanting(claims[0], OFTEN)]
        settled = yield lambda: finish.settle(BUCKET, reports, "W")
        arena.answers += zip(reports, settled, strict=True)
        return settled[0].verdict.name

    return [arena.reporter("Z", [wanting(one, ONCE)]), Actor("W", script)]


def left_to_the_relay(arena: Arena, run: Run) -> list[str]:
    found = row(arena)
    fine = found["status"] in ("registered", "calling") and found["relayed"]
    return [] if fine else [f"the accepted part wants it, and nobody will call: {found}"]


@race("a report that leaves a lost call to the relay and its expiry", "A=LAST X=EXPIRED 1", "A=LAST X=EXPIRED 0",
      also=left_to_the_relay)  # fmt: skip
def defer_and_expire(arena: Arena) -> list[Actor]:
    """The intent of an accepted part is lost: it is handed to a person although it may be called again."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1)
    arena.begun(one, OFTEN, seconds=-1.0)
    return [arena.reporter("A", [wanting(one, OFTEN)]), expirer("X")]


@race("a report that leaves a refused call to the relay and the answer of an earlier one", "A=LAST M=DONE")
def defer_and_mark(arena: Arena) -> list[Actor]:
    """What has just been done is put back to be called."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1)
    call = arena.begun(one, OFTEN)
    arena.store.run(lambda: effect.settle(BUCKET, [Said(call, "refuse", doubtful=True)]))
    return [arena.reporter("A", [wanting(one, OFTEN)]), sayer("M", call, "mark")]
