"""Races of a purge: with who opens a run of the job, delivers its event, asks for its key, or purges too."""

from __future__ import annotations

from fanin.domain.errors import UnknownJob
from fanin.domain.model import Report
from fanin.protocol import flow, outbox, purge, redrive
from fanin.testing.explorer import Actor
from fanin.testing.stepper import Script
from tests.races.arena import Arena, creator, said
from tests.races.scenarios import race
from tests.races.stage import BUCKET


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
    """Removes portions until it is told that there are no more."""

    def script() -> Script:
        portions = 0
        while (yield lambda: purge.portion(BUCKET, job_id)):
            portions += 1
        return f"{portions}"

    return Actor(name, script)


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
