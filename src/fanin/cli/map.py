"""``fanin map``: run a command for each input, durably, and another one when all are done."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Group, Parameter

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, open_app, option
from fanin.domain.errors import BadOption

JOB = Group("What is run", sort_key=1)
WORK = Group("How it is run", sort_key=2)
SHOW = Group("What is shown", sort_key=3)

USAGE = "fanin map [OPTIONS] -- COMMAND [::: INPUT...]"


def split_command_line(tokens: Sequence[str]) -> tuple[list[str], list[str] | None, list[str] | None]:
    """(options, command, inputs) of what stands after ``fanin map``; the command is what follows ``--``."""
    tokens = list(tokens)
    if "--" not in tokens:
        head = tokens
        if ":::" in tokens:
            raise BadOption(f"the command must stand after --, as in: {USAGE}")
        return head, None, None
    cut = tokens.index("--")
    head, rest = tokens[:cut], tokens[cut + 1 :]
    if ":::" in head:
        raise BadOption(f"the inputs (:::) come after the command, as in: {USAGE}")
    if ":::" not in rest:
        return head, rest, None
    cut = rest.index(":::")
    command, inputs = rest[:cut], rest[cut + 1 :]
    if ":::" in inputs:
        raise BadOption("::: may stand once: give all inputs after the first one")
    return head, command, inputs


def map_(
    *,
    command: Annotated[list[str] | None, Parameter(parse=False)] = None,
    inputs: Annotated[list[str] | None, Parameter(parse=False)] = None,
    arg_file: Annotated[
        list[str] | None,
        option(
            "Read inputs from a file, one a line; - is standard input. May be repeated.", "--arg-file", "-a", group=JOB
        ),
    ] = None,
    null: Annotated[
        bool, option("Inputs in files and pipes end with NUL, as from find -print0.", "--null", "-0", group=JOB)
    ] = False,
    shell: Annotated[bool, option("Give several command words to the shell, as one line.", group=JOB)] = False,
    then: Annotated[
        str | None,
        option(
            "Run this once when all inputs are done. In it: {outs}, {outs-file}, {failures}. Its standard input is "
            "what all the commands printed, in order.",
            group=JOB,
        ),
    ] = None,
    outdir: Annotated[
        str, option("Folder for the files that commands write to {out} (default: here).", group=JOB)
    ] = ".",
    tolerate: Annotated[str | None, option("Failed parts that are still a success: 3, or 1%.", group=JOB)] = None,
    fail_fast: Annotated[bool, option("End the job at the first failure that is not tolerated.", group=JOB)] = False,
    give_up_after: Annotated[
        str | None, option("End the job as failed after this time: 90s, 30m, 2h, 1d.", group=JOB)
    ] = None,
    key: Annotated[
        str | None,
        option(
            "The job's key (default: follows from the command, the inputs and the folder).",
            "--key",
            "--name",
            group=JOB,
        ),
    ] = None,
    jobs: Annotated[
        int | None, option("Commands at once in this process (default: one per processor).", "--jobs", "-j", group=WORK)
    ] = None,
    attempts: Annotated[int, option("How often a failing command is tried (default: 3).", group=WORK)] = 3,
    timeout: Annotated[str | None, option("End a command that takes longer: 30s, 10m.", group=WORK)] = None,
    lease: Annotated[
        str, option("How soon others take over the parts of a host that died (default: 15s).", group=WORK)
    ] = "15s",
    redrive: Annotated[bool, option("Try the failed parts of the ended job again.", group=WORK)] = False,
    again: Annotated[bool, option("If the job has ended, run all of it once more.", group=WORK)] = False,
    dry_run: Annotated[
        bool, option("Show the width, the bounds and the first commands; write nothing.", group=WORK)
    ] = False,
    keep_order: Annotated[
        bool,
        option("Print the output of all parts in the order of the inputs.", "--keep-order", "-k", group=SHOW),
    ] = False,
    results: Annotated[
        str | None, option("Write output to DIR/NUMBER.stdout and .stderr, not to the terminal.", group=SHOW)
    ] = None,
    quiet: Annotated[bool, option("No progress and no notes.", "--quiet", "-q", group=SHOW)] = False,
    common: Common = DEFAULT,
) -> int:
    """Run COMMAND once for each INPUT, and go on after any crash.

    Example: make small pictures, then put all of them into one file.

    fanin map --then 'zip -q all.zip {outs}' -- 'convert {} {out}.jpg' ::: *.png

    One string after -- is run by sh; several words are run as they are. In it:
      {}    the input                     {.}   the input without its extension
      {/}   its base name                 {/.}  its base name without extension
      {//}  its folder                    {#}   its number, from 1
      {out} a file for output: {out}.jpg becomes NAME.jpg when the part is done
    Without any of them the input is the last word. Quotes around them do no harm.

    The same command line in the same folder is the same job: it goes on where it
    was, in as many terminals as you like.
    """
    import logging

    from fanin.cli.mapping.drive import Drive, Options
    from fanin.cli.mapping.inputs import gather
    from fanin.cli.mapping.plan import Plan
    from fanin.cli.mapping.screen import Screen
    from fanin.cli.mapping.template import part_template, then_template
    from fanin.domain.durations import seconds
    from fanin.domain.policy import parse_tolerate
    from fanin.runtime.task import check_lease

    template = part_template(command or [], shell)
    after = None if then is None else then_template(then, bool(template.out_suffixes()))
    parse_tolerate(tolerate)
    if give_up_after is not None:
        seconds(give_up_after, "--give-up-after")
    options = Options(
        jobs=_at_least_one(jobs if jobs is not None else os.cpu_count() or 1, "-j"),
        attempts=_attempts(attempts), timeout=None if timeout is None else _timeout(timeout),
        lease=check_lease(seconds(lease, "--lease")), again=again, redrive=redrive, keep_order=keep_order,
        results=results,
    )  # fmt: skip
    plan = Plan(
        template, after, gather(inputs, arg_file or [], null), os.path.normpath(outdir), null, key, tolerate, fail_fast,
        give_up_after,
    )  # fmt: skip
    if dry_run:
        return _dry_run(plan, options, common)
    for folder in filter(None, [plan.outdir, results]):
        _make_folder(folder)
    screen = Screen(quiet=quiet, json=common.json)
    logging.getLogger("fanin").setLevel(logging.ERROR)  # what else happens is told by the screen, once
    with open_app(common) as app:
        return Drive(app, plan, options, screen).run()


def _dry_run(plan: object, options: object, common: Common) -> int:
    from fanin.cli.mapping.drive import Options
    from fanin.cli.mapping.outputs import final_path
    from fanin.cli.mapping.plan import Plan, clean
    from fanin.cli.options import print_json

    assert isinstance(plan, Plan)
    assert isinstance(options, Options)
    stems = plan.stems()
    commands = []
    for n, item in enumerate(plan.items[:5]):
        rendered = plan.command(item, n + 1, lambda suffix, n=n: final_path(plan.outdir, stems[n] + suffix))  # type: ignore[misc]
        commands.append(clean(rendered if isinstance(rendered, str) else shlex.join(rendered)))
    facts = {
        "parts": len(plan.items), "jobs": options.jobs, "attempts": options.attempts, "timeout": options.timeout,
        "tolerate": plan.tolerate, "give_up_after": plan.give_up_after, "key": plan.base_key(),
        "then": plan.then.source if plan.then else None, "commands": commands,
    }  # fmt: skip
    if common.json:
        print_json(facts)
        return exits.OK
    timeout = "no limit" if options.timeout is None else f"{options.timeout:g} s"
    print(f"{len(plan.items)} parts, {options.jobs} at once, {options.attempts} attempts each, time limit: {timeout}")
    print(f"tolerated failures: {plan.tolerate or 0}, gives up: {plan.give_up_after or 'never'}")
    print(f"key: {plan.base_key()}")
    for command in commands:
        print(f"  {command}")
    if len(plan.items) > len(commands):
        print(f"  … and {len(plan.items) - len(commands)} more")
    if plan.then is not None:
        print(f"then: {plan.then.source}")
    return exits.OK


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as problem:
        raise BadOption(f"cannot use the folder {folder}: {problem.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadOption(f"cannot write in the folder {folder}: choose another with --outdir or --results")


def _at_least_one(value: int, name: str) -> int:
    if value < 1:
        raise BadOption(f"{name} {value}: at least 1 command must be able to run")
    return value


def _attempts(value: int) -> int:
    if not 1 <= value <= 100:
        raise BadOption(f"--attempts {value}: give 1 to 100")
    return value


def _timeout(value: str) -> float:
    from fanin.domain.durations import seconds

    found = seconds(value, "--timeout")
    if found == 0:
        raise BadOption("--timeout 0: give a time above zero, or leave it away for no limit")
    return found
