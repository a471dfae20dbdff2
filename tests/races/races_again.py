"""Races over steps that wait again, in a flow that is run again: who tells them what those before them have left."""

from __future__ import annotations

import json

from fanin.protocol import flow
from fanin.testing.explorer import Actor, Run
from fanin.testing.state import select
from tests.crashes.table import failed_behind, stopped_behind
from tests.races.arena import Arena, sweeper
from tests.races.races_flows import SHORT, ends
from tests.races.races_graph import ended_once, late, stopper
from tests.races.races_nested import begins_to_wait
from tests.races.races_schedules import actor
from tests.races.scenarios import race, three
from tests.races.stage import BUCKET, succeed


def told_the_present(arena: Arena, run: Run) -> list[str]:
    """A step that runs stands behind none that runs, and its part knows the present run of the one before it."""
    text = (
        "SELECT b.status, a.status AS before, j.run, p.payload FROM fanin.flow_step AS b "
        "JOIN fanin.flow_step AS a ON a.flow_id = b.flow_id AND a.name = 'a' JOIN fanin.job AS j ON j.id = a.job_id "
        "JOIN fanin.part AS p ON p.job_id = b.job_id WHERE b.name = 'b' AND b.status = 'running'"
    )
    found = ended_once(arena, run)
    for row in select(arena.store, text):
        (said,) = json.loads(row["payload"])["joins"] if "joins" in row["payload"] else [{"run": row["run"]}]
        if row["before"] != "done" or said["run"] != row["run"]:
            found.append(f"b runs, and has been told {said}: {row}")
    return found


@race("a flow with failed steps behind a failed one, run again by two", "A=2 B=2", also=told_the_present, **SHORT)
def behind_again_and_again(arena: Arena) -> list[Actor]:
    """What failed behind starts beside what stands before it, or waits for more than that."""
    flow_id = failed_behind(arena, joins=["b"])
    return [actor(name, lambda: flow.run_again(BUCKET, flow_id, 1), str) for name in "AB"]


@race("a flow with a failed step behind one that is done, run again by two", "A=2 B=2", also=told_the_present, **SHORT)
def after_done_again_and_again(arena: Arena) -> list[Actor]:
    """Its job is opened twice."""
    flow_id = arena.flow({"a": "", "b": "a"}, joins=["b"])
    arena.ended("succeed", "fail")
    return [actor(name, lambda: flow.run_again(BUCKET, flow_id, 1), str) for name in "AB"]


def waits_again(arena: Arena) -> str:
    """a runs in the second run of its flow, and b and c wait for it, which have run in the first."""
    flow_id = failed_behind(arena, joins=["b"])
    assert arena.store.run(lambda: flow.run_again(BUCKET, flow_id, 1)) == 2
    return flow_id


@race("the end of the step before those that wait again, and a cancel", "A=LAST B=STOPPED", also=told_the_present,
      **SHORT)  # fmt: skip
def before_and_cancel(arena: Arena) -> list[Actor]:
    """A step runs again in a flow that was stopped, or is forgotten by both."""
    flow_id = waits_again(arena)
    return [ends(arena, "A"), stopper("B", flow_id)]


@three(
    "the end of the step before those that wait again, one who comes late to run the flow again, and the deadline",
    "A=LAST R=2 G=GAVE_UP",
    "A=LAST R=2 G=NOTHING",
    also=told_the_present,
)
def before_and_again_and_deadline(arena: Arena) -> list[Actor]:
    """Who comes late opens the job that the end of the step before is opening."""
    flow_id = failed_behind(arena, joins=["b"])
    assert arena.store.run(lambda: flow.run_again(BUCKET, flow_id, 1, give_up_after=-1.0)) == 2
    again = actor("R", lambda: flow.run_again(BUCKET, flow_id, 1), str)
    return [ends(arena, "A"), again, late("G", flow_id)]


@race("a part that is told something else, against who holds it", "A=LAST Z=LOST", "A=LAST Z=CLOSED",
      also=told_the_present, **SHORT)  # fmt: skip
def told_and_held(arena: Arena) -> list[Actor]:
    """The result of what was told before counts for what is told now."""
    behind, before = stopped_behind(arena)
    return [arena.succeeds("A", before), arena.succeeds("Z", behind)]


@race("a part that is told something else, against the sweep", "A=LAST S=SWEPT 1", "A=LAST S=SWEPT 0",
      also=told_the_present, **SHORT)  # fmt: skip
def told_and_swept(arena: Arena) -> list[Actor]:
    """A part of the new run is abandoned, or counted twice."""
    behind, before = stopped_behind(arena)
    return [arena.succeeds("A", before), sweeper("S", behind.job_id)]


@race("a part that is told something else, against who lets it wait for a job", "A=LAST N=LOST", "A=LAST N=WAITS",
      also=told_the_present, **SHORT)  # fmt: skip
def told_and_nested(arena: Arena) -> list[Actor]:
    """It waits for a job of the items of before."""
    behind, before = stopped_behind(arena)
    return [arena.succeeds("A", before), begins_to_wait("N", arena.nesting(behind, priority=5))]


@race("a part that is told something else, against the end of the job that it has left behind", "A=LAST L=LAST",
      also=told_the_present, **SHORT)  # fmt: skip
def told_and_left_behind(arena: Arena) -> list[Actor]:
    """The part gets the end of a job for which it does not wait any more."""
    _, before, below = stopped_behind(arena, nests=True)
    return [arena.succeeds("A", before), arena.succeeds("L", below)]


@race("a job of other items, against the end of that in the place of which it comes", "N=WAITS L=LAST",
      "N=WAITS L=CLOSED", also=told_the_present, **SHORT)  # fmt: skip
def anew_and_left_behind(arena: Arena) -> list[Actor]:
    """The part gets the end of the other job, or the other job goes on for nobody."""
    _, before, below = stopped_behind(arena, nests=True)
    arena.settled([succeed(before)])
    return [begins_to_wait("N", arena.nesting(arena.step(), anew="other", priority=5)), arena.succeeds("L", below)]
