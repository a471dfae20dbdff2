"""Races of a purge: with who opens a run of the job, delivers its event, asks for its key, or purges too."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from fanin.domain.errors import UnknownJob
from fanin.domain.identity import successor_id
from fanin.domain.model import Report, Spec
from fanin.protocol import flow, outbox, purge, redrive, schedule
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.protocol.helpers import say
from tests.races.arena import Arena, creator, said
from tests.races.scenarios import race
from tests.races.stage import BUCKET, THEN


def old(arena: Arena, parts: int = 1, *, published: bool = True) -> tuple[str, list[purge.Member]]:
    """A failed job on two counters, with its event."""
    job_id = arena.job(parts, successor=None, stripes=2)
    arena.settled([Report(claim, "fail") for claim in arena.claims(parts)])
    if published:
        claim_id, (event,) = arena.taken()
        arena.store.run(lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(event.key, "mark")]))
    return job_id, arena.store.read(lambda: purge.tree([BUCKET], (BUCKET, job_id)))


def purger(name: str, members: list[purge.Member], *, unsent: bool = False) -> Actor:
    def script() -> Script:
        found = yield lambda: purge.purge([BUCKET], members, 0.0, unsent)
        return "PURGED" if found.kept is None else f"KEPT {found.kept}"

    return Actor(name, script)


def clearer(name: str, job_id: str) -> Actor:
    """Removes portions until it is told that there are no more, and goes on above."""

    def script() -> Script:
        portions = 0
        going: purge.Member | None = (BUCKET, job_id)
        while going is not None:
            going = yield partial(purge.portion, 1, going)
            portions += going is not None
        return f"{portions}"

    return Actor(name, script)


def gone(arena: Arena, *, step: str = "then", **options: Any) -> tuple[str, str]:
    """A job and one that followed it, purged, with all of their rows."""
    job_id = arena.job(1, **options)
    arena.drain()
    members = arena.store.read(lambda: purge.tree([BUCKET], (BUCKET, job_id)))
    assert arena.store.run(lambda: purge.purge([BUCKET], members, 0.0, unsent=True)).kept is None
    return job_id, successor_id(job_id, step, 1)


def nothing_is_left(arena: Arena, run: Run) -> list[str]:
    """Nobody would come for it before the next purge, and the key would stay taken."""
    return [f"left: {row}" for row in select(arena.store, "SELECT job_id FROM fanin.leftover")]


@race("a purge and a redrive", "P=PURGED R=UNKNOWN", "P=KEPT live R=RUN")
def purge_and_redrive(arena: Arena) -> list[Actor]:
    """A job that has just been opened again could be removed, or half of it."""
    job_id, members = old(arena)
    return [purger("P", members), said("R", lambda: redrive.redrive(BUCKET, job_id, 1, 2), "RUN", "NOTHING")]


@race("two purges of one tree", "P=PURGED Q=KEPT live", "P=KEPT live Q=PURGED")
def purge_and_purge(arena: Arena) -> list[Actor]:
    """Both could say that its rows are left."""
    _, members = old(arena)
    return [purger("P", members), purger("Q", members)]


@race("a purge of all and a relay", "P=PURGED R=0", "P=KEPT events R=1")
def purge_and_relay(arena: Arena) -> list[Actor]:
    """An event that a relay is just sending could be removed, so that nobody knows whether it was delivered."""
    _, members = old(arena, published=False)
    taking = arena.taking()

    def script() -> Script:
        events = yield taking
        return f"{len(events)}"

    return [purger("P", members, unsent=True), Actor("R", script)]


@race("a purge and the same key again", "P=PURGED C=SAME", "P=PURGED C=REFUSED")
def purge_and_create(arena: Arena) -> list[Actor]:
    """A new job could stand among the parts of the old one."""
    _, members = old(arena)
    return [purger("P", members), creator("C", arena.new(successor=None, stripes=2), 1)]


@race("a purge with its portions and the same key again", "P=1 C=REFUSED", "P=1 C=NEW", preemptions=2)
def portions_and_create(arena: Arena) -> list[Actor]:
    """The last portions of the old job could take parts of the new one."""
    job_id, members = old(arena)
    assert arena.store.run(lambda: purge.purge([BUCKET], members, 0.0)).kept is None
    return [clearer("P", job_id), creator("C", arena.new(successor=None, stripes=2), 1)]


@race("two purges at the portions of one job", "P=1 Q=0", "P=0 Q=1", preemptions=2)
def portions_and_portions(arena: Arena) -> list[Actor]:
    """They could wait for each other, each in the middle of its rows."""
    job_id, members = old(arena, parts=3)
    assert arena.store.run(lambda: purge.purge([BUCKET], members, 0.0)).kept is None
    return [clearer("P", job_id), clearer("Q", job_id)]


@race("two purges, at a job and at what followed it", "P=0 Q=3", "P=1 Q=2", preemptions=2, also=nothing_is_left)
def portions_and_portions_below(arena: Arena) -> list[Actor]:
    """Each could leave the last of it to the other."""
    job_id, below = gone(arena)
    return [clearer("P", job_id), clearer("Q", below)]


@race("two purges below one job", "P=1 Q=2", "P=2 Q=1", preemptions=2, also=nothing_is_left)
def portions_of_siblings(arena: Arena) -> list[Actor]:
    """Each could see the other's rows, and neither free the key."""
    bell = Spec(task=THEN, step="on/bell")
    job_id, below = gone(arena, listeners=msgspec.json.encode([bell]).decode())
    assert arena.store.run(lambda: purge.portion(1, (BUCKET, job_id)))
    return [clearer("P", below), clearer("Q", successor_id(job_id, bell.step, 1))]


@race("a purge of what followed a job, and the key of the job again", "P=2 C=REFUSED", "P=2 C=NEW", preemptions=2)
def portions_below_and_create(arena: Arena) -> list[Actor]:
    """What follows the new job could not be made, or its rows could be removed."""
    job_id, below = gone(arena)
    assert arena.store.run(lambda: purge.portion(1, (BUCKET, job_id)))
    return [clearer("P", below), creator("C", arena.new(), 1)]


@race("a purge of the job of a slot, and the slot again", "P=1 F=REFUSED", "P=1 F=FILLED", preemptions=2)
def portions_and_fill(arena: Arena) -> list[Actor]:
    """The slot's new job could lose its parts. Its firing was forgotten."""
    arena.scheduled()
    arena.store.run(arena.firing(0.5))
    slot = schedule.Slot("nightly", 0.5)
    job_id = arena.of_slot(0.5).job.id
    arena.drain()
    assert arena.store.run(lambda: purge.purge([BUCKET], [(BUCKET, job_id)], 0.0, unsent=True)).kept is None
    say(arena.store, "DELETE FROM fanin.firing")
    filled = said("F", lambda: schedule.fill(BUCKET, slot, arena.of_slot(0.5)), "FILLED", "BEFORE")
    return [clearer("P", job_id), filled]


def everybody_has_a_parent(arena: Arena, run: Run) -> list[str]:
    """No purge would find another: it begins with those that have none."""
    text = (
        "SELECT id FROM fanin.job AS c WHERE parent_id IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM fanin.job AS p WHERE p.id = c.parent_id)"
    )
    return [f"its parent was purged: {row}" for row in select(arena.store, text)]


@race("a purge and a handler that starts a job", "P=PURGED C=REFUSED", "P=KEPT live C=NEW", also=everybody_has_a_parent)
def purge_and_child(arena: Arena) -> list[Actor]:
    """A job could be left whose parent is gone, for ever. The handler is one that nobody could stop."""
    job_id, members = old(arena)
    child = arena.new("child", parent_id=job_id, root_id=job_id, depth=1, successor=None, parent_bucket=BUCKET)
    return [purger("P", members), creator("C", child, 1)]


@race("a purge of a flow and its redrive", "P=PURGED R=UNKNOWN", "P=KEPT live R=2", preemptions=1, always=2)
def purge_and_flow_again(arena: Arena) -> list[Actor]:
    """Jobs of a flow that has just been run again could be removed."""
    flow_id = arena.flow({"a": "", "b": "a"})
    arena.ended("fail")
    claim_id, events = arena.taken()
    arena.store.run(lambda: outbox.settle(BUCKET, claim_id, [outbox.Said(one.key, "mark") for one in events]))
    members = arena.store.read(lambda: purge.flow_tree([BUCKET], (BUCKET, flow_id)))

    def purges() -> Script:
        found = yield lambda: purge.purge([BUCKET], members, 0.0, flow=(BUCKET, flow_id))
        return "PURGED" if found.kept is None else f"KEPT {found.kept}"

    def again() -> Script:
        try:
            run = yield lambda: flow.run_again(BUCKET, flow_id, 1)
        except UnknownJob:
            return "UNKNOWN"
        return str(run)

    return [Actor("P", purges), Actor("R", again)]
