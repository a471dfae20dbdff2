"""The command line. Each command is a module of its own and is imported only when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from fanin.cli import exits


class Command(NamedTuple):
    module: str
    function: str
    summary: str


COMMANDS = {
    "map": Command("map", "map_", "run a shell command for each input, and one when all are done"),
    "work": Command("work", "work", "run workers for the tasks of a Python application"),
    "jobs": Command("jobs", "jobs", "list the newest jobs"),
    "show": Command("show", "show", "show one job: its parts, failures and history"),
    "watch": Command("watch", "watch", "follow one job or flow until it has ended"),
    "explain": Command("explain", "explain", "tell what happened to a job, and why"),
    "cancel": Command("verbs", "cancel", "end a job now"),
    "finish": Command("verbs", "finish", "end a job now with what has arrived; its successor runs"),
    "pause": Command("verbs", "pause", "let no further part of a job be started"),
    "resume": Command("verbs", "resume", "let a paused job go on"),
    "skip": Command("verbs", "skip", "declare that a part has ended, without running it"),
    "redrive": Command("verbs", "redrive", "run the failed parts of an ended job again"),
    "outputs": Command("outputs", "outputs", "list or save the files that a job's parts left"),
    "sweep": Command("outputs", "sweep", "remove the files of attempts that lost their part"),
    "flows": Command("flows", "flows", "list flows; show one with its steps, cancel it, or run it again"),
    "saga": Command("flows", "saga", "list what waits for a person to undo it, and settle it"),
    "schedules": Command("schedules", "schedules", "list schedules; pause, resume, fire or forget one"),
    "relay": Command("relay", "relay", "deliver events to a broker, a webhook or a function"),
    "events": Command("events", "events", "list events, and retry those that are stuck"),
    "purge": Command("purge", "purge", "remove jobs that ended long ago"),
    "signals": Command("signals", "signals", "count refused commits, lost leases, and what waits or is stuck"),
    "effects": Command("effects", "effects", "list calls to the outside, and settle those that nobody knows about"),
    "migrate": Command("migrate", "migrate", "make or update the tables"),
    "check": Command("check", "check", "check the promises on the live database"),
    "repair": Command("repair", "repair", "put right what does not fit the parts of a job"),
    "torture": Command("torture", "torture", "kill, freeze and cut a program on your database, then count"),
}
LEADING = {"--url": 1, "--json": 0, "--debug": 0, "--no-color": 0}
"""Common options that may also stand before the command, with the number of their values."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line. Returns the exit code (see `fanin.cli.exits`)."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    tokens, leading = _take_leading(tokens)
    if not tokens or tokens[0] in ("--help", "-h", "help"):
        print(overview())
        return exits.OK
    if tokens[0] in ("--version", "-V"):
        import fanin

        print(f"fanin {fanin.__version__}")
        return exits.OK
    name = tokens[0]
    if name not in COMMANDS:
        return fail(f"{name!r} is not a command; there are: {', '.join(COMMANDS)}. See: fanin --help", exits.USAGE)
    if "--no-color" in leading or "--no-color" in tokens:
        os.environ["NO_COLOR"] = "1"
    return _guarded(name, [*leading, *tokens[1:]])


def overview() -> str:
    """What `fanin` and `fanin --help` print."""
    width = max(map(len, COMMANDS))
    lines = [
        "fanin: fan out, fan in, exactly once. Durable parallel jobs with a join, on SQLite or PostgreSQL.",
        "",
        "Usage: fanin COMMAND [OPTIONS]        fanin COMMAND --help",
        "",
        *(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()),
        "",
        "Every command takes --url (default: FANIN_URL, else sqlite:///fanin.db), --json, --no-color and --debug.",
        "",
        "Try it; stop it with Ctrl-C or kill it, and say it again:",
        "  fanin map --then 'zip -q all.zip {outs}' -- 'gzip -c {} > {out}.gz' ::: *.txt",
    ]
    return "\n".join(lines)


def fail(text: str, code: int) -> int:
    """Say what went wrong, in one place and one form."""
    print(f"fanin: {text}", file=sys.stderr, flush=True)
    return code


def _take_leading(tokens: list[str]) -> tuple[list[str], list[str]]:
    leading: list[str] = []
    while tokens and (name := tokens[0].partition("=")[0]) in LEADING:
        count = 1 + (LEADING[name] if "=" not in tokens[0] else 0)
        leading, tokens = leading + tokens[:count], tokens[count:]
    return tokens, leading


def _guarded(name: str, tokens: list[str]) -> int:
    """Run a command; its errors become a line and an exit code."""
    from fanin.domain.errors import FaninError, Refused, Unavailable

    try:
        return _run(name, tokens)
    except KeyboardInterrupt:
        return fail("interrupted", exits.INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK  # the reader has seen enough
    except OSError as problem:  # a full disk, a folder that is gone
        if "--debug" in tokens:
            raise
        return fail(str(problem), exits.FAILED)
    except FaninError as problem:
        if "--debug" in tokens:
            raise
        refused = exits.USAGE if isinstance(problem, Refused) else exits.FAILED
        return fail(str(problem), exits.UNAVAILABLE if isinstance(problem, Unavailable) else refused)


def _run(name: str, tokens: list[str]) -> int:
    from cyclopts import App, CycloptsError

    command = COMMANDS[name]
    module = import_module(f"fanin.cli.{command.module}")
    extra: dict[str, Any] = {}
    if name == "map":
        tokens, extra["command"], extra["inputs"] = module.split_command_line(tokens)
    usage = getattr(module, f"{name.upper()}_USAGE", None) or getattr(module, "USAGE", None)
    app = App(
        name=f"fanin {name}", version_flags=(), help_flags=(), help_format="plaintext", result_action="return_value",
        usage=f"Usage: {usage}" if usage else None,
    )  # fmt: skip
    app.default(getattr(module, command.function))
    if "--help" in tokens or "-h" in tokens:
        app.help_print([])
        return exits.OK
    try:
        function, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
    except CycloptsError as problem:
        said = " ".join(str(problem).split())
        return fail(f"{said} See: fanin {name} --help", exits.USAGE)
    code: int = function(*bound.args, **{**bound.kwargs, **extra})
    return code
