"""Races for an event: relays that claim, mark and are overtaken, and jobs that end beside them."""

from __future__ import annotations

from fanin.domain.model import Report
from fanin.protocol import outbox, redrive
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.races.arena import Arena, counted
from tests.races.scenarios import held, race
from tests.races.stage import BUCKET


def taker(arena: Arena, name: str, limit: int) -> Actor:
    """A relay that claims."""
    taking = arena.taking(limit=limit)

    def script() -> Script:
        events = yield taking
        return f"{len(events)}"

    return Actor(name, script)


def relay(arena: Arena, name: str) -> Actor:
    """A relay that claims one event and marks it."""
    claim_id = arena._claim_id()
    taking = arena.taking(limit=1, claim_id=claim_id)

    def script() -> Script:
        events = yield taking
        if not events:
            return "NOTHING"
        lost = yield lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(events[0].key, "mark")])
        return "LOST" if lost else "MARKED"

    return Actor(name, script)


def exchanger(arena: Arena, name: str, claim_id: str, *keys: str, limit: int = 1) -> Actor:
    """A relay that marks what it holds, or held, and claims on in the same transaction."""
    following = arena._claim_id()

    def script() -> Script:
        marks = [outbox.Said(key, "mark") for key in keys]
        lost, events = yield lambda: outbox.exchange(BUCKET, claim_id, marks, limit, 60.0, following, "r")
        return f"{'LOST' if lost else 'MARKED'}/{len(events)}"

    return Actor(name, script)


def settler(name: str, claim_id: str, key: str, verb: str = "mark") -> Actor:
    """A relay that says what became of an event that it holds, or held."""

    def script() -> Script:
        lost = yield lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(key, verb)])
        return "LOST" if lost else {"mark": "MARKED", "refuse": "REFUSED"}[verb]

    return Actor(name, script)


def one_claim_holds_each(arena: Arena, run: Run) -> list[str]:
    """What the takers counted together is what is claimed."""
    claimed = len(select(arena.store, "SELECT event_key FROM fanin.outbox WHERE status = 'claimed'"))
    said = sum(int(str(out)) for out in run.outcomes.values())
    return [] if claimed == said else [f"{said} were said to be claimed, {claimed} are"]


@race("claim and claim of one event", "A=1 B=0", "A=0 B=1", also=one_claim_holds_each)
def take_and_take(arena: Arena) -> list[Actor]:
    """Two relays send one event, each believing that it alone does."""
    arena.events(1)
    return [taker(arena, "A", 1), taker(arena, "B", 1)]


@race("claim and claim of three events, two each", "A=2 B=1", "A=1 B=2", also=one_claim_holds_each)
def take_and_take_of_three(arena: Arena) -> list[Actor]:
    """A claim takes more than its limit, or an event that another has taken."""
    arena.events(3)
    return [taker(arena, "A", 2), taker(arena, "B", 2)]


@race("the mark of a relay whose claim has run out and a new claim", "A=MARKED B=NOTHING", "A=LOST B=MARKED")
def mark_and_reclaim(arena: Arena) -> list[Actor]:
    """An event is marked by a relay that does not hold it, while another is about to be refused."""
    arena.events(1)
    claim_id, (event,) = arena.taken(lease=-1.0)
    return [settler("A", claim_id, event.key), relay(arena, "B")]


@race("a refusal by a relay whose claim has run out and a new claim", "A=REFUSED B=MARKED", "A=LOST B=MARKED",
      "A=REFUSED B=NOTHING")  # fmt: skip
def refuse_and_reclaim(arena: Arena) -> list[Actor]:
    """A published event is put back by a relay that was taken for lost."""
    arena.events(1)
    claim_id, (event,) = arena.taken(lease=-1.0)
    return [settler("A", claim_id, event.key, "refuse"), relay(arena, "B")]


@race("two relays, one of which holds the event no longer", "A=LOST B=MARKED")
def stale_mark(arena: Arena) -> list[Actor]:
    """A stale claim is heard beside the valid one."""
    arena.events(1)
    old, (event,) = arena.taken(lease=-1.0)
    new, _ = arena.taken()
    return [settler("A", old, event.key), settler("B", new, event.key)]


@race("two people who retry one parked event", "A=RETRIED 1 B=RETRIED 0", "A=RETRIED 0 B=RETRIED 1")
def retry_and_retry(arena: Arena) -> list[Actor]:
    """A second press of the button puts back an event that is on its way again."""
    arena.events(1)
    claim_id, (event,) = arena.taken()
    arena.store.run(lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(event.key, "park", error="no")]))
    return [counted(name, lambda: outbox.retry(BUCKET), "RETRIED") for name in "AB"]


@race(
    "a relay and the end of the run after the one whose event it carries",
    "A=MARKED B=NOTHING W=LAST", "A=MARKED B=MARKED W=LAST", "A=NOTHING B=MARKED W=LAST",
    preemptions=1, always=2,
)  # fmt: skip
def relays_and_the_next_end(arena: Arena) -> list[Actor]:
    """Whoever claims, the events of one job leave in their order: the invariant says so at every commit."""
    job_id, (claim,) = held(arena, 1, successor=None)
    arena.settled([Report(claim, "fail")])
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 1))
    (again,) = arena.claims(1)
    return [relay(arena, "A"), relay(arena, "B"), arena.succeeds("W", again)]


@race("two relays that mark and claim on", "A=MARKED/2 B=MARKED/1", "A=MARKED/1 B=MARKED/2")
def mark_on_and_mark_on(arena: Arena) -> list[Actor]:
    """Both claim one event, or one waits for what the other holds while it holds its own."""
    arena.events(5)
    (one, (first,)), (two, (second,)) = arena.taken(limit=1), arena.taken(limit=1)
    return [exchanger(arena, "A", one, first.key, limit=2), exchanger(arena, "B", two, second.key, limit=2)]


@race("a relay whose claim has run out marks and claims on, beside one that takes over",
      "A=MARKED/1 B=0", "A=MARKED/0 B=1", "A=LOST/0 B=2")  # fmt: skip
def late_mark_on_and_take(arena: Arena) -> list[Actor]:
    """A late mark is heard beside the new claim, or the new claim takes what has just been published."""
    arena.events(2)
    claim_id, (event,) = arena.taken(lease=-1.0, limit=1)
    return [exchanger(arena, "A", claim_id, event.key, limit=2), taker(arena, "B", 2)]


@race("a relay that marks and claims on, and the end of the next run of the same job",
      "A=MARKED/0 W=LAST", "A=MARKED/1 W=LAST", preemptions=2)  # fmt: skip
def mark_on_and_the_next_end(arena: Arena) -> list[Actor]:
    """The next event of a job can be claimed by the transaction that marks the one before, and not sooner."""
    job_id, (claim,) = held(arena, 1, successor=None)
    arena.settled([Report(claim, "fail")])
    arena.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 1))
    (again,) = arena.claims(1)
    claim_id, (event,) = arena.taken()
    return [exchanger(arena, "A", claim_id, event.key), arena.succeeds("W", again)]
