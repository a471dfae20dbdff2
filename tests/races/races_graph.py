"""Races of three and more in trees of jobs and in flows: their ends, whoever stops them, and who comes back late."""

from __future__ import annotations

from typing import Any

import msgspec

from fanin.domain.errors import NotAllowedNow
from fanin.protocol import flow
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from fanin.testing.stepper import Script
from tests.races.arena import Arena, canceller, finisher, giver_up, said, skipper, sweeper
from tests.races.races_flows import SHORT, ends, once_each
from tests.races.races_nested import held_again, nester, two_wait, waits
from tests.races.races_schedules import actor, verb
from tests.races.scenarios import crowd, race, three
from tests.races.stage import BUCKET


def stopper(name: str, flow_id: str) -> Actor:
    return verb(name, lambda: flow.cancel(BUCKET, flow_id), "STOPPED")


def late(name: str, flow_id: str) -> Actor:
    return verb(name, lambda: flow.give_up(BUCKET, flow_id), "GAVE_UP")


def ended_once(arena: Arena, run: Run) -> list[str]:
    """A flow that has ended says so once in each run."""
    rows = select(
        arena.store,
        "SELECT f.status, f.run, count(o.event_key) AS n FROM fanin.flow AS f LEFT JOIN fanin.outbox AS o "
        "ON o.job_id = f.id AND o.type = 'flow.finished' "
        "WHERE f.status IN ('completed', 'failed', 'cancelled', 'compensated') GROUP BY f.id, f.status, f.run",
    )
    return once_each(arena, run) + [f"ends of one run: {row}" for row in rows if row["n"] != row["run"]]


@race(
    "the last step against the deadline of the flow", "A=LAST G=GAVE_UP", "A=LAST G=NOTHING", also=ended_once, **SHORT
)
def flow_end_and_give_up(arena: Arena) -> list[Actor]:
    """A flow completes and gives up."""
    flow_id = arena.flow({"a": ""}, give_up_after=-1.0)
    return [ends(arena, "A"), late("G", flow_id)]


@race("a step that fails fast against the end of its sibling", "A=LAST B=LAST", also=ended_once, **SHORT)
def sibling_fails_fast(arena: Arena) -> list[Actor]:
    """What follows the sibling starts in a flow that has failed, or both believe that they are the last."""
    arena.flow({"a": "", "b": "", "c": "b"})
    one, two = arena.claims(2)
    return [arena.fails("A", one), arena.succeeds("B", two)]


@race("two steps that fail fast", "A=LAST B=LAST", also=ended_once, **SHORT)
def both_fail_fast(arena: Arena) -> list[Actor]:
    """A flow is stopped twice, or by none of two."""
    arena.flow({"a": "", "b": "", "c": "a b"})
    one, two = arena.claims(2)
    return [arena.fails("A", one), arena.fails("B", two)]


@race("a flow that is run again against its cancel", "A=2 B=STOPPED", "A=2 B=NOTHING", also=once_each, **SHORT)
def flow_again_and_cancel(arena: Arena) -> list[Actor]:
    """A new run begins in a flow that was cancelled, and nobody cancels what it starts."""
    flow_id = arena.flow({"a": "", "b": "a"})
    arena.ended("fail")
    return [actor("A", lambda: flow.run_again(BUCKET, flow_id, 1), str), stopper("B", flow_id)]


@race("a step of a stopped flow ends while it is cancelled", "A=LAST C=LATE", "A=CLOSED C=CANCELLED", also=ended_once,
      **SHORT)  # fmt: skip
def step_and_left_running(arena: Arena) -> list[Actor]:
    """The flow ends by both, or by none."""
    flow_id = arena.flow({"a": "", "b": "a"}, undo=["a"])
    step = arena.step()
    arena.store.run(lambda: flow.cancel(BUCKET, flow_id))
    return [arena.succeeds("A", step), canceller("C", step.job_id)]


def goes_on(arena: Arena, run: Run) -> list[str]:
    """The run that was opened last has not been stopped."""
    rows = select(arena.store, "SELECT f.status, f.run FROM fanin.flow AS f WHERE f.run < 2 OR f.status <> 'running'")
    return ended_once(arena, run) + [f"stopped in another run: {row}" for row in rows]


@race("a stopped flow that is ended by two, of whom one runs it again", "A=ENDED C=2", "A=LATE C=2", also=goes_on,
      **SHORT)  # fmt: skip
def left_running_and_again(arena: Arena) -> list[Actor]:
    """Who comes late cancels a step of the next run."""
    flow_id = arena.flow({"a": "", "b": "a"})
    job_id = arena.step().job_id
    arena.store.run(lambda: flow.cancel(BUCKET, flow_id))

    def end_and_again() -> Script:
        yield lambda: flow.end_running(BUCKET, job_id)
        return str((yield lambda: flow.run_again(BUCKET, flow_id, 1)))

    return [said("A", lambda: flow.end_running(BUCKET, job_id), "ENDED", "LATE"), Actor("C", end_and_again)]


def not_stopped_again(arena: Arena, run: Run) -> list[str]:
    rows = select(arena.store, "SELECT status, run FROM fanin.flow WHERE run = 2 AND status <> 'running'")
    return ended_once(arena, run) + [f"stopped in its next run: {row}" for row in rows]


@three("the cancel of a flow said twice, and it is run again", "A=STOPPED B=STOPPED C=2",
       "A=STOPPED B=STOPPED C=REFUSED", also=not_stopped_again)  # fmt: skip
def stop_said_twice_and_again(arena: Arena) -> list[Actor]:
    """The call sent again could stop the next run."""
    flow_id, deed = arena.flow({"a": "", "b": "a"}), arena.deed()
    job_id = arena.step().job_id

    def end_and_again() -> Script:
        yield lambda: flow.end_running(BUCKET, job_id)
        try:
            return str((yield lambda: flow.run_again(BUCKET, flow_id, 1)))
        except NotAllowedNow:
            return "REFUSED"

    stops = [said(name, lambda: flow.cancel(BUCKET, flow_id, deed), "STOPPED", "NOTHING") for name in "AB"]
    return [*stops, Actor("C", end_and_again)]


def undone_if_all_of_it_was_run(arena: Arena, run: Run) -> list[str]:
    """A step is undone if every part below its undo has succeeded before that ended, and else a person is asked."""
    ((undo_id,),) = [(str(row["id"]),) for row in select(arena.store, "SELECT id FROM fanin.job WHERE step = 'undo/a'")]
    ((left,),) = [
        (row["n"],)
        for row in select(
            arena.store,
            "SELECT count(*) AS n FROM fanin.part AS p JOIN fanin.job AS j ON j.id = p.job_id "
            f"WHERE p.status <> 'succeeded' AND '{undo_id}' IN (CAST(j.id AS text), CAST(j.waiter_id AS text))",
        )
    ]
    steps = select(arena.store, "SELECT status FROM fanin.flow_step WHERE name = 'a'")
    right = [{"status": "undo_failed" if left else "undone"}]
    return ended_once(arena, run) + ([] if steps == right else [f"{left} parts of its undo were not run: {steps}"])


@race("an undo that is finished by hand, and the end of the job below it", "A=LAST F=FINISHED", "A=LAST F=LATE",
      also=undone_if_all_of_it_was_run, **SHORT)  # fmt: skip
def undo_and_finish(arena: Arena) -> list[Actor]:
    """A step is called undone though the undo had not come to all of it."""
    arena.flow({"a": "", "b": "a"}, undo=["a"])
    arena.ended("succeed", "fail")
    undo = arena.step()
    arena.waiting(undo)
    return [arena.succeeds("A", arena.step()), finisher("F", undo.job_id, arena.deed())]


@three(
    "the last step, the deadline and a cancel of one flow",
    "A=LAST G=GAVE_UP B=NOTHING",
    "A=LAST G=NOTHING B=STOPPED",
    "A=LAST G=NOTHING B=NOTHING",
    also=ended_once,
)
def flow_end_of_three(arena: Arena) -> list[Actor]:
    """A flow has three ends to choose from: it takes one."""
    flow_id = arena.flow({"a": ""}, give_up_after=-1.0)
    return [ends(arena, "A"), late("G", flow_id), stopper("B", flow_id)]


def overdue_above(arena: Arena, **options: Any) -> tuple[str, Any, str, Any]:
    return waits(arena, give_up_after=-1.0, **options)


@three(
    "the end of a nested job, the cancel and the deadline of the job above",
    "A=LAST C=CANCELLED G=LATE",
    "A=LAST C=LATE G=GAVE_UP",
    "A=LAST C=LATE G=LATE",
)
def rise_of_three(arena: Arena) -> list[Actor]:
    """The job above ends by one of three, and the part that waits is settled by that one alone."""
    job_id, _, _, last = overdue_above(arena)
    return [arena.succeeds("A", last), canceller("C", job_id), giver_up("G", job_id)]


@three(
    "a zombie that nests again, its successor that does, and the end of the nested job",
    "Z=LOST N=COMPLETED A=LAST",
    "Z=LOST N=WAITS A=LAST",
)
def zombie_nests_again(arena: Arena) -> list[Actor]:
    """The zombie waits in the place of its successor, or opens the nested job once more."""
    _, again, _, last = held_again(arena)
    zombie = msgspec.structs.replace(again, attempt=again.attempt - 1, claim_id="00000000-0000-0000-0000-00000000dead")
    return [nester(arena, "Z", zombie), nester(arena, "N", again), arena.succeeds("A", last)]


@crowd(
    "a tree: two nested jobs end, the job above is cancelled, gives up, is swept, and a part of it is skipped",
    "A=LAST",
    "B=LAST",
    "C=CANCELLED",
    "C=LATE",
    "G=GAVE_UP",
    "G=LATE",
    "S=SWEPT 0",
)
def tree(arena: Arena) -> list[Actor]:
    """Whoever goes up meets those who come down: each part counts once, and nobody waits in a circle."""
    one, two = two_wait(arena, give_up_after=-1.0)
    job_id = arena.new().id
    workers = [arena.succeeds("A", one), arena.succeeds("B", two)]
    operators = [canceller("C", job_id), giver_up("G", job_id), skipper("K", job_id, 0, arena.deed())]
    return [*workers, *operators, sweeper("S", job_id)]


@crowd(
    "a flow: three steps before one end, one of them badly, while it is cancelled and gives up",
    "A=LAST",
    "B=LAST",
    "D=LAST",
    "C=STOPPED",
    "C=NOTHING",
    "G=GAVE_UP",
    "G=NOTHING",
    also=ended_once,
)
def steps_in_a_crowd(arena: Arena) -> list[Actor]:
    """All meet at the row of the flow: what follows starts once or never, and what was done is undone."""
    flow_id = arena.flow({"a": "", "b": "", "d": "", "e": "a b d"}, undo=["a", "b"], give_up_after=-1.0)
    one, two, three_ = arena.claims(3)
    workers = [arena.succeeds("A", one), arena.succeeds("B", two), arena.fails("D", three_)]
    return [*workers, stopper("C", flow_id), late("G", flow_id)]


@crowd(
    "a stopped flow: its steps end while they are cancelled and swept",
    "A=LAST",
    "A=CLOSED",
    "B=LAST",
    "B=CLOSED",
    "C=CANCELLED",
    "C=LATE",
    "D=CANCELLED",
    "D=LATE",
    also=ended_once,
)
def stopped_in_a_crowd(arena: Arena) -> list[Actor]:
    """Each end may be the last one, which begins to undo: none does, or two do."""
    flow_id = arena.flow({"a": "", "b": "", "c": "a b"}, undo=["a", "b"])
    one, two = arena.claims(2)
    arena.store.run(lambda: flow.cancel(BUCKET, flow_id))
    parties = [arena.succeeds("A", one), arena.succeeds("B", two)]
    return [*parties, canceller("C", one.job_id), canceller("D", two.job_id), sweeper("S", one.job_id)]
