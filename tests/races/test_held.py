"""Whoever decides on counters has locked them first: a count that comes now waits for the decision."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fanin.domain.model import Claim, Report
from fanin.domain.policy import Policy
from fanin.protocol import close, finish, pause, purge, redrive, skip, submit
from fanin.protocol.steps import Query, Txn, TxnFactory
from fanin.testing.stepper import Session, Watcher, once
from tests.races.arena import Arena
from tests.races.stage import BUCKET


def made(arena: Arena, parts: int, **options: object) -> tuple[str, list[Claim]]:
    job_id = arena.job(parts, successor=None, stripes=2, **options)  # type: ignore[arg-type]
    return job_id, arena.claims(parts)


def cancels(arena: Arena) -> TxnFactory[object]:
    job_id, _ = made(arena, 2)
    return lambda: close.cancel(BUCKET, job_id)


def seals(arena: Arena) -> TxnFactory[object]:
    job_id = arena.open(2, stripes=2)
    return lambda: submit.seal(BUCKET, job_id, 2, None, False)


def judges(arena: Arena) -> TxnFactory[object]:
    _, (one, *_) = made(arena, 3, policy=Policy(fail_fast=True))
    return lambda: finish.settle(BUCKET, [Report(one, "fail")], "w")


def redrives(arena: Arena) -> TxnFactory[object]:
    job_id, claims = made(arena, 2)
    arena.settled([Report(claim, "fail") for claim in claims])
    return lambda: redrive.redrive(BUCKET, job_id, 1, 1)


def sweeps(arena: Arena) -> TxnFactory[object]:
    job_id, _ = made(arena, 2)
    arena.store.run(lambda: close.cancel(BUCKET, job_id))
    return lambda: close.sweep(BUCKET, job_id, 0)


def purges(arena: Arena) -> TxnFactory[object]:
    job_id, claims = made(arena, 2)
    arena.settled([Report(claim, "fail") for claim in claims])
    return lambda: purge.purge([BUCKET], [(BUCKET, job_id)], 0.0, unsent=True)


def counting(stripe: int) -> TxnFactory[None]:
    query = Query(
        "test", "count", (), {"pg": "SELECT 1 FROM fanin.job_stripe WHERE stripe = :stripe FOR NO KEY UPDATE"}
    )

    def txn() -> Txn[None]:
        yield query(stripe=stripe)

    return txn


CASES: dict[str, tuple[Callable[[Arena], TxnFactory[object]], str, tuple[int, ...]]] = {
    "cancel": (cancels, "close.standing", (0, 1)),
    "seal": (seals, "submit.seal_stripes", (0, 1)),
    "judge": (judges, "counting.count_down", (0, 1)),
    "redrive": (redrives, "redrive.standing", (0, 1)),
    "sweep": (sweeps, "close.sweep_parts", (0,)),
    "purge": (purges, "purge.assess", (0, 1)),
}
"""Who decides, before which statement, and on which counters."""


@pytest.mark.parametrize("name", CASES)
def test_who_decides_holds_the_counters(arena: Arena, name: str) -> None:
    stage, before, stripes = CASES[name]
    deciding = stage(arena)
    watcher = Watcher(arena.store)
    decider, *counters = sessions = [Session(arena.store, "D", watcher)] + [
        Session(arena.store, f"C{stripe}", watcher) for stripe in stripes
    ]
    try:
        decider.play(once(deciding))
        decider.hold(before)
        for stripe, counter in zip(stripes, counters, strict=True):
            counter.play(once(counting(stripe)))
            assert not counter.step([decider.pid]), f"counter {stripe} is free while {name} decides"
        decider.finish()
        for counter in counters:
            counter.finish()
    finally:
        for session in sessions:
            session.close()
        watcher.close()


LOCKS = {
    "part": "SELECT 1 FROM fanin.part FOR NO KEY UPDATE",
    "job": "SELECT 1 FROM fanin.job FOR NO KEY UPDATE",
    "flow": "SELECT 1 FROM fanin.flow FOR NO KEY UPDATE",
}


def ends_for_its_age(arena: Arena) -> TxnFactory[object]:
    arena.job(1, successor=None, stale_after=-1.0, stale="skip")
    (job_id,) = arena.store.read(lambda: close.stale(BUCKET))
    return lambda: close.too_old(BUCKET, job_id)


def purges_a_flow(arena: Arena) -> TxnFactory[object]:
    flow_id = arena.flow({"a": ""})
    arena.ended("succeed")
    members = arena.store.read(lambda: purge.flow_tree([BUCKET], (BUCKET, flow_id)))
    return lambda: purge.purge([BUCKET], members, 0.0, unsent=True, flow=(BUCKET, flow_id))


def pauses(arena: Arena) -> TxnFactory[object]:
    job_id, deed = arena.job(1), arena.deed()
    return lambda: pause.pause(BUCKET, job_id, deed)


def skips(arena: Arena) -> TxnFactory[object]:
    job_id, deed = arena.job(1), arena.deed()
    return lambda: skip.skip(BUCKET, job_id, 0, "1", deed)


@pytest.mark.parametrize(
    ("stage", "before", "what"),
    [
        (ends_for_its_age, "close.lock_all_stripes", "part"),
        (purges_a_flow, "purge.assess", "flow"),
        (pauses, "deeds.written", "job"),
        (skips, "deeds.written", "part"),
    ],
    ids=["age", "purge", "pause", "skip"],
)
def test_who_decides_holds_what_it_decides_on(
    arena: Arena, stage: Callable[[Arena], TxnFactory[object]], before: str, what: str
) -> None:
    deciding = stage(arena)
    query = Query("test", "lock", (), {"pg": LOCKS[what]})

    def other() -> Txn[None]:
        yield query()

    watcher = Watcher(arena.store)
    decider, waiter = sessions = [Session(arena.store, name, watcher) for name in "DW"]
    try:
        decider.play(once(deciding))
        decider.hold(before)
        waiter.play(once(other))
        assert not waiter.step([decider.pid]), f"the {what} is free"
        decider.finish()
        waiter.finish()
    finally:
        for session in sessions:
            session.close()
        watcher.close()


def test_who_decides_a_slot_holds_its_schedule(arena: Arena) -> None:
    """Another scheduler waits before it looks at the mark, and finds it moved."""
    arena.scheduled()
    watcher = Watcher(arena.store)
    first, second = sessions = [Session(arena.store, name, watcher) for name in "AB"]
    try:
        first.play(once(arena.firing(1.0)))
        first.hold("submit.create_job")
        second.play(once(arena.firing(1.0)))
        assert not second.step([first.pid]), "the schedule is free while a slot is decided"
        first.finish()
        second.finish()
    finally:
        for session in sessions:
            session.close()
        watcher.close()
