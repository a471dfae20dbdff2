"""The database's clock is moved an hour and back, past leases, and stands still: at every statement, and under workers.

A wrong clock may cost another execution or an early end of a job; it never breaks a rule, counts twice or ends twice.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.domain.model import Settled, Verdict
from fanin.protocol import finish, lease
from fanin.protocol.steps import Statement
from fanin.stores import open_store
from fanin.stores.base import Store
from fanin.stores.postgres import PostgresStore
from fanin.testing.clock import Clock, follow
from fanin.testing.cuts import statements
from fanin.testing.invariants import FORGET, Judge, violations
from fanin.testing.state import Snapshot, select
from fanin.testing.stepper import Session, Watcher, once
from fanin.testing.tap import Tap, tap, untap
from tests.crashes.repairing import TABLE
from tests.crashes.table import every_second_row
from tests.faults.scale import scaled
from tests.faults.witness import Witness
from tests.races.stage import BUCKET, LEASES, TASK, Stage, succeed
from tests.runtime.working import until, working
from tests.support.figures import record
from tests.support.postgres import Server

SEED = int(os.environ.get("FANIN_STORM_SEED", "20240229"))
LONG = os.environ.get("FANIN_LONG") == "1"
NOON = 1_700_000_000.0
HOUR = 3600.0
MOVES = {"forward": HOUR, "back": -HOUR, "past a lease": LEASES[TASK] + 1}


@pytest.fixture
def moved(witnessed: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stage, Callable[[float], None]]]:
    """A stage at noon, and what sets its clock, also while a transaction of its store is under way."""
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)  # neighbours on different counters
    beside = open_store(witnessed.url) if witnessed.dialect == "pg" else witnessed
    clock = Clock(beside)
    clock.freeze(NOON)
    yield Stage(witnessed), clock.freeze
    if beside is not witnessed:
        beside.close()


class Moving(Tap):
    """Sets the clock before the ``at``-th statement."""

    def __init__(self, at: int, move: Callable[[], None]) -> None:
        self._left, self._move = at, move

    def before(self, statement: Statement) -> None:
        if self._left == 0:
            self._move()
        self._left -= 1


@pytest.mark.parametrize("name", every_second_row(1))
def test_the_clock_moves_at_every_statement_of_every_transaction(
    moved: tuple[Stage, Callable[[float], None]], name: str
) -> None:
    """and back at the second saying: no rule breaks, on the way and when workers have finished the rest.

    The short form moves it in one way at each statement, taken in turn; ``FANIN_LONG=1`` in all.
    """
    stage, freeze = moved
    store = stage.store
    factory = TABLE[name].stage(stage)
    start, judge = Snapshot(store), Judge()
    left = TABLE[name].left(judge.look(store).broken)
    count = len(statements(store, factory))
    moves = [
        (at, title, seconds) for at in range(count) for n, (title, seconds) in enumerate(MOVES.items())
        if LONG or at % len(MOVES) == n
    ]  # fmt: skip
    for at, title, seconds in moves:
        where = f"{title}, before statement {at} of {count}"
        start.restore(FORGET)
        tap(store, lambda: Moving(at, partial(freeze, NOON + seconds)))
        store.run(factory)
        untap(store)
        assert (broken := judge.look(store).broken) == left, f"{where}: {broken}"
        freeze(NOON)
        store.run(factory)
        assert (broken := judge.look(store).broken) == left, f"{where}, then said again: {broken}"
        if left:
            continue
        freeze(NOON + 3 * HOUR)
        stage.drain()
        assert not (broken := judge.look(store).broken), f"{where}, at rest: {broken}"
        live = select(store, "SELECT job_id FROM fanin.part WHERE status IN ('pending', 'running')")
        opened = select(store, "SELECT id FROM fanin.job WHERE status = 'open'")
        assert {row["job_id"] for row in live} <= {row["id"] for row in opened}, f"{where}: parts are left"
        freeze(NOON)
    record("clock", transactions={store.dialect: 1}, moves_between_statements={store.dialect: len(moves)})


def test_a_lease_ends_at_every_step_of_a_report_and_a_rival_claims_the_part(
    moved: tuple[Stage, Callable[[float], None]], pg_server: Server
) -> None:
    """stepped on two connections: one of the two reports is accepted, and the clock does not decide how often"""
    stage, freeze = moved
    store = stage.store
    assert isinstance(store, PostgresStore)
    job_id = stage.job(1)
    (held,) = stage.claims(1)
    start = Snapshot(store)
    watcher = Watcher(store)
    holder, rival = Session(store, "holder", watcher), Session(store, "rival", watcher)
    found: Counter[str] = Counter()

    def takes_over() -> Any:
        yield lambda: lease.wake(BUCKET)
        claims = yield stage.claiming()
        if not claims:
            return []
        return (yield lambda: finish.settle(BUCKET, [succeed(claim) for claim in claims], "rival"))

    steps = 0
    while True:
        start.restore(FORGET)
        freeze(NOON)
        holder.play(once(lambda: finish.settle(BUCKET, [succeed(held)], "holder")))
        for _ in range(steps):
            holder.step()
        if holder.done:
            break
        freeze(NOON + LEASES[TASK] + 1)
        rival.play(takes_over())
        while not rival.done:
            if not rival.step([holder.pid]):  # it waits for what the holder has locked
                holder.finish()
                rival.settle()
        holder.finish()
        answers: list[Settled] = [*holder.outcome, *rival.outcome]
        accepted = [a for a in answers if a.verdict is Verdict.LAST]
        assert len(accepted) == 1, f"after {steps} steps: {answers}"
        found["the holder's" if holder.outcome[0].verdict is Verdict.LAST else "the rival's"] += 1
        assert not (broken := violations(store, history=True)), f"after {steps} steps: {broken}"
        assert len(select(store, f"SELECT 1 AS one FROM fanin.outbox WHERE job_id = '{job_id}'")) == 1
        steps += 1
    for session in (holder, rival):
        session.close()
    watcher.close()
    assert found["the holder's"] > 0
    assert found["the rival's"] > 0
    record("clock", steps_of_a_report=steps, accepted=dict(found))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_workers_go_on_under_a_clock_that_jumps_and_stands_still(migrated_url: str, tmp_path: Path) -> None:
    """Retries, leases and deadlines are wrong by an hour again and again; then the clock runs on, and all has ended."""
    dice = random.Random(SEED)
    app, other = application(migrated_url), application(migrated_url)
    clock = Clock(app.store, str(tmp_path / "clock"))
    follow(other.store, str(tmp_path / "clock"))
    witness = Witness()
    ways: dict[str, Callable[[], None]] = {
        "forward": lambda: clock.advance(HOUR), "back": lambda: clock.advance(-HOUR), "frozen": clock.freeze,
        "past a lease": lambda: clock.advance(3.0), "true": clock.reset,
    }  # fmt: skip
    order = [way for _ in range(scaled(4)) for way in dice.sample(sorted(ways), len(ways))]
    jobs, doomed = [], []
    with app, other:
        with (
            working(app, concurrency=4, on_part=witness.on_part) as first,
            working(other, concurrency=4, on_part=witness.on_part) as second,
        ):
            for n, way in enumerate(order):
                jobs.append(app.map(app.tasks["work"], range(40), then=app.tasks["gather"], key=f"job {n}"))
                doomed.append(app.map(app.tasks["work"], [1], delay=10 * HOUR, give_up_after=HOUR / 2))
                seen, since = witness.count, time.monotonic()
                # Where the clock lets nothing become due, nothing is done: then it is time for the next move.
                until(lambda: witness.count > seen + 20 or time.monotonic() > since + 0.5, "they work")
                ways[way]()
            clock.advance(3 * HOUR)
            for job in [*jobs, *doomed]:
                until(lambda job=job: job.row().ended, "the job has ended")  # type: ignore[misc]
            for job in jobs:
                until(lambda job=job: job.successor and job.successor.row().ended, "the successor has ended")  # type: ignore[misc]
        for job in jobs:
            assert list(job.results()) == [x * x for x in range(40)]
            assert job.successor is not None
            assert job.successor.result() == sum(x * x for x in range(40))
            account = job.account()
            assert (account["events"], account["successors"]) == (1, 1)
        for job in doomed:
            assert (job.row().outcome, job.account()["events"]) == ("gave_up", 1)
        assert (witness.twice, witness.missing(app.store)) == ([], [])
        attempts = sum(job.account()["attempts"] for job in jobs)
        assert attempts > 40 * len(jobs), "each fails once at least, on purpose"
    record(
        "clock", moves_under_workers={app.store.dialect: len(order)}, executions=attempts, parts=40 * len(jobs),
        refused_reports=first.lost + second.lost, gave_up_once=len(doomed), counted_twice=0, seed=str(SEED),
    )  # fmt: skip


def application(url: str) -> fanin.App:
    app = fanin.App(url)

    @app.task(name="work", lease=2.0, attempts=1000, backoff=0.05)
    def work(x: int) -> int:
        time.sleep(0.3 if x == 5 else 0.002)  # some are held while the clock moves
        if x % 10 == 3 and fanin.current().attempt == 1:
            raise ValueError(x)
        return x * x

    @app.task(name="gather", lease=2.0, attempts=1000)
    def gather(found: fanin.Joined[int]) -> int:
        return sum(found)

    return app
