"""Jobs to start a test from, on either database, and ordinary workers to finish what a test left."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import msgspec

from fanin.domain import limits
from fanin.domain.effects import Intent
from fanin.domain.events import Event
from fanin.domain.flows import BATCH, EXPAND
from fanin.domain.identity import firing_id, keyed_job_id, nested_id, refused_id
from fanin.domain.model import Claim, Fired, NewJob, Report, Settled, Spec
from fanin.domain.policy import Policy
from fanin.protocol import close, effect, finish, flow, lease, nest, outbox, pause, schedule, submit
from fanin.protocol.deeds import Deed
from fanin.protocol.effect import Begun, Call
from fanin.protocol.exchange import Exchanged, exchange
from fanin.protocol.nest import Nested
from fanin.protocol.steps import TxnFactory
from fanin.stores.base import Store
from fanin.testing.invariants import FORGET
from fanin.testing.state import TABLES, execute, select
from tests.protocol import flows

BUCKET = 0
QUEUE, TASK, THEN = "default", "work", "assemble"
LEASES = {TASK: 600.0, THEN: 600.0, EXPAND: 600.0, BATCH: 600.0}
LAPSED = {TASK: -1.0, THEN: -1.0}
ROUNDS = 20


def succeed(claim: Claim) -> Report:
    """A report whose result names its claim, so that a result of somebody else can be seen."""
    return Report(claim, "succeed", result=f'"{claim.claim_id}"')


class Stage:
    """A database with the witness installed. Ids are the same in every run, so that states can be compared."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._numbers = itertools.count(1)

    def clear(self) -> None:
        execute(self.store, *(f"DELETE FROM fanin.{table}" for table in reversed(TABLES)), FORGET)

    def new(self, name: str = "job", **options: Any) -> NewJob:
        values: dict[str, Any] = {
            "id": keyed_job_id(name), "bucket": BUCKET, "task": TASK, "queue": QUEUE, "key": name,
            "request_hash": "hash of " + name, "successor": msgspec.json.encode(Spec(task=THEN)).decode(),
        }  # fmt: skip
        rule = options.pop("policy", None)
        if isinstance(rule, Policy):
            values["policy"] = msgspec.json.encode(rule).decode()
        return NewJob(**{**values, **options})

    def job(self, parts: int, name: str = "job", **options: Any) -> str:
        """A running job with so many pending parts."""
        job = self.new(name, **options)
        self.store.run(lambda: submit.create(job, parts, lambda: [["1"] * parts] if parts else []))
        return job.id

    def open(self, parts: int, name: str = "job", **options: Any) -> str:
        """An open job with so many pending parts."""
        job = self.new(name, **{"give_up_after": 3600.0, **options})
        self.store.run(lambda: submit.open_job(job))
        self.store.run(lambda: submit.append(BUCKET, job.id, 0, ["1"] * parts))
        return job.id

    def claims(self, count: int, leases: dict[str, float] = LEASES) -> list[Claim]:
        """Claim exactly so many parts, each under a claim id of its own, before the deadlines of their jobs."""
        self._move_deadlines(1_000_000)
        found = [self.store.run(self.claiming(leases))[0] for _ in range(count)]
        self._move_deadlines(-1_000_000)
        assert len(found) == count
        return found

    def _move_deadlines(self, seconds: int) -> None:
        for table in ("job", "flow"):
            execute(self.store, f"UPDATE fanin.{table} SET give_up_at = give_up_at + {seconds} WHERE give_up_at > 0")

    def claiming(self, leases: dict[str, float] = LEASES, limit: int = 1) -> TxnFactory[list[Claim]]:
        claim_id = self._claim_id()
        return lambda: lease.claim(BUCKET, QUEUE, leases, limit, claim_id, "w")

    def exchanging(
        self, reports: Sequence[Report], limit: int = 10, stepwise: set[str] | None = None
    ) -> TxnFactory[Exchanged]:
        claim_id = self._claim_id()
        return lambda: exchange(BUCKET, reports, [QUEUE], LEASES, limit, claim_id, "w", stepwise)

    def settled(self, reports: Sequence[Report]) -> list[Settled]:
        return self.store.run(lambda: finish.settle(BUCKET, reports, "w"))

    def nested(self, held: Claim, name: str = "nested", **options: Any) -> NewJob:
        """The job that a held part ends with."""
        own = self.new(name, key=None, successor=None, parent_id=held.job_id, root_id=held.job_id)
        own = msgspec.structs.replace(
            own, id=nested_id(held.job_id, held.idx), depth=1, waiter_id=held.job_id, waiter_idx=held.idx
        )
        rule = options.pop("policy", None)
        if rule is not None:
            options["policy"] = msgspec.json.encode(rule).decode()
        return msgspec.structs.replace(own, **options)

    def nesting(self, held: Claim, parts: int = 1, anew: str = "", **options: Any) -> TxnFactory[tuple[Nested, str]]:
        """The holder of a part that ends with a job of so many parts. ``anew``: of other items than before."""
        job = self.nested(held, **options)
        if anew:
            job = msgspec.structs.replace(job, id=nested_id(held.job_id, held.idx, anew))
        return lambda: nest.nest(held, job, parts, lambda: [["1"] * parts] if parts else [], bool(anew))

    def refusing(self, held: Claim) -> TxnFactory[None]:
        """The holder of a part that would end with a job which may not be."""
        job = msgspec.structs.replace(self.nested(held), id=refused_id(held.job_id, held.idx, 1))
        return lambda: nest.refuse(held, job, "too wide")

    def waiting(self, held: Claim, parts: int = 1, **options: Any) -> str:
        """The part waits for a job of so many parts. Its id."""
        outcome, job_id = self.store.run(self.nesting(held, parts, **options))
        assert outcome is Nested.WAITS
        return job_id

    def events(self, count: int) -> None:
        """So many jobs that have ended, each with its event."""
        for n in range(count):
            self.job(0, f"ended {n}", successor=None)

    def taking(self, lease: float = 60.0, limit: int = 10, claim_id: str | None = None) -> TxnFactory[list[Event]]:
        claim_id = claim_id or self._claim_id()
        return lambda: outbox.take(BUCKET, limit, lease, claim_id, "r")

    def taken(self, lease: float = 60.0, limit: int = 10) -> tuple[str, list[Event]]:
        """A relay's claim: its id and its events."""
        claim_id = self._claim_id()
        return claim_id, self.store.run(self.taking(lease, limit, claim_id))

    def wear_out(self, count: int) -> None:
        """So many events have been lost with their relays as often as is allowed."""
        for _ in range(limits.EVENT_TRIES):
            self.taken(lease=-1.0, limit=count)

    def beginning(self, held: Claim, intent: Intent, seconds: float = 60.0) -> TxnFactory[Begun]:
        """The holder of a part that is about to call."""
        caller_id = self._claim_id()
        return lambda: effect.begin(held, intent, caller_id, "w", seconds)

    def begun(self, held: Claim, intent: Intent, seconds: float = 60.0) -> Call:
        call = self.store.run(self.beginning(held, intent, seconds)).call
        assert call is not None
        return call

    def calling(self, name: str, limit: int = 10, seconds: float = 60.0) -> TxnFactory[list[Call]]:
        """A relay that is about to call effects of a name."""
        caller_id = self._claim_id()
        return lambda: effect.take(BUCKET, name, limit, caller_id, "r", seconds)

    def called(self, name: str, seconds: float = 60.0) -> Call:
        (call,) = self.store.run(self.calling(name, 1, seconds))
        return call

    def scheduled(self, name: str = "nightly") -> None:
        """A schedule whose mark stands at 0, so that every later slot has come."""
        self.store.run(lambda: schedule.declare(BUCKET, name, "{}", "{}"))
        execute(self.store, "UPDATE fanin.schedule SET mark = 0")

    def firing(
        self, at: float, seen: float = 0.0, overlap: str = "skip", by_hand: bool = False, parts: int = 1
    ) -> TxnFactory[Fired]:
        slot = schedule.Slot("nightly", at, seen, overlap=overlap, by_hand=by_hand)
        prepared = self.of_slot(at, by_hand, parts)
        return lambda: schedule.fire(BUCKET, slot, prepared)

    def of_slot(self, at: float, by_hand: bool = False, parts: int = 1) -> schedule.Prepared:
        """The job of a slot."""
        new = self.new(f"{at}", id=firing_id("nightly", at, by_hand), key=None, step="at/nightly", successor=None)
        return schedule.Prepared(new, parts, lambda: [["1"] * parts] if parts else [])

    def deed(self) -> Deed:
        return Deed(self._claim_id(), "kim", "why not")

    def paused(self, job_id: str, walked: bool = True) -> None:
        """Pause a job, and hold its parts back."""
        self.store.run(partial(pause.pause, BUCKET, job_id, self.deed()))
        while walked and self.store.run(partial(pause.walk, BUCKET, job_id)):
            pass

    def resumed(self, job_id: str) -> None:
        """Let a paused job go on, but none of its parts yet."""
        self.store.run(partial(pause.resume, BUCKET, job_id, self.deed()))

    def flow(self, steps: Mapping[str, str], **options: Any) -> str:
        """A flow of steps of one part, such as ``{"a": "", "b": "a"}``. Its id."""
        return flows.start(self.store, steps, task=TASK, queue=QUEUE, **options)

    def age(self) -> None:
        """Whatever was to start before a moment is too old now."""
        execute(self.store, "UPDATE fanin.job SET stale_at = 1 WHERE stale_at IS NOT NULL")

    def spend(self) -> None:
        """What is claimed was claimed for the last time."""
        execute(self.store, "UPDATE fanin.part SET attempts_allowed = attempt WHERE status = 'running'")

    def step(self) -> Claim:
        """The part of a step, or of an undo, that is ready."""
        (held,) = self.claims(1)
        return held

    def ended(self, *verbs: str) -> None:
        """The steps, or undos, that are ready end so, one after the other."""
        for verb in verbs:
            held = self.step()
            error = '{"type": "E", "message": "m", "traceback": ""}'
            self.settled([succeed(held) if verb == "succeed" else Report(held, verb, error=error)])

    def stopped(self, flow_id: str) -> None:
        """The flow has been cancelled, with the jobs of its steps."""
        flows.cancel(self.store, flow_id)

    def _done(self, held: Claim) -> Report | None:
        """What a worker says of a part when it has run it: nothing of a batch that waits for its job."""
        if held.task != BATCH:
            return succeed(held)
        outcome, _ = self.store.run(lambda: nest.rejoin(held, self.nested(held)))
        ends = {Nested.COMPLETED: succeed(held), Nested.FAILED: Report(held, "fail", error='{"type": "E"}')}
        return ends.get(outcome)

    def _claim_id(self) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"claim/{next(self._numbers)}"))

    def drain(self) -> None:
        """Ordinary workers, until there is nothing left to do: every lease that is still held runs out at once, and
        every pause is over."""
        for row in select(self.store, "SELECT id FROM fanin.job WHERE paused_at IS NOT NULL"):
            self.store.run(partial(pause.resume, BUCKET, str(row["id"]), self.deed()))
        execute(self.store, "UPDATE fanin.part SET due_at = 0 WHERE status = 'running' AND NOT ready AND NOT waiting")
        for _ in range(ROUNDS):
            self.store.run(lambda: lease.wake(BUCKET))
            busy = 0
            for job_id, idx, attempt in sorted(self.store.read(lambda: lease.spent(BUCKET))):
                busy += self.store.run(partial(finish.reap, BUCKET, [(job_id, idx, attempt)]))
            for job_id in self.store.read(lambda: pause.walking(BUCKET)):
                busy += 1 + self.store.run(partial(pause.walk, BUCKET, job_id))
            claims = self.store.run(self.claiming(limit=100))
            for _, mine in groupby(claims, key=lambda claim: claim.job_id):
                self.settled([report for claim in mine if (report := self._done(claim)) is not None])
            for job_id, stripe in self.store.read(lambda: close.unswept(BUCKET)):
                busy += self.store.run(partial(close.sweep, BUCKET, job_id, stripe))
            for job_id, idx in self.store.read(lambda: nest.orphans(BUCKET)):
                for left in self.store.read(partial(nest.left_behind, BUCKET, job_id, idx)):
                    self.store.run(partial(nest.abandon, BUCKET, left, job_id, idx))
                busy += self.store.run(partial(nest.forget, BUCKET, job_id, idx))
            for job_id in self.store.read(lambda: close.overdue(BUCKET)):
                busy += self.store.run(partial(close.give_up, BUCKET, job_id))
            for flow_id in self.store.read(lambda: flow.overdue(BUCKET)):
                busy += self.store.run(partial(flow.give_up, BUCKET, flow_id))
            for job_id in self.store.read(lambda: close.stale(BUCKET)):
                busy += self.store.run(partial(close.too_old, BUCKET, job_id))
            for job_id in self.store.read(lambda: flow.left_running(BUCKET)):
                busy += self.store.run(partial(flow.end_running, BUCKET, job_id))
            if not busy and not claims:
                return
        raise AssertionError(f"still not at rest after {ROUNDS} rounds")
