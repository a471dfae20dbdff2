"""Kind P: deadlines."""

from __future__ import annotations

import pytest

import fanin
from fanin.domain.identity import successor_id
from fanin.domain.model import Claim, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import close
from fanin.runtime import upkeep
from fanin.stores.base import Store
from fanin.testing.clock import Clock as DatabaseClock
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    claim,
    claim_all,
    done,
    ending,
    events,
    job,
    log,
    make,
    make_open,
    say,
    settle,
    snapshot,
    states,
    verdicts,
)
from tests.runtime.working import working


def given_up(store: Store, clock: Clock, policy: str) -> tuple[str, list[Claim], list[Claim]]:
    """A job of ten parts at its deadline: six have succeeded, two run, two wait. The held ones of both kinds."""
    job_id = make(store, 10, policy=Policy(tolerate=10, give_up=policy), give_up_after=60.0, then=THEN)
    held = [one for _ in range(8) for one in claim(store, 1, seconds=600.0)]
    settle(store, *map(done, held[:6]))
    clock.advance(61)
    assert store.run(lambda: close.give_up(0, job_id))
    return job_id, held[:6], held[6:]


@pytest.mark.parametrize(("policy", "end"), [("proceed", ("completed", "partial")), ("abandon", ("failed", "gave_up"))])
def test_F107_a_deadline_ends_a_job_with_what_there_is(
    store: Store, clock: Clock, policy: str, end: tuple[str, str]
) -> None:
    job_id, _, _ = given_up(store, clock, policy)
    assert ending(store, job_id) == end
    while upkeep.once(store, 0):
        pass
    assert states(store, job_id) == ["succeeded"] * 6 + ["abandoned"] * 4
    (event,) = events(store, job_id)
    assert (event["succeeded"], event["failed"], event["abandoned"]) == (6, 0, 4)
    assert "deadline" in event["reason"]
    child = say(store, "SELECT count(*) FROM fanin.job WHERE id = :id", id=successor_id(job_id, "then", 1))
    assert child == [(1 if policy == "proceed" else 0,)]
    assert not store.run(lambda: close.give_up(0, job_id))


def test_F107_a_deadline_of_zero_fires_at_once_and_one_before_now_is_refused(app: fanin.App) -> None:
    """a deadline is a duration: zero is the only one that has passed already"""

    @app.task
    def work(x: int) -> int:
        return x

    job = app.map(work, range(3), give_up_after=0, delay=3600)
    with working(app):
        job.wait(90)
    assert (job.status, job.row().outcome) == ("failed", "gave_up")
    assert (job.account()["events"], job.account()["attempts"]) == (1, 0)
    with pytest.raises(fanin.BadOption, match="zero or more"):
        app.map(work, [1], give_up_after=-1)
    assert len(app.jobs()) == 1


@pytest.mark.parametrize("late", [1.0, 3600.0], ids=["a second", "an hour"])
@pytest.mark.parametrize("swept", [False, True], ids=["not swept", "swept"])
def test_F108_a_result_that_comes_after_the_deadline_changes_nothing(
    store: Store, clock: Clock, late: float, swept: bool
) -> None:
    """it is refused as late, which stands in the history; also of an attempt whose lease has run out meanwhile"""
    job_id, heard, held = given_up(store, clock, "proceed")
    clock.advance(late)
    while swept and upkeep.once(store, 0):
        pass
    before = {name: rows for name, rows in snapshot(store).items() if name != "attempt_log"}
    assert verdicts(store, *map(done, held)) == [Verdict.CLOSED, Verdict.CLOSED]
    assert verdicts(store, done(heard[0])) == [Verdict.REPLAY]
    assert {name: rows for name, rows in snapshot(store).items() if name != "attempt_log"} == before
    assert [(idx, what) for idx, _, what in log(store, job_id) if what == "refused"] == [(6, "refused"), (7, "refused")]
    assert claim_all(store) == []


@pytest.mark.parametrize("taken", [0, 2], ids=["no part was ever taken", "two parts were lost"])
def test_F109_nobody_is_awake_at_the_deadline(store: Store, clock: Clock, taken: int) -> None:
    """no part is handed out after it, also before anybody has looked after deadlines; the first look ends the job"""
    job_id = make(store, 4, give_up_after=60.0, priority=5)
    other = make(store, 1)
    if taken:
        claim(store, taken, seconds=30.0)
    clock.advance(3600)
    (mine,) = claim_all(store)
    assert mine.job_id == other, "what is behind it in the queue is not held up"
    assert job(store, job_id).status == "running"
    assert upkeep.once(store, 0)
    assert ending(store, job_id) == ("failed", "gave_up")
    while upkeep.once(store, 0):
        pass
    assert states(store, job_id) == ["abandoned"] * 4
    attempts = say(store, "SELECT max(attempt) FROM fanin.part WHERE job_id = :id", id=job_id)
    assert attempts == [(1 if taken else 0,)]


def test_F109_a_worker_that_wakes_an_hour_late_runs_none_of_it(app: fanin.App) -> None:
    ran: list[int] = []

    @app.task
    def work(x: int) -> int:
        ran.append(x)
        return x

    job = app.map(work, range(50), give_up_after="1m", give_up="proceed", tolerate=50, fail_fast=False)
    moved = DatabaseClock(app.store)
    moved.advance(3600)
    app.run_worker(until_idle=True)
    moved.reset()
    assert (job.status, job.row().outcome, ran) == ("completed", "partial", [])


def test_F109_an_open_job_hands_out_nothing_after_its_deadline_either(store: Store, clock: Clock) -> None:
    job_id = make_open(store, give_up_after=60.0)
    append(store, job_id, 0, 3)
    assert len(claim(store, 1)) == 1
    clock.advance(61)
    assert claim_all(store) == []
    assert store.run(lambda: close.give_up(0, job_id))
