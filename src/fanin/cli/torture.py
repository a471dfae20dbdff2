"""``fanin torture``: kill, freeze and cut a program on your own database, then count."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from fanin.cli import exits
from fanin.cli.options import DEFAULT, Common, option, print_json
from fanin.domain.errors import BadOption
from fanin.stores import default_url

if TYPE_CHECKING:
    from fanin.testing.torture.report import Account

MOST_MINUTES = 24 * 60
INCONCLUSIVE = 3


def torture(
    *,
    minutes: Annotated[float, option("How long the storm and the calm take together (default: 2).")] = 2.0,
    seed: Annotated[int | None, option("Draw the same jobs and faults again (default: a new one, printed).")] = None,
    workers: Annotated[int, option("Worker processes (default: 8).")] = 8,
    jobs: Annotated[int | None, option("Submit no more than so many jobs (default: as many as fit).")] = None,
    break_: Annotated[
        str | None, option("Remove this guard from the program; the judge must notice (see --list).", "--break")
    ] = None,
    no_control: Annotated[bool, option("Leave out the short runs with a guard removed at the end.")] = False,
    own_server: Annotated[
        bool, option("Start a private PostgreSQL from this machine's programs, crash and restart it meanwhile.")
    ] = False,
    keep: Annotated[bool, option("Do not remove the tables and the histories.")] = False,
    list_: Annotated[bool, option("Print the crash points and the guards, and do nothing.", "--list")] = False,
    common: Common = DEFAULT,
) -> int:
    """Show on your own database that nothing is lost and nothing counts twice.

    Works in a schema or a file of its own and removes it. Exits with 0 if every promise held, 1 if one was broken
    (with --break: if that was noticed), 3 if the run has not met every fault and race that it should show.
    """
    from fanin.testing.torture import breaks, run
    from fanin.testing.torture.report import control_lines, lines
    from fanin.testing.torture.server import private_server

    if list_:
        return _list(common)
    if not 0.05 <= minutes <= MOST_MINUTES:
        raise BadOption(f"--minutes {minutes:g}: give 0.05 (3 seconds) to {MOST_MINUTES} (a day)")
    if not 1 <= workers <= 100:
        raise BadOption(f"--workers {workers}: give 1 to 100")
    if jobs is not None and jobs < 1:
        raise BadOption(f"--jobs {jobs}: give 1 or more")
    if own_server and common.url is not None:
        raise BadOption("--own-server starts a database, --url names one: choose")
    chosen = secrets.randbelow(10**6) if seed is None else seed
    controls = () if no_control or break_ is not None else tuple(breaks.BREAKS)
    tell = _teller(common)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(private_server()) if own_server else None
        url = common.url or default_url() if server is None else server.url
        request = run.Request(
            url=url, seed=chosen, seconds=minutes * 60, workers=workers, jobs=jobs, broken=break_, controls=controls,
            keep=keep,
        )  # fmt: skip
        account = run.torture(request, tell, server)
    tell("")
    if common.json:
        print_json({"verdict": account.verdict, "account": account})
    else:
        where = "--own-server" if own_server else f"--url '{account.url.partition('?')[0].partition('.torture-')[0]}'"
        print(f"torture of {account.url}, seed {chosen}")
        print("\n".join([*lines(account), *control_lines(account.controls)]))
        extra = "".join(f" --{name} {value}" for name, value in (("break", break_), ("jobs", jobs)) if value)
        print(f"{account.verdict}  replay: fanin torture {where} --minutes {minutes:g} --seed {chosen} "
              f"--workers {workers}{extra}")  # fmt: skip
    return exit_code(account)


def exit_code(account: Account) -> int:
    """0 for a pass, 3 where nothing was shown, 1 for a broken promise (and for a removed guard that was noticed)."""
    return {"PASS": exits.OK, "INCONCLUSIVE": INCONCLUSIVE}.get(account.verdict, exits.FAILED)


def _list(common: Common) -> int:
    from fanin.testing.crashpoints import POINTS
    from fanin.testing.torture.breaks import BREAKS

    if common.json:
        print_json({
            "crash_points": {name: point.sentence for name, point in POINTS.items()},
            "guards": {name: found.sentence for name, found in BREAKS.items()},
        })  # fmt: skip
        return exits.OK
    print("crash points (also for your own tests, see fanin.testing.crashpoints):")
    for name, point in POINTS.items():
        print(f"  {name:<24} {point.sentence}")
    print("guards that --break removes:")
    for name, found in BREAKS.items():
        print(f"  {name:<24} {found.sentence}")
    return exits.OK


def _teller(common: Common) -> Callable[[str], None]:
    """Progress goes to standard error: one line that is written over on a terminal, else a line now and then."""
    terminal = sys.stderr.isatty()
    told = 0

    def tell(line: str) -> None:
        nonlocal told
        if terminal:
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        elif line and told % 10 == 0 and not common.json:
            print(line, file=sys.stderr, flush=True)
        told += 1

    return tell
