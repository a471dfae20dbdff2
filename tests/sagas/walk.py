"""Walk a flow to its end, one transaction of the product at a time, and let something happen after any of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from fanin.domain import identity
from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Claim, Report, Verdict
from fanin.protocol import advance, deeds, effect, finish, flow, lease
from fanin.runtime import upkeep
from fanin.runtime.effects import perform
from fanin.runtime.executors import run_handler
from fanin.runtime.expand import tasks_of
from fanin.runtime.outcome import Outcome
from fanin.runtime.part import Part
from fanin.stores.base import Store
from fanin.testing.state import execute
from tests.sagas.outside import Firm, Outside
from tests.sagas.shapes import SHAPES

BUCKET = 0
LEASE_SECONDS = 60.0
MOST_MOVES = 300
LAPSE = (
    "UPDATE fanin.part SET due_at = 1 WHERE status = 'running' AND NOT waiting",
    "UPDATE fanin.effect SET due_at = 1 WHERE status = 'calling'",
)
"""Every lease has run out, and so has the time of every call."""
HURRY = (
    "UPDATE fanin.part SET due_at = 1 WHERE status = 'pending' AND NOT ready",
    "UPDATE fanin.effect SET due_at = 1 WHERE status = 'registered'",
)
"""Every delay is over."""
UNDOS = ("back", "forget", "expand")


class Died(BaseException):
    """The process is gone, with all that it had in its hands."""


class Points:
    """The transactions of a store that changed something, counted; after the ``at``-th, ``then`` happens, once."""

    def __init__(self, store: Store) -> None:
        self._run = store.run
        self.start(-1, lambda: None)
        cast(Any, store).run = self._counted

    def start(self, at: int, then: Callable[[], None]) -> None:
        self._left, self._then = at, then
        self.acted = self.dead = False

    def _counted(self, factory: Any) -> Any:
        value = self._run(factory)
        if value and not self.acted:
            if self._left == 0:
                self.acted = True
                self._then()
            self._left -= 1
        return value


class Walk:
    """One case. ``held``: a worker claims all that is ready before it runs any of it, and runs the last first.
    ``lazy``: upkeep comes only when there is nothing else to do."""

    def __init__(
        self, firm: Firm, points: Points, shape: str, outside: Outside, *, held: bool = False, lazy: bool = False,
        words: dict[str, str] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.firm, self.store = firm, firm.app.store
        self.outside = firm.outside = outside
        self.words = dict(words or {})
        """What a person says of a step that is stuck: ``resolve`` if nothing stands here, ``abandon`` or ``retry``."""
        self.late: Callable[[Claim, Outcome], bool] = lambda claim, found: False
        """Whether the report of this attempt comes later, from somebody else."""
        self.stalls: Callable[[effect.Call], bool] = lambda call: False
        """Whether the call of this effect is made later, by somebody else."""
        self._points, self._held, self._lazy = points, held, lazy
        self.doubtful = bool(outside.silent or outside.stuck)
        """Whether it may be that only a person can say what has happened, or undo it."""
        self._hand: list[Claim] = []
        self._tasks = tasks_of(firm.app)
        points.start(-1, lambda: None)
        plan = firm.app.flow(shape, **options)
        SHAPES[shape].declare(firm, plan)
        self.run = plan.start()

    def act(self, at: int, then: Callable[[], None]) -> None:
        """Let this happen after so many transactions."""
        self._points.start(at, then)

    @property
    def acted(self) -> bool:
        return self._points.acted

    def go(self, until: Callable[[], bool] | None = None) -> bool:
        """To the end, or until a condition holds between two moves. False at the end."""
        for _ in range(MOST_MOVES):
            try:
                if until is not None and until():
                    return True
                if not self._move():
                    return False
            except Died:
                self._hand.clear()
                self.lapse()
        raise AssertionError(f"no end after {MOST_MOVES} moves")

    def told(self) -> str:
        """For whoever has to look at a case that went wrong."""
        steps = " ".join(f"{step.name}:{step.status}" for step in self.run.steps())
        deeds = " ".join(f"{what} {item}" for what, item, _ in self.outside.deeds)
        return f"{self.run.status} [{steps}] {deeds}"

    @property
    def undoing(self) -> bool:
        """Whether anything has been undone."""
        return any(what in ("undid", "person") for what, *_ in self.outside.deeds)

    def cancel(self) -> None:
        """A lazy upkeep finds the jobs cancelled, by whoever has stopped the flow; or he dies before that."""
        if self._lazy:
            self.run.cancel("enough")
        else:
            self.store.run(lambda: flow.cancel(BUCKET, self.run.id, deeds.deed(reason="enough")))

    def give_up(self) -> None:
        execute(self.store, f"UPDATE fanin.flow SET give_up_at = 1 WHERE id = '{self.run.id}' AND status = 'running'")
        self.store.run(lambda: flow.give_up(BUCKET, self.run.id))

    def nothing(self) -> None:
        """Things take their course."""

    def run_what_is_ready(self) -> None:
        """As another worker does."""
        while self._run_a_part():
            pass

    def die(self) -> None:
        self._points.dead = True
        raise Died

    def lapse(self) -> None:
        self.doubtful = True
        execute(self.store, *LAPSE)

    def report(self, claim: Claim, found: Outcome) -> Verdict | None:
        """What became of it; None for an outcome that is not reported."""
        if found.verb in ("waits", "lost"):
            return None
        report = Report(claim, found.verb, found.result, found.error, found.delay, found.effects, found.spawns)
        undoing = self.undoing
        (settled,) = self.store.run(lambda: finish.settle(BUCKET, [report], "w"))
        if settled.verdict in (Verdict.OK, Verdict.LAST) and undoing and _name(claim) not in UNDOS:
            self.outside.deeds.append(("went on", claim.task, ""))
        if settled.verdict in (Verdict.OK, Verdict.LAST) and found.result is not None and found.result[0] == '"':
            self.outside.accepted.add(found.result[1:-1])
        return settled.verdict

    def call(self, call: effect.Call) -> None:
        """Make the call of an effect, and say what came of it."""
        answer = perform(self.firm.app.effects[call.name], call)
        self.store.run(lambda: effect.settle(BUCKET, [answer.said(call)]))

    def _move(self) -> bool:
        """Something happens. False if nothing is left to happen."""
        if self.acted and not self._lazy and self._upkeep():
            return True
        return self._run_a_part() or self._call_an_effect() or self._upkeep() or self._hurry() or self._ask_a_person()

    def _upkeep(self) -> bool:
        return upkeep.once(self.store, BUCKET)

    def _run_a_part(self) -> bool:
        if not self._hand:
            leases, claim_id = dict.fromkeys(self._tasks, LEASE_SECONDS), identity.new_claim_id()
            most = 64 if self._held else 1
            self._hand = self.store.run(lambda: lease.claim(BUCKET, "default", leases, most, claim_id, "w"))
        if not self._hand:
            return False
        claim = self._hand.pop()
        task = self._tasks[claim.task]
        found = run_handler(task, claim, Part(claim, LEASE_SECONDS, self.store, task), self.store)
        if self._points.dead:  # a handler's outcome, whatever is raised in it
            self._points.dead = False
            raise Died
        if not self.late(claim, found):
            self.report(claim, found)
        return True

    def _call_an_effect(self) -> bool:
        names = sorted(self.firm.app.effects)
        due = self.store.read(lambda: effect.due_in(BUCKET, names))
        for name in names if due is not None and due <= 0 else ():
            caller_id = identity.new_claim_id()
            for call in self.store.run(partial(effect.take, BUCKET, name, 1, caller_id, "r", LEASE_SECONDS)):
                if not self.stalls(call):
                    self.call(call)
                return True
        return self.store.read(lambda: effect.overdue(BUCKET)) and bool(self.store.run(lambda: effect.expire(BUCKET)))

    def _hurry(self) -> bool:
        execute(self.store, *HURRY)
        return self._upkeep() or self._call_an_effect()

    def _ask_a_person(self) -> bool:
        """What a person would do who looks at what is there. Only one step at a time is theirs."""
        if self.run.status != "needs_attention":
            return False
        (step,) = [step for step in self.run.steps() if step.status in ("manual", "undo_failed")]
        assert step.job_id is not None
        for job_id in self.store.read(partial(advance.family, BUCKET, step.job_id)):
            for one in self.firm.app.job(job_id).effects():
                if one.status == "unknown":
                    where = (one.job_id, one.idx, one.name)
                    self.store.run(partial(effect.by_hand, BUCKET, where, one.key in self.outside.called, None, "saw"))
                    return True
        word = self.words.pop(step.name, "resolve")
        if word == "retry":
            try:
                self.run.undo_again(step.name)
                return True
            except NotAllowedNow:  # the undo itself has not failed, but something that it does not account for stands
                pass
        if word == "abandon":
            self.run.abandon_undo(step.name, "not worth it")
        else:
            self.outside.deeds.append(("person", f"{step.name}/", step.status))
            self.run.resolve(step.name, "by hand")
        return True


def _name(claim: Claim) -> str:
    return claim.task.rpartition(".")[2]
