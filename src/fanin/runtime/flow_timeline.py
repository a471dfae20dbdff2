"""From the rows of a flow to moments that a person can read, in the order of time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import msgspec

from fanin.domain.errors import UnknownJob
from fanin.domain.flows import StepRow, handled, starts
from fanin.domain.states import STEP_STUCK
from fanin.domain.timeline import Explanation, Moment
from fanin.protocol.explain import KnownFlow
from fanin.protocol.steps import Row
from fanin.runtime.timeline import SAME_SECONDS, SHORT, deeds, part_deed, published

DEEDS = {
    "undone": "step {} was undone by hand",
    "nothing_to_undo": "step {} was found to need no undo",
    "not_undone": "the undo of step {} was given up",
    "undo_again": "the undo of step {} was begun again",
}
"""What operators do to a step."""
ENDS = {"completed": "was done", "failed": "has failed", "cancelled": "was cancelled", "skipped": "was skipped"}
KINDS = {"failed": "failed", "cancelled": "cancelled"}
"""Of the end of a step; another is ``successor``."""


class End(NamedTuple):
    """How a step stands at its end: ``said`` is a key of `ENDS`."""

    at: float
    end: str
    """``done``, ``failed`` or ``skipped``."""
    said: str


def flow_explanation(flow_id: str, known: KnownFlow | None) -> Explanation:
    """Raises `UnknownJob`."""
    if known is None:
        raise UnknownJob(f"there is no flow {flow_id}")
    row, ended = known.row, list(_flow_ends(known))
    moments = [_created(known), *_deeds(known), *_jobs(known), *_skipped(known), *ended]
    moments.sort(key=_place(known, moments))
    if row.finished_at is None:
        why = f": {row.reason or row.cause}" if row.cause else ""
        moments.append(Moment(time.time(), "now", f"the flow is {row.status}{why}", run=row.run))
    return Explanation(row.id, row.status, row.cause, row.reason, moments, [], [])


def _place(known: KnownFlow, moments: Sequence[Moment]) -> Callable[[Moment], tuple[float, int]]:
    """What a transaction has done is told in the order of its causes, whatever its statements wrote first: a deed, then
    the end of a job, then that of the flow; a redrive before what it has opened again."""
    lines = known.deeds.get(known.row.id, ())
    ends = [one.at for one in moments if one.what == "ended"]
    of_job: dict[str | None, list[Moment]] = {}
    for one in moments:
        if one.what in (*KINDS, "successor") and one.worker is None:
            of_job.setdefault(one.job, []).append(one)

    def place(one: Moment) -> tuple[float, int]:
        if one.what == "ended":
            return one.at, 5
        if one.what == "redriven" and one.job is not None:
            return one.at, 4
        if one.worker is None and (one.what in (*KINDS, "successor") or one.what == "skipped"):
            # When a flow has ended nothing of it runs: what ends afterwards ended it, unless somebody let it go on.
            last = max((at for at in ends if at <= one.at), default=None)
            if last is not None and not any(last < line[0] <= one.at for line in lines):
                return last, 3
            return one.at, 3
        if one.what in ("cancelled", "finished", "skipped"):  # it may have ended the job
            by_it = [end for end in of_job.get(one.job, ()) if 0 <= one.at - end.at < SAME_SECONDS]
            return (place(by_it[-1])[0], 2) if by_it else (one.at, 2)
        return one.at, 0

    return place


def _created(known: KnownFlow) -> Moment:
    row, count = known.row, len(known.steps)
    named = f"flow {row.name}" + (f" ({row.key})" if row.key else "")
    return Moment(row.created_at, "created", f"created: {count} step{'s' if count != 1 else ''} of {named}", run=1)


def _deeds(known: KnownFlow) -> Iterator[Moment]:
    """What operators did: to the flow, and to the jobs of its steps."""
    names = {step.n: step.name for step in known.steps}

    def of_flow(n: int | None, what: str) -> str:
        return f"flow {what}" if n is None else DEEDS.get(what, "step {}: " + what).format(names[n])

    for moment in deeds(known.deeds.get(known.row.id, []), of_flow):
        yield msgspec.structs.replace(moment, part=None)
    for step, job_id, undo in _begun(known):
        what = f"{'the undo of ' if undo else ''}step {step.name}"
        for of_id in dict.fromkeys((job_id, known.jobs[job_id].meant)):
            lines = [line for line in known.deeds.get(of_id, ()) if _worth_telling(line)]
            yield from deeds(lines, partial(_of_job, what), known.jobs[job_id].meant)


def _worth_telling(line: Row) -> bool:
    """Not what a deed to the flow has done: it cancels jobs under nobody's name, and runs them again."""
    return not (line[2] == "cancelled" and line[3] is None) and line[2] != "redriven"


def _of_job(what: str, idx: int | None, deed: str) -> str:
    return f"{what}: {part_deed(idx, deed)}"


def _begun(known: KnownFlow) -> Iterator[tuple[StepRow, str, bool]]:
    """The jobs of steps, and of their undos."""
    for step in known.steps:
        for job_id, undo in ((step.job_id, False), (step.undo_job_id, True)):
            if job_id is not None and job_id in known.jobs:
                yield step, job_id, undo


def _jobs(known: KnownFlow) -> Iterator[Moment]:
    for step, job_id, undo in _begun(known):
        ran, what = known.jobs[job_id], f"{'the undo of ' if undo else ''}step {step.name}"
        plan = step.undo.plan if undo and step.undo is not None else step.spec.plan
        named = f"job {ran.meant[:SHORT]}"
        task = plan.task if plan is not None else step.spec.spec.task
        yield Moment(ran.began, "child", f"{what} started: {named} of {task}", job=ran.meant)
        if not undo:
            yield from _again(known, step, job_id)
        before = 0.0
        for at, facts in _ends(known, job_id):
            inner = [found for made, found in _ends(known, ran.meant) if before < made <= at]
            told = inner[-1] if inner else facts
            why, before = f": {told['reason']}" if told["reason"] else "", at
            kind = KINDS.get(told["status"], "successor")
            yield Moment(at, kind, f"{what} ended: {named} {told['status']}{why}", job=ran.meant, run=told["run"])


def _again(known: KnownFlow, step: StepRow, job_id: str) -> Iterator[Moment]:
    """When a step began again: with the redrive of the flow, or when those before it had ended once more."""
    ends, ran = _ends(known, job_id), known.jobs[job_id]
    redrives = [line[0] for line in known.deeds.get(known.row.id, ()) if line[2] == "redriven"]
    jobs = {one.n: one.job_id for one in known.steps}
    first = [at for n in step.after for at, _ in _ends(known, jobs[n] or "")]
    for (at, facts), until in zip(ends, [*(later for later, _ in ends[1:]), math.inf], strict=True):
        begun = next((one for one in redrives if at < one <= until), None)
        if begun is not None and (until < math.inf or ran.ended is None):
            begun = max([begun, *(one for one in first if begun < one <= until)])
            what = f"step {step.name} runs again"
            yield Moment(begun, "redriven", what, job=ran.meant, run=facts["run"] + 1)


def _ends(known: KnownFlow, job_id: str) -> list[tuple[float, dict[str, Any]]]:
    return [(at, msgspec.json.decode(payload)) for _, payload, at, *_ in known.ends.get(job_id, ())]


def _flow_ends(known: KnownFlow) -> Iterator[Moment]:
    """The ends of its runs, and when it came to need a person."""
    for kind, payload, at, status, published_at in known.ends.get(known.row.id, ()):
        facts = msgspec.json.decode(payload)
        counts = ", ".join(f"{count} {state}" for state, count in facts["steps"].items())
        text = f"run {facts['run']} ended: {facts['status']} ({counts})"
        if kind == "flow.needs_attention":
            wanted = [name for name, state in facts["notable"].items() if state in STEP_STUCK]
            text = f"run {facts['run']} needs a person for step {', '.join(wanted)}"
        why = f": {facts['reason']}" if facts["reason"] else ""
        yield Moment(at, "ended", f"{text}{why}; its event is {status}", run=facts["run"])
        yield from published(published_at, facts["run"])


def _skipped(known: KnownFlow) -> Iterator[Moment]:
    """What was skipped in this run, and why: by its condition, or since the flow was stopped before."""
    ends: dict[int, End] = {}
    for step in known.steps:
        ran = known.jobs.get(step.job_id or "")
        if step.job_id is not None and ran is not None and ran.ended is not None:
            for at, facts in _ends(known, step.job_id)[-1:]:
                end = "done" if facts["status"] == "completed" else "failed"
                end, said = ("skipped", "skipped") if step.status == "skipped" else (end, facts["status"])
                ends[step.n] = End(at, end, said)
    stop, stopped = _stop(known, ends), set[int]()
    steps = {step.n: step for step in known.steps}
    for n in TopologicalSorter({step.n: step.after for step in known.steps}).static_order():
        step = steps[n]
        too_old = step.job_id is not None and step.ended_no is None
        if step.status != "skipped" or too_old:
            continue
        before = [(steps[one].name, ends[one]) for one in step.after if one in ends]
        at = max((end.at for _, end in before), default=known.row.created_at)
        in_time = len(before) == len(step.after) and (stop is None or at <= stop[0])
        decided = in_time and not stopped.intersection(step.after)
        if decided and not starts(step.condition, [end.end for _, end in before]):
            told = ", ".join(f"{name} {ENDS[end.said]}" for name, end in before)
            why = f"it starts if {step.condition}, and {told}"
        else:
            at, why = stop or (at, "the flow was stopped")
            stopped.add(n)
        ends[step.n] = End(at, "skipped", "skipped")
        yield Moment(at, "skipped", f"step {step.name} was skipped: {why}")


def _stop(known: KnownFlow, ends: dict[int, End]) -> tuple[float, str] | None:
    """When and why this run was stopped, before all of its steps had come to their turn."""
    row, lines = known.row, known.deeds.get(known.row.id, ())
    if row.cause == "gave_up" and row.give_up_at is not None:
        return max(row.give_up_at, row.created_at), "the flow gave up at its deadline"
    if row.cause == "cancelled":
        at = max((line[0] for line in lines if line[2] == "cancelled"), default=row.finished_at or row.created_at)
        return at, "the flow was cancelled"
    if row.cause != "failed" or not known.fail_fast:
        return None
    began = max((line[0] for line in lines if line[2] == "redriven"), default=row.created_at)
    behind: dict[int, list[str]] = {}
    for step in known.steps:
        for n in step.after:
            behind.setdefault(n, []).append(step.condition)
    failed = []
    for step in known.steps:
        end = ends.get(step.n)
        if end is not None and end.end == "failed" and end.at >= began and not handled(behind.get(step.n, [])):
            failed.append((end.at, step.name))
    at, name = min(failed, default=(began, ""))
    return at, f"the flow was stopped, since step {name} had failed" if name else "the flow was stopped"
