"""Kind O: several joins in a row or inside each other. Those that are undone are in `test_kind_sagas_o.py`."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.domain.flows import check_order
from fanin.protocol import close, finish, nest, redrive
from fanin.protocol.steps import TxnFactory
from fanin.runtime import upkeep
from fanin.stores.base import Store
from fanin.testing.inline import Inline
from fanin.testing.invariants import violations
from tests.faults.scale import scaled
from tests.protocol import flows
from tests.protocol.helpers import (
    Clock,
    cancel,
    claim_all,
    done,
    events,
    failed,
    say,
    settle,
    sweep_all,
)
from tests.protocol.test_nested import begin as nest_again
from tests.protocol.test_nested import waiting


@pytest.fixture
def in_hand(app: fanin.App) -> Iterator[Callable[[], Inline]]:
    """The parts of the application in the hands of the test, once its tasks are declared."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Inline(app)))


def kept_up(store: Store) -> None:
    for bucket in range(store.buckets):
        while upkeep.once(store, bucket):
            pass


def together(store: Store, *factories: TxnFactory[Any]) -> None:
    """All at once, each in a thread of its own."""
    barrier = threading.Barrier(len(factories))

    def one(factory: TxnFactory[Any]) -> None:
        barrier.wait(90)
        store.run(factory)

    threads = [threading.Thread(target=one, args=(factory,)) for factory in factories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)


@pytest.mark.parametrize("dependents", [1, scaled(100)])
def test_F098_whatever_waits_for_a_step_is_started_by_its_end_and_once(store: Store, dependents: int) -> None:
    """dependents are declared with the plan, never beside a step that is ending; all start in the transaction of its
    end, also where two ends come together"""
    behind = {f"d{n}": "a b" for n in range(dependents)}
    flow_id = flows.start(store, {"a": "", "b": "", **behind})
    held = claim_all(store)
    together(store, *(lambda one=one: finish.settle(0, [done(one)], "w") for one in held))
    assert Counter(flows.states(store, flow_id).values()) == {"done": 2, "running": dependents}
    born = say(store, "SELECT flow_step, count(*) FROM fanin.job GROUP BY flow_step")
    assert {count for _, count in born} == {1}
    assert len(born) == 2 + dependents


def test_F098_a_part_that_begins_to_wait_for_a_job_that_has_just_ended_has_its_end(store: Store) -> None:
    """the one dependent that comes later: it locks the job before it waits, and finds it ended"""
    held, nested_id = waiting(store, above=1)
    cancel(store, held.job_id)
    sweep_all(store)
    assert store.run(lambda: redrive.redrive(0, held.job_id, 1, 1)) == 2
    below, again = sorted(claim_all(store), key=lambda one: one.job_id != nested_id)
    settle(store, done(below))
    outcome, found = nest_again(store, again)
    assert (outcome, found) == (nest.Nested.COMPLETED, nested_id)


@pytest.mark.parametrize("condition", ["ok", "any", "failed"])
@pytest.mark.parametrize("end", ["done", "failed", "cancelled", "gave up", "skipped"])
def test_F099_a_step_whose_predecessor_ended_badly_starts_or_is_skipped_by_its_rule(
    store: Store, clock: Clock, end: str, condition: str
) -> None:
    steps = {"zero": "", "a": "zero", "b": "a", "c": "b"}
    flow_id = flows.start(store, steps, conditions={"b": condition, "a": "failed" if end == "skipped" else "ok"})
    flows.end(store, flow_id, "zero")
    if end != "skipped":
        job_id = flows.job_of(store, flow_id, "a")
        if end == "cancelled":
            store.run(lambda: close.cancel(0, job_id))
        elif end == "gave up":
            say(store, "UPDATE fanin.job SET give_up_at = 0 WHERE id = :id", id=job_id)
            assert store.run(lambda: close.give_up(0, job_id))
        else:
            flows.end(store, flow_id, "a", done if end == "done" else failed)
    bad = end in ("failed", "cancelled", "gave up")
    starts = {"ok": end == "done", "any": end != "skipped", "failed": bad}[condition]
    assert flows.states(store, flow_id)["b"] == ("running" if starts else "skipped")
    if starts:
        flows.end(store, flow_id, "b")
        flows.end(store, flow_id, "c")
    ended = flows.row(store, flow_id)
    assert ended.ended
    assert ended.status == ("failed" if bad and condition == "ok" else "completed")
    assert flows.states(store, flow_id)["c"] == ("done" if starts else "skipped")


def test_F099_an_unknown_predecessor_is_refused_and_nothing_is_written(app: fanin.App) -> None:
    @app.task
    def note(text: str) -> str:
        return text

    plan = app.flow("plan")
    plan.step(note, "x", after="never declared")
    with pytest.raises(fanin.BadOption, match="'never declared', which is no step of flow 'plan'"):
        plan.start()
    other = app.flow("other")
    theirs = other.step(note, "y")
    mixed = app.flow("mixed")
    mixed.step(note, "z", after=theirs)
    with pytest.raises(fanin.BadOption, match="no step of flow 'mixed'"):
        mixed.start()
    assert app.flows() == []
    assert app.jobs() == []


@pytest.mark.parametrize("twice", [False, True], ids=["each report three times", "a lost worker at each part"])
def test_F100_a_chain_whose_completions_are_replayed_has_each_stage_once(
    app: fanin.App, in_hand: Callable[[], Inline], twice: bool
) -> None:
    ran: list[str] = []
    stages = 6

    @app.task(attempts=2, backoff=0)
    def add(number: int) -> int:
        ran.append(f"{fanin.current().job_id}/{number}")
        return number + 1

    plan = app.flow("chain")
    step = plan.map(add, range(scaled(5)), name="s0")
    for n in range(1, stages):
        step = plan.map(add, step, name=f"s{n}")
    run = plan.start()
    inline = in_hand()
    if twice:
        inline.run_until_idle(deliver_twice=True)
    else:
        while (attempt := inline.claim()) is not None:
            attempt.run()
            first = attempt.commit()
            if attempt.found is not None and attempt.found.verb == "succeed":
                assert [attempt.commit().value for _ in range(2)] == ["replay", "replay"], first
            before = [one.status for one in run.steps()]
            assert before == sorted(before, key=["done", "running", "waiting"].index), "a stage began too early"
    assert run.status == "completed"
    assert list(run.job("s5").results()) == [n + stages for n in range(scaled(5))]
    assert set(Counter(ran).values()) == {2 if twice else 1}
    jobs = say(app.store, "SELECT flow_step, waiter_id IS NULL, count(*) FROM fanin.job GROUP BY flow_step, waiter_id")
    assert {count for *_, count in jobs} == {1}
    assert len(events(app.store, run.id)) == 1
    assert violations(app.store) == []


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
def test_F101_a_part_that_is_itself_a_job_ends_once_with_its_outcome(
    app: fanin.App, in_hand: Callable[[], Inline], how: str
) -> None:
    @app.task(attempts=1)
    def leaf(number: int) -> int:
        if how == "failed" and number == 3:
            raise fanin.Permanent("three")
        return number

    @app.task(attempts=2)
    def part(number: int) -> Any:
        return fanin.current().fan_out(leaf, range(7)) if number == 2 else number

    job = app.map(part, range(5), tolerate=1, fail_fast=False)
    inline = in_hand()
    while not job.children():
        attempt = inline.claim()
        assert attempt is not None
        attempt.run().commit()
    ((waits, worker_due),) = say(
        app.store, "SELECT waiting, due_at FROM fanin.part WHERE job_id = :id AND idx = 2", id=job.id
    )
    assert waits, "the part is a row that waits"
    assert worker_due == limits.NEVER_SECONDS, "nobody holds a lease on it"
    (nested,) = job.children()
    if how == "cancelled":
        assert nested.cancel("not wanted")
    inline.run_until_idle()
    assert (job.status, job.account()["ends"]) == ("completed", 1)
    if how == "completed":
        assert [list(found) if n == 2 else found for n, found in enumerate(job.results())] == [
            0, 1, list(range(7)), 3, 4,
        ]  # fmt: skip
        return
    assert [(one.idx, one.type) for one in job.failures()] == [(2, "NestedFailed")]
    ((attempt_no,),) = say(app.store, "SELECT attempt FROM fanin.part WHERE job_id = :id AND idx = 2", id=job.id)
    assert attempt_no == 1, "the end of the nested job is the end of the part"


def test_F104_a_cancel_runs_down_the_tree(app: fanin.App, in_hand: Callable[[], Inline]) -> None:
    started: list[str] = []

    @app.task
    def leaf(number: int) -> int:
        return number

    @app.task
    def joined(parts: fanin.Joined[int]) -> int:
        started.append(fanin.current().job_id)
        return sum(parts)

    @app.task
    def middle(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(leaf, range(5), then=joined)

    @app.task
    def top(number: int) -> fanin.FanOut:
        return fanin.current().fan_out(middle, range(4), then=joined)

    job = app.map(top, range(3), then=joined)
    inline = in_hand()
    ran: list[Any] = []
    told = None
    while len(started) < 1:  # until one job below has come to its join
        attempt = inline.claim()
        assert attempt is not None
        ran.append(attempt.run())
        attempt.commit()
        told = inline.claim()  # one more is held, and will hear of it
        if told is not None and len(started) < 1:
            told.run().commit()
            told = None
    held = told or inline.claim()
    assert held is not None
    known = len(started)
    before = {row.id: row.status for row in app.jobs(limit=1_000)}
    assert job.cancel("enough")
    kept_up(app.store)
    held.run()
    late = held.commit()
    assert late.value in ("closed", "lost")
    inline.run_until_idle()
    after = {row.id: row for row in app.jobs(limit=1_000)}
    assert all(row.ended for row in after.values())
    assert len(started) - known <= 1, "no join starts: only the one that was held already"
    assert set(after) == set(before), "no job was made after the cancel"
    for job_id, status in before.items():
        assert after[job_id].status == ("cancelled" if status == "running" else status)
        assert len(events(app.store, job_id)) == 1
    kept = say(app.store, "SELECT count(*) FROM fanin.part WHERE status = 'succeeded'")
    assert kept[0][0] > 0, "what was done keeps its result"
    live = say(app.store, "SELECT count(*) FROM fanin.part WHERE status IN ('pending', 'running')")
    assert live == [(0,)]


def test_F106_steps_that_wait_for_one_another_are_refused(app: fanin.App) -> None:
    @app.task
    def note(text: str) -> str:
        return text

    def plan(**after: str) -> fanin.Flow:
        made = app.flow("circle")
        for name, before in after.items():
            made.step(note, name, name=name, after=before)
        return made

    for names in ({"a": "a"}, {"a": "b", "b": "a"}, {"a": "c", "b": "a", "c": "b"}):
        with pytest.raises(fanin.BadOption, match="wait for one another"):
            plan(**names).start()
    assert app.flows() == []


def test_F106_the_longest_chain_is_checked_and_made_without_recursion(store: Store) -> None:
    """one transaction, and the end of a step locks no more of it than the flow's row"""
    names = [f"s{n}" for n in range(limits.FLOW_STEPS)]
    steps = {name: " ".join(names[max(n - 1, 0) : n]) for n, name in enumerate(names)}
    check_order({name: before.split() for name, before in steps.items()})
    with pytest.raises(fanin.BadOption, match="wait for one another"):
        check_order({name: before.split() for name, before in (steps | {"s0": names[-1]}).items()})
    if scaled(1) > 1:
        flow_id = flows.start(store, steps)
        flows.end(store, flow_id, "s0")
        assert Counter(flows.states(store, flow_id).values())["running"] == 1
        assert flows.cancel(store, flow_id)
        assert Counter(flows.states(store, flow_id).values()) == {"done": 1, "failed": 1, "skipped": len(names) - 2}
