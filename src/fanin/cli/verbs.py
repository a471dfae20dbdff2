"""``fanin cancel``, ``finish``, ``pause``, ``resume``, ``skip`` and ``redrive``: what an operator may do to a job."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import job_facts, short
from fanin.domain.errors import BadPayload, NotAllowedNow

Reason = Annotated[str | None, option("Why, for those who look at the job later.")]
By = Annotated[str | None, option("Who says so (default: you@this-host).")]
JobName = Annotated[str, Parameter(help="The job's id, the beginning of it, or its key.")]


def cancel(
    job: JobName,
    /,
    *,
    reason: Reason = None,
    by: By = None,
    common: Common = DEFAULT,
) -> int:
    """End a job now: with its event, without its successor. Running parts are stopped, their commits refused."""
    with open_app(common) as app:
        found = app.job(job)
        did = found.cancel(reason, by=by)
        row, progress = found.row(), found.progress()
    if not did and row.status != "cancelled":
        raise NotAllowedNow(f"job {short(row.id)} had {row.status} before; there is nothing to cancel")
    if common.json:
        print_json(job_facts(row, progress))
    else:
        when = "cancelled" if did else "was cancelled before"
        say(f"job {short(row.id)} {when}; {progress.succeeded} parts had succeeded")
    return exits.OK


def finish(job: JobName, /, *, reason: Reason = None, by: By = None, common: Common = DEFAULT) -> int:
    """End a job now as completed with what has arrived: with its event and its successor. The rest is abandoned."""
    with open_app(common) as app:
        found = app.job(job)
        did = found.finish(reason, by=by)
        row, progress = found.row(), found.progress()
    if not did:
        raise NotAllowedNow(f"job {short(row.id)} had {row.status} before; there is nothing to finish")
    if common.json:
        print_json(job_facts(row, progress))
    else:
        say(f"job {short(row.id)} completed with {progress.succeeded} of {progress.total} parts")
    return exits.OK


def pause(job: JobName, /, *, reason: Reason = None, by: By = None, common: Common = DEFAULT) -> int:
    """Let no further part of a job be started. Running parts go on, its deadline still fires."""
    with open_app(common) as app:
        found = app.job(job)
        did = found.pause(reason, by=by)
        row, progress = found.row(), found.progress()
    if common.json:
        print_json(job_facts(row, progress))
    else:
        name, when = short(row.id), "is paused" if did else "was paused before"
        say(f"job {name} {when}; {progress.remaining} parts are not done. To go on: fanin resume {name}")
    return exits.OK


def resume(job: JobName, /, *, reason: Reason = None, by: By = None, common: Common = DEFAULT) -> int:
    """Let a paused job go on."""
    with open_app(common) as app:
        found = app.job(job)
        did = found.resume(reason, by=by)
        row, progress = found.row(), found.progress()
    if common.json:
        print_json(job_facts(row, progress))
    else:
        say(f"job {short(row.id)} {'goes on' if did else 'was not paused'}; {progress.remaining} parts are not done")
    return exits.OK


def skip(
    job: JobName,
    part: Annotated[int, Parameter(help="The part's index, from 0.")],
    /,
    *,
    result: Annotated[str | None, option("Its result, as JSON (default: null).")] = None,
    failed: Annotated[bool, option("Declare it failed instead.")] = False,
    reason: Reason = None,
    by: By = None,
    common: Common = DEFAULT,
) -> int:
    """Declare that a part has ended, without running it. Whoever runs it is told to stop, its commit is refused."""
    import msgspec

    try:
        value = None if result is None else msgspec.json.decode(result)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadPayload(f"--result {result!r} is no JSON ({problem}); a text stands in double quotes") from None
    with open_app(common) as app:
        found = app.job(job)
        ended = found.skip(part, result=value, failed=failed, reason=reason, by=by)
        row, progress = found.row(), found.progress()
    if common.json:
        print_json(job_facts(row, progress) | {"ended": ended})
    else:
        how = "failed" if failed else "done"
        rest = f"the job {row.status}" if ended else f"{progress.remaining} parts are not done"
        say(f"part {part} of job {short(row.id)} counts as {how}; {rest}")
    return exits.OK


def redrive(
    job: JobName,
    /,
    *,
    part: Annotated[list[int] | None, option("Only this part, by its index from 0. May be repeated.")] = None,
    attempts: Annotated[int | None, option("Attempts for each part (default: as at first).")] = None,
    give_up_after: Annotated[str | None, option("Deadline of the new run: 30m, 2h, 1d.")] = None,
    reason: Reason = None,
    by: By = None,
    common: Common = DEFAULT,
) -> int:
    """Open a new run of an ended job for its failed and abandoned parts. Succeeded parts are never run again."""
    from fanin.runtime.task import check_attempts

    if attempts is not None:
        check_attempts(attempts)
    with open_app(common) as app:
        found = app.job(job)
        run = found.redrive(part, attempts=attempts, give_up_after=give_up_after, reason=reason, by=by)
        row, progress = found.row(), found.progress()
    if common.json:
        print_json(job_facts(row, progress) | {"redriven": run > 0})
    elif run == 0:
        say(f"nothing to redrive: no part of job {short(row.id)} is failed or abandoned")
    else:
        say(f"job {short(row.id)}: run {run} has begun, {progress.remaining} parts to do. Workers of queue {row.queue} "
            "will take them")  # fmt: skip
    return exits.OK
