"""The rows of a small world of several jobs and one flow, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from fanin.domain import policy
from fanin.domain.states import FLOW_LIVE
from tests.model.world import Busy, Key, View

LIVE = ("pending", "running")
OVER = ("succeeded", "failed", "abandoned")
AGED = "was too old"
FLOW = "0f000000-0000-0000-0000-000000000001"


class Job(NamedTuple):
    status: str = "running"
    run: int = 1
    open: int = 1
    policy: str = "{}"
    waiter: tuple[str, int] | None = None
    step: int | None = None
    stale: str | None = None
    """What becomes of it if it has not started; `AGED`: it has ended so."""
    width: int | None = None
    """The most parts that it may come to have, if it grows."""


class Stripe(NamedTuple):
    left: int = 1
    ok: int = 0
    failed: int = 0
    abandoned: int = 0
    closed: bool = False


class Part(NamedTuple):
    status: str = "pending"
    ready: bool = True
    attempt: int = 0
    allowed: int = 9
    claim: str | None = None
    result: str | None = None
    waiting: bool = False
    nested: str | None = None
    told: str = ""
    """Of the part of a step: how those before it have ended."""


class Flow(NamedTuple):
    status: str = "running"
    cause: str | None = None
    run: int = 1
    fail_fast: bool = True
    running: int = 0
    failures: int = 0
    ended: int = 0
    events: int = 0


class Step(NamedTuple):
    status: str
    needs: int
    condition: str
    after: tuple[int, ...]
    leads_to: tuple[int, ...]
    undo: str | None = None
    job_id: str | None = None
    undo_job_id: str | None = None
    ended_no: int | None = None


class Effect(NamedTuple):
    status: str
    mode: str
    calls: int
    allowed: int
    relayed: bool = False
    doubtful: bool = False
    claim: str | None = None


class Guards:
    """``missing`` names the guards that are left out."""

    def __init__(self, missing: frozenset[str] = frozenset(), due: int | None = None) -> None:
        self.missing = missing

    def holds(self, guard: str, condition: bool) -> bool:
        return condition or guard in self.missing

    def _stripe(self, view: View, job_id: str) -> tuple[Key, Any]:
        key = ("stripe", job_id)
        return key, view.get(key)

    def _lock(self, view: View, key: Key, guard: str = "") -> None:
        if guard not in self.missing:
            view.lock(key)

    def _no_wait(self, view: View, key: Key, guard: str = "") -> None:
        """Not waited for: everything is said again."""
        if key in view.others and guard not in self.missing:
            raise Busy
        view.lock(key)


def violations(rows: dict[Key, Any]) -> list[str]:
    """What is wrong with a committed state: the checks of `fanin check` that this world can break."""
    wrong = []
    jobs = {key[1]: row for key, row in rows.items() if key[0] == "job"}
    for job_id, row in jobs.items():
        short = job_id[:8]
        parts = [part for key, part in rows.items() if key[0] == "part" and key[1] == job_id]
        stripe = rows.get(("stripe", job_id))
        if stripe is None:
            wrong.append(f"c8: the counters of {short} are gone, and it is not")
            continue
        counts = [sum(p.status in s for p in parts) for s in (LIVE, ("succeeded",), ("failed",), ("abandoned",))]
        if counts != list(stripe[:4]):
            wrong.append(f"c1: {short} counts {tuple(stripe[:4])}, the parts are {counts}")
        if row.status == "running" and (row.open != 1 or stripe.closed or not counts[0]):
            wrong.append(f"s1, l2: {short} runs with {row.open} open stripes and {counts[0]} live parts")
        events = sum(key[0] == "event" and key[1].startswith(f"job/{job_id}/") for key in rows)
        if events != row.run - (row.status == "running"):
            wrong.append(f"j2: {short} has {events} events in run {row.run}, {row.status}")
        if row.width is not None and row.status == "failed" and stripe.closed:
            rule = policy.decode(row.policy)
            if stripe.failed <= policy.tolerated(rule, row.width):
                wrong.append(f"{short} ended early with {stripe.failed} failures, of {row.width} it tolerates more")
        if row.stale == AGED and any(part.attempt > 0 for part in parts):
            wrong.append(f"{short} was begun, and ended for its age")
        if row.waiter is not None and row.status == "running":
            part = rows["part", *row.waiter]
            again = part.status in LIVE and not part.waiting and part.nested is not None
            if not (part.waiting or again or (part.status in OVER and part.nested is not None)):
                wrong.append(f"n2: {short} goes on, and its part is {part.status}")
    for key, part in rows.items():
        if key[0] == "part" and part.waiting and (part.nested is None or jobs[part.nested].status != "running"):
            wrong.append(f"n1: part {key[2]} waits for a job that does not go on")
        if key[0] == "part" and part.status in LIVE and ("stripe", key[1]) not in rows:
            wrong.append(f"c7: part {key[2]} of a purged job is {part.status}")
        if key[0] == "part" and part.nested is not None and part.nested not in jobs:
            wrong.append(f"part {key[2]} names a job that is not there")
        if key[0] == "effect" and part.calls > part.allowed:
            wrong.append(f"e3: {part.calls} calls of {part.mode}, of {part.allowed}")
        if key[0] == "effect" and part.status == "cancelled" and part.doubtful:
            wrong.append("an effect was cancelled that may have been done")
    if ("flow",) in rows:
        wrong += _flow_violations(rows, jobs)
    elif any(key[0] == "step" for key in rows) or any(row.step is not None for row in jobs.values()):
        wrong.append("of a flow that was purged something is left")
    left = [(key[1], row[0]) for key, row in rows.items() if key[0] == "leftover"]
    wrong += [f"c8: {one[:8]} was purged, and is there" for one, _ in left if one in jobs]
    wrong += [f"c8: {one[:8]} was purged, and what was above it is there" for one, above in left if above in jobs]
    return wrong


def _flow_violations(rows: dict[Key, Any], jobs: dict[str, Job]) -> Iterator[str]:
    flow: Flow = rows["flow",]
    steps: dict[int, Step] = {key[1]: row for key, row in rows.items() if key[0] == "step"}
    states = Counter(step.status for step in steps.values())
    going = states["running"] + states["undoing"]
    if flow.running != going:
        yield f"w1: the flow counts {flow.running} steps that go on, there are {going}"
    for n, step in steps.items():
        runs = {"running": step.job_id, "undoing": step.undo_job_id}.get(step.status)
        if any(one not in jobs for one in (step.job_id, step.undo_job_id) if one is not None):
            yield f"a job of step {n} is gone, and its flow is not"
            continue
        if runs is not None and jobs[runs].status != "running":
            yield f"w2: step {n} is {step.status}, its job is {jobs[runs].status}"
        if step.status == "running" and step.job_id is not None:
            told = rows["part", step.job_id, 0].told
            for one in step.after:
                before = steps[one]
                if before.status in ("waiting", "running"):
                    yield f"step {n} runs beside step {one}, before it"
                if before.job_id is not None and f'"{before.job_id}","run":{jobs[before.job_id].run},' not in told:
                    yield f"step {n} runs, and was told of another run of step {one}"
        stand = [row.status for key, row in rows.items() if key[0] == "effect" and key[1] == step.job_id]
        if step.status in ("undone", "nothing_to_undo") and not {*stand} <= {"cancelled", "reversed"}:
            yield f"e5: step {n} is {step.status}, an effect of it is {stand}"
        if step.status == "waiting" and flow.run == 1:
            missing = sum(steps[one].status in ("waiting", "running") for one in step.after)
            if step.needs != missing or not missing:
                yield f"step {n} needs {step.needs}, and {missing} before it have not ended"
    if flow.status not in FLOW_LIVE and flow.status != "needs_attention":
        if going or states["waiting"]:
            yield f"w3: the flow is {flow.status}: {dict(states)}"
        if flow.status == "compensated" and (states["done"] or states["failed"] or states["undo_failed"]):
            yield f"w4: compensated, with {dict(states)}"
    back = [s.ended_no for s in steps.values() if s.status in ("undoing", "undone") and s.ended_no is not None]
    left = [s.ended_no for s in steps.values() if s.status in ("done", "failed") and s.ended_no is not None]
    if back and left and max(left) > min(back):
        yield "a step is undone before one that ended after it"
    ends = sum(key[0] == "event" and key[1].startswith(f"flow/{FLOW}/finished/") for key in rows)
    over = flow.status not in FLOW_LIVE and flow.status != "needs_attention"
    if ends != flow.run - (not over):
        yield f"w5: {ends} events of ends in run {flow.run}, {flow.status}"


def history(before: dict[Key, Any], after: dict[Key, Any]) -> Iterator[str]:
    """What only two states side by side can show."""
    for key, row in after.items():
        old = before.get(key)
        above = before.get(("job", key[1])) if key[0] == "part" else None
        if old is None and above is not None and above.status not in ("open", "running"):
            yield f"c3: part {key[2]} was added to a job that has ended"
        if key[0] == "effect" and old is None and not row.relayed and before["stripe", key[1]].closed:
            yield "an effect is called below a job that was closed before"
        if old is None or old == row:
            continue
        if key[0] == "effect" and old.status in ("cancelled", "reversed", "done") and row.status != "reversed":
            yield f"an effect was {old.status}, and became {row.status}"
        if key[0] == "part" and old.status == "succeeded" and row._replace(nested=old.nested) != old:
            yield f"p2: the result of part {key[2]} changed"
        if key[0] == "part" and old.waiting and row.attempt == old.attempt and row.result == f'"{old.claim}"':
            yield f"part {key[2]} waited, and has the result of a report"
        if key[0] == "part" and row.attempt < old.attempt:
            yield f"f4: the attempt of part {key[2]} fell"
        if key[0] == "step" and old.status in ("undone", "nothing_to_undo"):
            yield f"step {key[1]} was over, and became {row.status}"
