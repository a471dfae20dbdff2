"""``fanin repair``: put right what does not fit the parts of a job."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option, print_json, say
from fanin.cli.tables import number, short
from fanin.domain.repairs import Repaired

USAGE = "fanin repair [OPTIONS] [JOB]"


def repair(
    job: Annotated[
        str | None, Parameter(help="Only this job, in whatever state: its id, the beginning, or its key.")
    ] = None,
    /,
    *,
    dry_run: Annotated[bool, option("Only say what is wrong. Takes no lock and writes nothing.", "--dry-run")] = False,
    common: Common = DEFAULT,
) -> int:
    """Put right what does not fit the parts: counters, parts that wait for nothing, jobs that should have ended.

    A job that lacks parts, or has too many, is paused and told: it needs a person. Where nothing is wrong nothing is
    written. Safe beside workers. Exits with 1 if something is left that is wrong.
    """
    from fanin.runtime.names import find_job
    from fanin.runtime.repair import repair as run

    with open_app(common) as app:
        chosen = None if job is None else app.store.read(lambda: find_job(job, app.store.buckets))
        done = run(app.store, chosen, dry_run=dry_run, tell=_tell)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if common.json:
        print_json(msgspec.to_builtins(done))
    else:
        print("\n".join(_lines(done, dry_run)))
    if done.damaged:
        say("what is damaged needs a person: fanin show JOB; then fanin cancel JOB, or fanin finish JOB as it is")
    return exits.FAILED if done.damaged or (dry_run and done.repaired) else exits.OK


def _lines(done: Repaired, dry_run: bool) -> list[str]:
    lines = [f"job {short(line.job)}  {line}" for line in done.repairs]
    verb = "would repair" if dry_run else "repaired"
    said = [f"looked at {number(done.looked)} jobs", f"{verb} {number(done.repaired)}"]
    said += [f"with {number(done.parts)} parts"] if done.parts else []
    said += [f"{number(done.ended)} {'would end' if dry_run else 'ended'} by it"] if done.ended else []
    said += [f"{number(done.damaged)} damaged"] if done.damaged else []
    return [*lines, ", ".join(said)]


def _tell(so_far: Repaired) -> None:
    if sys.stderr.isatty() and so_far.looked % 20 == 1:
        text = f"{number(so_far.looked)} jobs, {number(so_far.repaired)} repaired"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
