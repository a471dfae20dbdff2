"""``fanin cancel`` and ``fanin redrive``: what an operator may do to a job."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import job_facts, short
from fanin.domain.errors import NotAllowedNow

JobName = Annotated[str, Parameter(help="The job's id, the beginning of it, or its key.")]


def cancel(
    job: JobName,
    /,
    *,
    reason: Annotated[str | None, option("Why, for those who look at the job later.")] = None,
    common: Common = DEFAULT,
) -> int:
    """End a job now: with its event, without its successor. Running parts are stopped, their commits refused."""
    with open_app(common) as app:
        found = app.job(job)
        did = found.cancel(reason)
        row, progress = found.row(), found.progress()
    if not did and row.status != "cancelled":
        raise NotAllowedNow(f"job {short(row.id)} had {row.status} before; there is nothing to cancel")
    if common.json:
        print_json(job_facts(row, progress))
    else:
        when = "cancelled" if did else "was cancelled before"
        say(f"job {short(row.id)} {when}; {progress.succeeded} parts had succeeded")
    return exits.OK


def redrive(
    job: JobName,
    /,
    *,
    part: Annotated[list[int] | None, option("Only this part, by its index from 0. May be repeated.")] = None,
    attempts: Annotated[int | None, option("Attempts for each part (default: as at first).")] = None,
    give_up_after: Annotated[str | None, option("Deadline of the new run: 30m, 2h, 1d.")] = None,
    common: Common = DEFAULT,
) -> int:
    """Open a new run of an ended job for its failed and abandoned parts. Succeeded parts are never run again."""
    from fanin.runtime.task import check_attempts

    if attempts is not None:
        check_attempts(attempts)
    with open_app(common) as app:
        found = app.job(job)
        run = found.redrive(part, attempts=attempts, give_up_after=give_up_after)
        row, progress = found.row(), found.progress()
    if common.json:
        print_json(job_facts(row, progress) | {"redriven": run > 0})
    elif run == 0:
        say(f"nothing to redrive: no part of job {short(row.id)} is failed or abandoned")
    else:
        say(f"job {short(row.id)}: run {run} has begun, {progress.remaining} parts to do. Workers of queue {row.queue} "
            "will take them")  # fmt: skip
    return exits.OK
