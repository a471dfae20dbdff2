"""Who meets whom: the batches of a job that is split, and jobs that are too old to start."""

from __future__ import annotations

from typing import Any

from fanin.domain.model import Claim, NewJob
from fanin.protocol import close, nest, split
from tests.model.explore import Op, claim, settle
from tests.model.graph_rows import Job, Part, Stripe
from tests.model.graph_scenarios import (
    CHAIN,
    LOW,
    LOW2,
    STOP,
    TOP,
    abandon,
    after_that,
    again,
    cancel,
    flow_of,
    give_up,
    held,
    redriven,
    said,
    scenario,
    skipped,
    step,
    sweep,
    waiting,
)
from tests.model.world import Key

WHOLE = NewJob(id=TOP, bucket=0, task="t", queue="q", key="k", request_hash="hash", batch=1)
SPLIT = Op("split", lambda _: lambda: split.create(WHOLE, 2, lambda: [["1", "1"]]))


def rejoined(idx: int = 0, claim: str = "a", attempt: int = 1) -> Op:
    """The holder of a batch begins to wait for its job."""
    mine = Claim(0, TOP, idx, "t", attempt, claim, 9, "1", None, False, 0)
    job = NewJob(id=(LOW, LOW2)[idx], bucket=0, task="t", queue="q")
    return Op("rejoin", lambda _: lambda: nest.rejoin(mine, job))


def begins(batches: int = 1, policy: str = "{}") -> dict[Key, Any]:
    """The first batch is held and does not wait yet; the second one waits. The parts of both are held."""
    rows = waiting(batches, batches, policy)
    rows["part", TOP, 0] = held(nested=LOW)
    return rows


def second_run() -> dict[Key, Any]:
    """The whole was cancelled with the job of its batch, and redriven; the batch is held anew."""
    rows = waiting()
    for op in (cancel(TOP), sweep(TOP), cancel(LOW), sweep(LOW), redriven(TOP)):
        rows = after_that(rows, op)
    rows["part", TOP, 0] = held("b", 2, nested=LOW)
    return rows


SPLITS = [
    scenario("a job is split by two", {}, [SPLIT], [SPLIT], crashes=2),
    scenario("a batch begins to wait while its job ends", begins(), [rejoined()], [said(LOW)], crashes=2),
    scenario("a batch begins to wait while its job fails", begins(), [rejoined()], [said(LOW, "fail")], crashes=1),
    scenario("a batch begins to wait twice beside a release", begins(), [rejoined()], [rejoined()],
             [said(TOP, "release")]),
    scenario("a batch begins to wait while the whole is cancelled", begins(), [rejoined()],
             [cancel(TOP), sweep(TOP), abandon(LOW)], [said(LOW)]),
    scenario("a batch begins to wait while the whole gives up", begins(), [rejoined()], [give_up(TOP), sweep(TOP)],
             [cancel(TOP)]),
    scenario("a batch begins to wait while it is skipped", begins(), [rejoined()], [skipped()], [said(LOW)]),
    scenario("a batch begins to wait while another fails fast", begins(2, '{"fail_fast":true}'), [rejoined()],
             [said(LOW2, "fail")], [said(LOW)]),
    scenario("a batch begins to wait while the whole is redriven", begins(), [rejoined()],
             [cancel(TOP), sweep(TOP), redriven(TOP)], [said(LOW)]),
    scenario("a batch that is run again begins to wait", second_run(), [rejoined(0, "b", 2)], [rejoined(0, "b", 2)],
             [cancel(TOP)]),
    scenario("a zombie of a batch beside its next attempt", second_run(), [rejoined()], [rejoined(0, "b", 2)],
             crashes=1),
]  # fmt: skip


# Ages.


def too_old(job_id: str) -> Op:
    return Op("too old", lambda _: lambda: close.too_old(0, job_id))


def old(stale: str = "skip") -> dict[Key, Any]:
    """A job of one part that nobody has claimed, and that is too old now."""
    return {("job", TOP): Job(stale=stale), ("stripe", TOP): Stripe(), ("part", TOP, 0): Part()}


def old_flow(stale: str = "skip") -> dict[Key, Any]:
    """A chain whose first step is too old to start."""
    rows = flow_of(CHAIN, undo=False)
    return {**rows, ("job", step(0)): Job(step=0, stale=stale), ("part", step(0), 0): Part()}


AGES = [
    scenario("too old, and claimed by an older worker", old(), [claim("a"), settle()], [too_old(TOP)], [too_old(TOP)],
             crashes=1),
    scenario("too old, claimed and cancelled", old("fail"), [claim("a"), settle()], [too_old(TOP)], [cancel(TOP)]),
    scenario("too old, and given up", old("fail"), [too_old(TOP)], [give_up(TOP), sweep(TOP)], [claim("a"), settle()]),
    scenario("claimed, given back and then too old", old(), [claim("a"), settle("release"), too_old(TOP)],
             [too_old(TOP)]),
    scenario("a step is too old, and its flow is stopped", old_flow(), [too_old(step(0))], [STOP],
             [claim("a"), settle()]),
    scenario("a step fails by its age, and is run again", old_flow("fail"), [too_old(step(0)), again()],
             [too_old(step(0))], [claim("a"), settle()]),
]  # fmt: skip
