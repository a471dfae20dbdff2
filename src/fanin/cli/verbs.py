"""``fanin cancel``, ``finish``, ``pause``, ``resume``, ``skip`` and ``redrive``: what an operator may do to a job."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import job_facts, short
from fanin.domain.errors import BadOption, BadPayload, NotAllowedNow, UnknownTask
from fanin.domain.flows import EXPAND
from fanin.protocol import read

if TYPE_CHECKING:
    import fanin

Reason = Annotated[str | None, option("Why, for those who look at the job later.")]
By = Annotated[str | None, option("Who says so (default: you@this-host).")]
JobName = Annotated[str, Parameter(help="The job's id, the beginning of it, or its key.")]
UNSAID = {
    EXPAND: "makes the job of a step, and has no result of its own: skip parts of that job",
    "fanin.map": "runs a command, and nobody but it can say what it has printed and written: run the job to its end",
}
"""Why the result of a part of a built-in task cannot be said by hand."""


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
    result: Annotated[str | None, option("Its result, as JSON. Must be given if something gets it.")] = None,
    failed: Annotated[bool, option("Declare it failed instead.")] = False,
    target: Annotated[
        str | None, option("MODULE:APP, where the task is: check the result against what it returns.", "--app")
    ] = None,
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
    with open_app(common) if target is None else _with_tasks(target, common) as app:
        found = app.job(job)
        task = found.row().task
        known = task in app.tasks
        if target is not None and not known:
            raise UnknownTask(f"{target} has no task {task!r}: it has {', '.join(app.tasks)}")
        receiver = None if failed else _receiver(app, found, part, given=known or result is not None)
        ended = found.skip(part, result=value, failed=failed, reason=reason, by=by)
        row, progress = found.row(), found.progress()
    if common.json:
        print_json(job_facts(row, progress) | {"ended": ended, "checked": known and not failed})
    else:
        how = "failed" if failed else "done"
        rest = f"the job {row.status}" if ended else f"{progress.remaining} parts are not done"
        say(f"part {part} of job {short(row.id)} counts as {how}; {rest}")
        if receiver is not None and not known:
            say(f"{receiver}, gets its result, which was not checked: --app MODULE:APP does that")
    return exits.OK


def _with_tasks(target: str, common: Common) -> fanin.App:
    """An application on the database that was named, or else on its own, with the tasks of ``target``."""
    import fanin
    from fanin.cli.load import load_app

    if common.url is not None:
        os.environ["FANIN_URL"] = common.url  # read by the module when it makes its application
    loaded = load_app(target)
    made = fanin.App(common.url or loaded.url)
    made.tasks.update(loaded.tasks)
    return made


def _receiver(app: fanin.App, job: fanin.Job, part: int, *, given: bool) -> str | None:
    """Who gets the result of a part that is skipped. Raises `NotAllowedNow` for a part whose result nobody can say, and
    `BadOption` if it should be said, or checked, and is not."""
    row = job.row()
    if row.task in UNSAID:
        raise NotAllowedNow(f"part {part} of job {short(row.id)} {UNSAID[row.task]}, or declare it --failed")
    receiver = app.store.read(lambda: read.receiver(row.bucket, row.id))
    found = app.store.read(lambda: read.part(row.bucket, row.id, part))
    if receiver is not None and not given and found is not None and found["status"] in ("pending", "running"):
        raise BadOption(
            f"part {part} of job {short(row.id)}: {receiver}, gets its result, so say what that is: --result JSON, "
            "which --app MODULE:APP checks against what the task returns; --result null if it is null; or --failed"
        )
    return receiver


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
        row, progress, after = found.row(), found.progress(), None
        if run == 0:
            after = found.successor
            while after is not None and after.status == "completed":
                after = after.successor
        stands = "" if after is None else after.status
    if common.json:
        print_json(job_facts(row, progress) | {"redriven": run > 0})
    elif run == 0:
        say(f"nothing to redrive: no part of job {short(row.id)} is failed or abandoned")
        if after is not None and stands in ("failed", "cancelled"):
            say(f"a job that followed it has {stands}: fanin redrive {short(after.id)}")
    else:
        say(f"job {short(row.id)}: run {run} has begun, {progress.remaining} parts to do. Workers of queue {row.queue} "
            "will take them")  # fmt: skip
    return exits.OK
