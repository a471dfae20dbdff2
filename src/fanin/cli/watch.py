"""``fanin watch``: follow a job until it has ended, and the job that follows it; or a flow with its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.drawing import flow_facts, flow_named
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import job_facts, short
from fanin.domain.errors import BadOption, UnknownJob
from fanin.domain.flows import FlowProgress
from fanin.domain.model import Progress
from fanin.protocol import watching

if TYPE_CHECKING:
    import fanin

USAGE = "fanin watch [OPTIONS] JOB|FLOW"
JSON_STEPS = 100
Look = TypeVar("Look", Progress, FlowProgress)


def watch(
    job: Annotated[str, Parameter(help="The id of a job or a flow, the beginning of it, or its key.")],
    /,
    *,
    interval: Annotated[float, option("Seconds between two looks (default: 0.2).")] = 0.2,
    tree: Annotated[bool, option("Count the parts of the jobs that its parts end with too.")] = False,
    common: Common = DEFAULT,
) -> int:
    """Follow a job, and its successors, or a flow, until they have ended. Exits with 0 if all completed, else with 1.

    With --json: one line whenever the counts have changed.
    """
    if not 0.01 <= interval <= 3600:
        raise BadOption(f"--interval {interval:g}: give 0.01 to 3600 seconds")
    with open_app(common) as app:
        if (flow := flow_named(app, job)) is not None:
            if tree:
                raise BadOption(f"--tree: {job} is a flow, and its steps are shown; watch the job of a step so")
            return _flow(app, flow, interval, common)
        found: fanin.Job | None = app.job(job)
        while found is not None:
            if common.json:
                _follow_json(found, interval, tree)
            else:
                from fanin.runtime.progress import watch as show

                show(_job_polls(found, interval, tree))
            row = found.row()
            if not common.json:
                reason = f": {row.reason}" if row.reason else ""
                say(f"job {short(row.id)} ({row.task}) {row.status}{reason}")
            if row.status != "completed":
                return exits.FAILED
            found = found.successor
    return exits.OK


def _flow(app: fanin.App, run: fanin.FlowRun, interval: float, common: Common) -> int:
    from fanin.runtime.flow_progress import room
    from fanin.runtime.flow_progress import watch as show

    def look() -> FlowProgress:
        most = JSON_STEPS if common.json else room()
        found = app.store.read(lambda: watching.progress(app.store.bucket(run.id), run.id, most))
        if found is None:
            raise UnknownJob(f"flow {run.id} was purged")
        return found

    if common.json:
        for found in _changes(_polls(look, interval)):
            steps = [msgspec.to_builtins(step) for step in found.steps]
            print_json(flow_facts(found.row) | {"states": found.states, "steps": steps})
    else:
        show(_polls(look, interval))
    row = run.row()
    if not common.json:
        reason = f": {row.reason}" if row.reason else ""
        say(f"flow {short(row.id)} ({row.name}) {row.status}{reason}")
    return exits.OK if row.status == "completed" else exits.FAILED


def _job_polls(job: fanin.Job, interval: float, tree: bool) -> Iterator[Progress]:
    return _polls(lambda: job.progress(tree=tree), interval)


def _polls(look: Callable[[], Look], interval: float) -> Iterator[Look]:
    while True:
        found = look()
        yield found
        if found.ended:
            return
        time.sleep(interval)


def _changes(polls: Iterator[Look]) -> Iterator[Look]:
    before = None
    for found in polls:
        if found != before:
            yield found
            before = found


def _follow_json(job: fanin.Job, interval: float, tree: bool) -> None:
    for progress in _changes(_job_polls(job, interval, tree)):
        print_json(job_facts(job.row(), progress))
