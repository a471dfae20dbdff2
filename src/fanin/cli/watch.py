"""``fanin watch``: follow a job until it has ended, and the job that follows it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import job_facts, short
from fanin.domain.errors import BadOption

if TYPE_CHECKING:
    import fanin
    from fanin.domain.model import Progress

USAGE = "fanin watch [OPTIONS] JOB"


def watch(
    job: Annotated[str, Parameter(help="The job's id, the beginning of it, or its key.")],
    /,
    *,
    interval: Annotated[float, option("Seconds between two looks (default: 0.2).")] = 0.2,
    tree: Annotated[bool, option("Count the parts of the jobs that its parts end with too.")] = False,
    common: Common = DEFAULT,
) -> int:
    """Follow a job, and its successors, until they have ended. Exits with 0 if all completed, else with 1.

    With --json: one line whenever the counts have changed.
    """
    if not 0.01 <= interval <= 3600:
        raise BadOption(f"--interval {interval:g}: give 0.01 to 3600 seconds")
    with open_app(common) as app:
        found: fanin.Job | None = app.job(job)
        while found is not None:
            if common.json:
                _follow_json(found, interval, tree)
            else:
                from fanin.runtime.progress import watch as show

                show(_polls(found, interval, tree))
            row = found.row()
            if not common.json:
                reason = f": {row.reason}" if row.reason else ""
                say(f"job {short(row.id)} ({row.task}) {row.status}{reason}")
            if row.status != "completed":
                return exits.FAILED
            found = found.successor
    return exits.OK


def _polls(job: fanin.Job, interval: float, tree: bool) -> Iterator[Progress]:
    while True:
        progress = job.progress(tree=tree)
        yield progress
        if progress.ended:
            return
        time.sleep(interval)


def _follow_json(job: fanin.Job, interval: float, tree: bool) -> None:
    before = None
    for progress in _polls(job, interval, tree):
        if progress != before:
            print_json(job_facts(job.row(), progress))
            before = progress
