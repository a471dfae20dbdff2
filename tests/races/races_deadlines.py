"""Races of deadlines and ages in flows and of successors, and of several steps before one that end at once."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain.errors import NotAllowedNow
from fanin.domain.identity import successor_id
from fanin.domain.model import Claim, Report, Spec
from fanin.protocol import close, flow
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.protocol import flows
from tests.races.arena import Arena, canceller, giver_up
from tests.races.races_flows import SHORT, ends, joined_once, once_each
from tests.races.races_graph import ended_once, late, stopper
from tests.races.races_stale import ender, older, stale_step
from tests.races.scenarios import race, three
from tests.races.stage import BUCKET, THEN


def again(name: str, flow_id: str, **options: Any) -> Actor:
    """A person runs the flow again."""

    def script() -> Script:
        try:
            run = yield lambda: flow.run_again(BUCKET, flow_id, 1, **options)
        except NotAllowedNow:
            return "REFUSED"
        return f"RUN {run}"

    return Actor(name, script)


# A flow has a deadline.


@race("the deadline of a flow and a cancel", "G=GAVE_UP B=NOTHING", "G=NOTHING B=STOPPED", also=ended_once)
def give_up_and_cancel_flow(arena: Arena) -> list[Actor]:
    """A flow is stopped twice, and says the wrong cause."""
    flow_id = arena.flow({"a": "", "b": "a"}, give_up_after=-1.0)
    return [late("G", flow_id), stopper("B", flow_id)]


@race("the deadline of a flow, said by two", "G=GAVE_UP H=NOTHING", "G=NOTHING H=GAVE_UP", also=ended_once)
def give_up_and_give_up_flow(arena: Arena) -> list[Actor]:
    """Every worker minds the deadlines: two of them stop the flow."""
    flow_id = arena.flow({"a": "", "b": "a"}, give_up_after=-1.0)
    return [late("G", flow_id), late("H", flow_id)]


@race("the deadline of a flow and a step that leads to another", "A=LAST G=GAVE_UP", also=ended_once, **SHORT)
def give_up_and_step(arena: Arena) -> list[Actor]:
    """A step starts in a flow that has given up."""
    flow_id = arena.flow({"a": "", "b": "a"}, give_up_after=-1.0, undo=["a"])
    return [ends(arena, "A"), late("G", flow_id)]


@race("the deadline of a flow and its last step that fails", "A=LAST G=GAVE_UP", "A=LAST G=NOTHING", also=ended_once,
      **SHORT)  # fmt: skip
def give_up_and_failure(arena: Arena) -> list[Actor]:
    """A flow fails and gives up."""
    flow_id = arena.flow({"a": ""}, give_up_after=-1.0)
    return [arena.fails("A", arena.step()), late("G", flow_id)]


@race("the old deadline of a flow that is run again", "R=RUN 2 G=NOTHING", also=once_each, **SHORT)
def give_up_of_the_run_before(arena: Arena) -> list[Actor]:
    """The new run gives up by the deadline of the old one."""
    flow_id = arena.flow({"a": "", "b": "a"}, give_up_after=-1.0)
    arena.ended("fail")
    return [again("R", flow_id), late("G", flow_id)]


@race("the new deadline of a flow that is run again", "R=RUN 2 G=GAVE_UP", "R=RUN 2 G=NOTHING", also=once_each, **SHORT)
def give_up_and_again(arena: Arena) -> list[Actor]:
    """A flow gives up in the middle of its new beginning, and nobody cancels what that starts."""
    flow_id = arena.flow({"a": "", "b": "a"}, give_up_after=-1.0)
    arena.ended("fail")
    return [again("R", flow_id, give_up_after=-1.0), late("G", flow_id)]


@three("a flow that is run again, its cancel and the end of the step that it has left", "R=RUN 2 B=STOPPED A=LAST",
       "R=RUN 2 B=NOTHING A=LAST", "R=REFUSED B=NOTHING A=LAST", also=once_each)  # fmt: skip
def again_cancel_and_step(arena: Arena) -> list[Actor]:
    """The step that was left ends in the new run, or nowhere, and the flow waits for it for ever."""
    flow_id = arena.flow({"a": "", "b": "", "c": "a b"})
    one, other = arena.claims(2)
    arena.settled([Report(one, "fail", error='{"type": "E"}')])
    return [again("R", flow_id), stopper("B", flow_id), arena.succeeds("A", other)]


# Several steps before one.


@three("the three last steps before one", "A=LAST B=LAST D=LAST", also=joined_once)
def three_steps_before_one(arena: Arena) -> list[Actor]:
    """What follows all three never starts, or starts twice."""
    arena.flow({"a": "", "b": "", "d": "", "c": "a b d"})
    one, two, more = arena.claims(3)
    return [arena.succeeds("A", one), arena.succeeds("B", two), arena.succeeds("D", more)]


@race("a step that waits for a failure, and the ends before it", "A=LAST B=LAST", also=joined_once, **SHORT)
def failure_is_awaited(arena: Arena) -> list[Actor]:
    """The failure that it waits for is not seen, and it is skipped, or the flow fails by it."""
    arena.flow({"a": "", "b": "", "c": "a b"}, conditions={"c": "failed"})
    one, two = arena.claims(2)
    return [arena.fails("A", one), arena.succeeds("B", two)]


def skipped_once(arena: Arena, run: Run) -> list[str]:
    rows = select(arena.store, "SELECT s.status, f.status AS flow FROM fanin.flow_step AS s JOIN fanin.flow AS f "
                               "ON f.id = s.flow_id WHERE s.name = 'c'")  # fmt: skip
    fine = rows == [{"status": "skipped", "flow": "completed"}]
    return once_each(arena, run) + ([] if fine else [f"what waits for a failure is {rows}"])


@race("a step that waits for a failure, and none comes", "A=LAST B=LAST", also=skipped_once, **SHORT)
def failure_never_comes(arena: Arena) -> list[Actor]:
    """It starts all the same, or the flow waits for it for ever."""
    arena.flow({"a": "", "b": "", "c": "a b"}, conditions={"c": "failed"})
    one, two = arena.claims(2)
    return [arena.succeeds("A", one), arena.succeeds("B", two)]


@race("a step that waits for a failure, and both fail", "A=LAST B=LAST", also=joined_once, **SHORT)
def failures_are_awaited(arena: Arena) -> list[Actor]:
    """It starts twice, once for each."""
    arena.flow({"a": "", "b": "", "c": "a b"}, conditions={"c": "failed"})
    one, two = arena.claims(2)
    return [arena.fails("A", one), arena.fails("B", two)]


@race("a step that waits for a failure, and the cancel of its flow", "A=LAST B=STOPPED", also=ended_once, **SHORT)
def awaited_failure_and_cancel(arena: Arena) -> list[Actor]:
    """What follows the failure starts in a flow that was cancelled."""
    flow_id = arena.flow({"a": "", "c": "a"}, conditions={"c": "failed"})
    return [arena.fails("A", arena.step()), stopper("B", flow_id)]


# A successor has a deadline, or an age.


def following(arena: Arena, **options: Any) -> tuple[str, Claim]:
    """The last part of a job, and the id of what follows it."""
    spec = Spec(task=THEN, **options)
    job_id = arena.job(1, successor=msgspec.json.encode(spec).decode())
    (last,) = arena.claims(1)
    return successor_id(job_id, spec.step, 1), last


@race("the deadline of a successor, and the end of the job before it", "A=LAST G=GAVE_UP", "A=LAST G=UNKNOWN", **SHORT)
def give_up_and_birth(arena: Arena) -> list[Actor]:
    """What has just been made is half ended."""
    then_id, last = following(arena, give_up_after=-1.0)
    return [arena.succeeds("A", last), giver_up("G", then_id)]


@race("the deadline of a successor and its end", "A=LAST G=LATE", "A=CLOSED G=GAVE_UP", **SHORT)
def give_up_and_successor(arena: Arena) -> list[Actor]:
    """The successor completes and gives up."""
    then_id, last = following(arena, give_up_after=-1.0)
    arena.settled([Report(last, "succeed", result=f'"{last.claim_id}"')])
    (own,) = arena.claims(1)
    return [arena.succeeds("A", own), giver_up("G", then_id)]


@race("the deadline of a successor below a part that waits, and its end", "A=LAST G=LATE", "A=CLOSED G=GAVE_UP",
      **SHORT)  # fmt: skip
def give_up_and_nested_successor(arena: Arena) -> list[Actor]:
    """The part that waits is settled by both, or by none."""
    arena.job(1, successor=None)
    (one,) = arena.claims(1)
    then = msgspec.json.encode(Spec(task=THEN, priority=5, give_up_after=-1.0)).decode()
    nested = arena.waiting(one, priority=5, successor=then)
    arena.ended("succeed")
    (own,) = arena.claims(1)
    return [arena.succeeds("A", own), giver_up("G", successor_id(nested, "then", 1))]


def old_successor(arena: Arena, stale: str = "skip", **options: Any) -> str:
    """It is too old now, and nobody has claimed it."""
    then_id, last = following(arena, stale_after=5.0, stale=stale, **options)
    arena.settled([Report(last, "succeed", result=f'"{last.claim_id}"')])
    arena.age()
    return then_id


@race("a successor that is too old, and its deadline", "G=GAVE_UP E=NOT", "G=LATE E=SKIPPED", **SHORT)
def too_old_and_give_up(arena: Arena) -> list[Actor]:
    """Both end it."""
    then_id = old_successor(arena, give_up_after=-1.0)
    return [giver_up("G", then_id), ender("E", then_id)]


@race("a successor that is too old and is to fail, and its cancel", "C=CANCELLED E=NOT", "C=LATE E=SKIPPED", **SHORT)
def too_old_fails_and_cancelled(arena: Arena) -> list[Actor]:
    """Both end it, with two causes."""
    then_id = old_successor(arena, "fail")
    return [canceller("C", then_id), ender("E", then_id)]


@race("a step that is too old, and the deadline of its flow", "G=GAVE_UP E=SKIPPED", "G=NOTHING E=SKIPPED",
      also=ended_once, **SHORT)  # fmt: skip
def too_old_and_give_up_flow(arena: Arena) -> list[Actor]:
    """What follows the skipped step starts in a flow that has given up."""
    flow_id = arena.flow({"a": "", "b": "a", "c": "b"}, conditions={"b": "any"}, stale=["a"], give_up_after=-1.0)
    arena.age()
    return [late("G", flow_id), ender("E", flows.job_of(arena.store, flow_id, "a"))]


@race("a step that is too old, and the cancel of its flow", "B=STOPPED E=SKIPPED", "B=NOTHING E=SKIPPED",
      also=ended_once, **SHORT)  # fmt: skip
def too_old_and_cancel_flow(arena: Arena) -> list[Actor]:
    """A flow completes by what is skipped, and is cancelled."""
    flow_id = arena.flow({"a": "", "b": "a"}, stale=["a"])
    arena.age()
    return [stopper("B", flow_id), ender("E", flows.job_of(arena.store, flow_id, "a"))]


@race("a step that failed by its age, and a second judge while it is run again", "R=RUN 2 E=NOT", also=once_each,
      **SHORT)  # fmt: skip
def too_old_and_again(arena: Arena) -> list[Actor]:
    """A step that is run again, whatever its age, is failed by it once more."""
    flow_id = arena.flow({"a": "", "b": "a"}, fails_stale=["a"])
    arena.age()
    job_id = flows.job_of(arena.store, flow_id, "a")
    assert arena.store.run(lambda: close.too_old(BUCKET, job_id))
    return [again("R", flow_id), ender("E", job_id)]


@three("too old, claimed by an older worker, and cancelled", "C=CLAIMED E=NOT B=CANCELLED", "C=CLAIMED E=NOT B=LATE",
       "C=NOTHING E=SKIPPED B=LATE", "C=NOTHING E=NOT B=CANCELLED")  # fmt: skip
def too_old_claimed_and_cancelled(arena: Arena) -> list[Actor]:
    """A step that was begun is skipped, or ends by two of them."""
    job_id = stale_step(arena)
    return [older("C"), ender("E", job_id), canceller("B", job_id)]
