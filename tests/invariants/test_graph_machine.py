"""Any sequence of calls on nested, growing, paused and scheduled jobs and on a flow: both databases answer the same and
hold the same, all invariants hold after each, and in the end everything ends."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fanin.domain.errors import BadOption, KeyConflict, LeaseLost, LimitExceeded, NotAllowedNow
from fanin.domain.flows import EXPAND
from fanin.domain.identity import firing_id, keyed_job_id, nested_id
from fanin.domain.model import Claim, NewJob, Report
from fanin.domain.policy import Policy
from fanin.protocol import close, finish, flow, growth, lease, nest, pause, redrive, schedule, skip, submit
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Apart, TxnFactory
from fanin.runtime import upkeep
from fanin.stores import Store
from fanin.testing.clock import Clock
from fanin.testing.invariants import FORGET, violations
from fanin.testing.state import TABLES, dump, execute, select
from tests.invariants.test_machine import EXAMPLES, LEASE, NOON, QUEUE, SMALL, TASK, _plain, stores
from tests.protocol import flows
from tests.support.figures import record

__all__ = ["stores"]

SEQUENCES, STEPS = EXAMPLES // 2 or 12, 30
"""A sequence takes longer than one of the other machine: so many fewer of them."""
REFUSALS = (NotAllowedNow, KeyConflict, LeaseLost, LimitExceeded, BadOption, Apart)
LEASES = {TASK: LEASE, EXPAND: LEASE}
SHAPES = [
    {"a": "", "b": "a", "c": "b"},
    {"a": "", "b": "", "c": "a b", "d": "c"},
    {"a": "", "b": "a", "c": "a", "d": "b c"},
]
DEEPEST = 3
ERROR = '{"type":"E","message":"m","traceback":""}'


class Loud(logging.Handler):
    """What upkeep could not do is an error, not a line in a log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, line: logging.LogRecord) -> None:
        self.lines.append(f"{line.getMessage()} {line.exc_info and line.exc_info[1]!r}")


class Graph(RuleBasedStateMachine):
    """One step is one call, said to both databases."""

    stores: ClassVar[list[Store]]
    clocks: ClassVar[list[Clock]]
    seen: ClassVar[Counter[str]]
    loud: ClassVar[Loud]

    @initialize(
        shape=st.sampled_from(SHAPES), fail_fast=st.booleans(), undo=st.booleans(), policy=st.sampled_from(
            [Policy(), Policy(fail_fast=True), Policy(tolerate=1), Policy(quorum=1)]
        ), deadline=st.sampled_from([None, 100.0])
    )  # fmt: skip
    def begin(self, shape: dict[str, str], fail_fast: bool, undo: bool, policy: Policy, deadline: float | None) -> None:
        self.now, self.number = NOON, 0
        self.claims: list[Claim] = []
        self.loud.lines.clear()
        for store, clock in zip(self.stores, self.clocks, strict=True):
            execute(store, *(f"DELETE FROM fanin.{table}" for table in reversed(TABLES)), FORGET)
            clock.freeze(self.now)
        text = msgspec.json.encode(policy).decode()
        for name, width in (("top", None), ("grows", 6)):
            new = NewJob(
                id=keyed_job_id(name), bucket=0, task=TASK, queue=QUEUE, key=name, request_hash=name, attempts=2,
                policy=text if name == "top" else "{}", width=width, give_up_after=deadline,
            )  # fmt: skip
            assert self.both(partial(submit.create, new, 2, lambda: [['["x"]', '["y"]']])) is True
        names = list(shape)
        plan = flows.plan(
            shape, task=TASK, queue=QUEUE, fail_fast=fail_fast, undo=names[:2] if undo else [],
            manual=names[2:3] if undo else [], give_up_after=deadline, conditions={names[-1]: "any"},
        )  # fmt: skip
        self.flow_id, self.steps = plan.id, names
        assert self.both(lambda: flow.create(plan)) is True
        self.both(lambda: schedule.declare(0, "nightly", "{}", "{}"))

    def both(self, factory: TxnFactory[Any]) -> Any:
        """Run a transaction on both databases. Their common answer; None if both refuse it."""
        answers: list[Any] = []
        for store in self.stores:
            try:
                answers.append(store.run(factory))
            except REFUSALS as refusal:
                answers.append(type(refusal))
        assert answers[0] == answers[1], f"SQLite answers {answers[0]}, PostgreSQL {answers[1]}"
        refused = isinstance(answers[0], type)
        self.seen[f"refused: {answers[0].__name__}" if refused else "answered"] += 1
        return None if refused else answers[0]

    def fresh(self) -> str:
        self.number += 1
        return str(uuid.uuid5(uuid.NAMESPACE_OID, str(self.number)))

    def deed(self) -> Deed:
        return Deed(self.fresh(), "kim", None)

    def job(self, number: int) -> str:
        jobs = [row["id"] for row in select(self.stores[0], "SELECT id FROM fanin.job ORDER BY id")]
        return str(jobs[number % len(jobs)])

    def run_of(self, table: str, key: str) -> int:
        (row,) = select(self.stores[0], f"SELECT run FROM fanin.{table} WHERE id = '{key}'")
        return int(row["run"])

    def step(self, number: int) -> str:
        return self.steps[number % len(self.steps)]

    # Working.

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        claim_id = self.fresh()
        self.claims += self.both(lambda: lease.claim(0, QUEUE, LEASES, limit, claim_id, "w"))

    @precondition(lambda self: self.claims)
    @rule(number=SMALL, latest=st.booleans(), verb=st.sampled_from(["succeed", "succeed", "fail", "retry", "release"]))
    def report(self, number: int, latest: bool, verb: str) -> None:
        self.settle([self.held(number, latest)], verb)

    @precondition(lambda self: len(self.claims) > 1)
    @rule(verb=st.sampled_from(["succeed", "fail"]))
    def report_all(self, verb: str) -> None:
        """A batch over all jobs; if it goes up from one of them, part by part."""
        batch = list({claim.key: claim for claim in self.claims[-6:]}.values())
        if self.settle(batch, verb) is None:
            for claim in batch:
                self.settle([claim], verb)

    @precondition(lambda self: self.claims)
    @rule(number=SMALL, key=st.sampled_from("abcdef"), now=st.booleans())
    def spawn(self, number: int, key: str, now: bool) -> None:
        claim = self.held(number, True)
        items = tuple((str(uuid.uuid5(uuid.NAMESPACE_URL, one)), f'["{one}"]') for one in (key, "z"))
        if now:
            self.both(lambda: growth.spawn(claim, items))
        else:
            self.both(lambda: finish.settle(0, [Report(claim, "succeed", '"a"', spawns=items)], "w"))

    @precondition(lambda self: self.claims)
    @rule(number=SMALL, latest=st.booleans(), parts=st.integers(0, 2), quorum=st.booleans())
    def nest(self, number: int, latest: bool, parts: int, quorum: bool) -> None:
        claim = self.held(number, latest)
        rows = select(self.stores[0], f"SELECT depth, task FROM fanin.job WHERE id = '{claim.job_id}'")
        if not rows or rows[0]["depth"] >= DEEPEST:
            return
        nested = nested_id(claim.job_id, claim.idx)
        own = NewJob(
            id=nested, bucket=0, task=TASK, queue=QUEUE, request_hash=str(parts), attempts=2,
            policy=msgspec.json.encode(Policy(quorum=1 if quorum and parts else None)).decode(), priority=5,
            parent_id=claim.job_id, root_id=claim.job_id, depth=rows[0]["depth"] + 1, waiter_id=claim.job_id,
            waiter_idx=claim.idx,
        )  # fmt: skip
        self.both(lambda: nest.nest(claim, own, parts, lambda: [["1"] * parts] if parts else []))

    def held(self, number: int, latest: bool) -> Claim:
        among = self.claims[-4:] if latest else self.claims
        return among[number % len(among)]

    def settle(self, claims: list[Claim], verb: str) -> Any:
        said = [
            Report(c, verb, '"a"' if verb == "succeed" else None, None if verb == "succeed" else ERROR) for c in claims
        ]
        answers = self.both(lambda: finish.settle(0, said, "w"))
        self.seen.update(answer.verdict.name for answer in answers or ())
        return answers

    # Time and upkeep.

    @rule(seconds=st.sampled_from([10.0, 70.0]))
    def wait(self, seconds: float) -> None:
        self.time_passes(seconds)

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for clock in self.clocks:
            clock.freeze(self.now)

    @rule()
    def upkeep(self) -> None:
        assert len({upkeep.once(store, 0) for store in self.stores}) == 1

    # Operators.

    @rule(number=SMALL)
    def cancel(self, number: int) -> None:
        job_id = self.job(number)
        self.both(lambda: close.cancel(0, job_id))

    @rule(number=SMALL)
    def finish_now(self, number: int) -> None:
        job_id, deed = self.job(number), self.deed()
        self.both(lambda: close.finish_now(0, job_id, deed))

    @rule(number=SMALL)
    def redrive(self, number: int) -> None:
        job_id = self.job(number)
        run = self.run_of("job", job_id)
        self.both(lambda: redrive.redrive(0, job_id, run, 2))

    @rule(number=SMALL, on=st.booleans())
    def pause(self, number: int, on: bool) -> None:
        job_id, deed = self.job(number), self.deed()
        self.both(lambda: (pause.pause if on else pause.resume)(0, job_id, deed))

    @rule(number=SMALL, idx=st.integers(0, 2), failed=st.booleans())
    def skip(self, number: int, idx: int, failed: bool) -> None:
        job_id, deed = self.job(number), self.deed()
        rows = select(self.stores[0], f"SELECT idx FROM fanin.part WHERE job_id = '{job_id}' AND idx = {idx}")
        if rows:
            self.both(lambda: skip.skip(0, job_id, idx, None if failed else '"skipped"', deed))

    # The flow.

    @rule()
    def flow_cancel(self) -> None:
        self.both(partial(flow.cancel, 0, self.flow_id, self.deed()))

    @rule(late=st.booleans())
    def flow_again(self, late: bool) -> None:
        run = max(1, self.run_of("flow", self.flow_id) - late)
        self.both(partial(flow.run_again, 0, self.flow_id, run, done=self.deed()))

    @rule(number=SMALL, status=st.sampled_from(["undone", "nothing_to_undo"]))
    def flow_resolve(self, number: int, status: str) -> None:
        self.both(partial(flow.resolve, 0, self.flow_id, self.step(number), status, self.deed()))

    @rule(number=SMALL)
    def flow_undo_again(self, number: int) -> None:
        self.both(partial(flow.undo_again, 0, self.flow_id, self.step(number), self.deed()))

    # The schedule.

    @rule(overlap=st.sampled_from(["skip", "queue", "allow"]), parts=st.integers(0, 1), late=st.booleans())
    def fire(self, overlap: str, parts: int, late: bool) -> None:
        (row,) = select(self.stores[0], "SELECT mark FROM fanin.schedule")
        self.slot(schedule.Slot("nightly", row["mark"] + 10.0, row["mark"] - late, overlap=overlap), parts)

    @rule(parts=st.integers(0, 1))
    def fire_by_hand(self, parts: int) -> None:
        self.time_passes(1.0)  # two requests are two moments
        at = self.both(lambda: schedule.ask(0, "nightly"))
        self.slot(schedule.Slot("nightly", at, by_hand=True), parts)

    @rule(on=st.booleans())
    def schedule_pause(self, on: bool) -> None:
        self.both(lambda: schedule.pause(0, "nightly", "why") if on else schedule.resume(0, "nightly"))

    def slot(self, slot: schedule.Slot, parts: int) -> None:
        new = NewJob(
            id=firing_id("nightly", slot.at, slot.by_hand), bucket=0, task=TASK, queue=QUEUE, step="at/nightly",
            attempts=2, request_hash="slot",
        )  # fmt: skip
        prepared = schedule.Prepared(new, parts, lambda: [["1"] * parts] if parts else [])
        self.seen[str(self.both(lambda: schedule.fire(0, slot, prepared)).what)] += 1

    # What must hold after every step, and in the end.

    @invariant()
    def all_invariants_hold(self) -> None:
        assert self.loud.lines == []
        for store in self.stores:
            broken = violations(store, history=True)
            assert not broken, f"{store.dialect}: {broken}"

    @invariant()
    def both_databases_hold_the_same(self) -> None:
        one, two = ({table: sorted(map(_plain, rows)) for table, rows in dump(s).items()} for s in self.stores)
        assert one == two

    def teardown(self) -> None:
        """Healthy workers, upkeep, and an operator who ends every pause: all jobs end, and so does the flow."""
        if not hasattr(self, "flow_id"):
            return
        for row in select(self.stores[0], "SELECT id FROM fanin.job WHERE paused_at IS NOT NULL"):
            self.both(partial(pause.resume, 0, str(row["id"]), self.deed()))
        for _ in range(60):
            self.time_passes(LEASE * 2)
            busy = {upkeep.once(store, 0) for store in self.stores}
            claim_id = self.fresh()
            claims = self.both(partial(lease.claim, 0, QUEUE, LEASES, 50, claim_id, "w"))
            for claim in claims:
                self.settle([claim], "succeed")
            if busy == {False} and not claims:
                break
        self.all_invariants_hold()
        live = select(self.stores[0], "SELECT id, status FROM fanin.job WHERE status IN ('open', 'running')")
        assert live == [], "these never end"
        (row,) = select(self.stores[0], f"SELECT status FROM fanin.flow WHERE id = '{self.flow_id}'")
        assert row["status"] not in ("running", "ending", "compensating"), f"the flow is {row['status']} for ever"
        self.seen[f"flow {row['status']}"] += 1


@pytest.fixture
def loud() -> Iterator[Loud]:
    handler = Loud()
    logging.getLogger("fanin").addHandler(handler)
    yield handler
    logging.getLogger("fanin").removeHandler(handler)


@pytest.mark.timeout(3600 if EXAMPLES else 600)
def test_both_databases_agree_about_trees_flows_and_schedules(stores: list[Store], loud: Loud) -> None:
    class Connected(Graph):
        pass

    Connected.stores = stores
    Connected.clocks = [Clock(store) for store in stores]
    Connected.seen = Counter()
    Connected.loud = loud
    run_state_machine_as_test(
        Connected,
        settings=settings(
            max_examples=SEQUENCES, stateful_step_count=STEPS, derandomize=not EXAMPLES,
            deadline=None, database=None, suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        ),
    )  # fmt: skip
    record("machine", graph_sequences=SEQUENCES, graph=dict(sorted(Connected.seen.items())))
