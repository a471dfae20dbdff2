"""Take each guard out of the protocol's SQL in turn, and see which suites notice.

    python tools/mutants.py list
    python tools/mutants.py run [--only TEXT… | --new] [--suites protocol,races,…] [--enough 2 | --all] [--write FILE]

A mutant is one statement in the words of one database without one of its guards (`tools/guards.py`), wherever that
stands in the statement. A suite has noticed it when a test is red, and green again with the guard back. A mutant that
no suite notices is an error, unless it is EQUIVALENT. What noticed it the last time, says the report, is asked first.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import hypothesis.stateful
import psycopg
import pytest

from tools.guards import DATABASES, UNTRIED, VARIABLE, Mutant, mutants
from tools.mutants_equivalent import EQUIVALENT

WARM = (hypothesis.stateful, psycopg)
ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "mutation.md"
GUARDS = {
    **dict.fromkeys(("nest", "waiting", "growth", "outputs", "skip", "pause"), "_parts"),
    **dict.fromkeys(("advance", "flow"), "_flows"),
    "effect": "_effects",
    "repair": "_repair",
}
"""The rooms whose statements are said alone in a file of their own."""
HELD = " ".join(f"tests/races/test_{name}.py" for name in ("held", "held_rows", "skips", "lock_order"))
SUITES = {
    "protocol": ["tests/protocol/test_guards{guards}.py tests/protocol/test_{room}.py", "tests/protocol"],
    "races": [HELD, "tests/races"],
    "crashes": ["tests/crashes"],
    "invariants": ["tests/invariants"],
    "runtime": ["tests/runtime"],
}
"""The paths of each suite, the likeliest first. The quickest suite stands first too."""


class Noticed(NamedTuple):
    """The suites that went red, and the first red test of the first of them."""

    suites: tuple[str, ...]
    test: str

    @property
    def stands(self) -> bool:
        """Whether there is such a test today."""
        path, _, name = self.test.partition("::")
        file = ROOT / path
        return bool(self.suites) and file.exists() and f"def {name.partition('[')[0]}(" in file.read_text("utf-8")


def first_red(targets: Iterable[str], seconds: float, mutant: Mutant | None = None) -> str | None:
    """The first test of these paths that goes red, or None. With a mutant only the tests on its database are run."""
    targets = list(targets)
    options = ["-q", "-x", "-p", "no:cacheprovider", *(f"--ignore={path}" for path in mutating())]
    if not all("::" in target for target in targets):
        options += ["-k", {"pg": "pg", "lite": "sqlite"}[mutant.dialect]] if mutant else []
    if not all(".py" in target for target in targets):
        options += ["-n", "2", "--dist", "worksteal"]
    with tempfile.TemporaryFile() as output:
        child = multiprocessing.get_context("fork").Process(
            target=_pytest, args=([*options, *targets], mutant.encode() if mutant else "", output.fileno())
        )
        child.start()
        child.join(seconds)
        if child.is_alive():
            child.kill()
            raise SystemExit(f"{targets} took longer than {seconds} s")
        output.seek(0)
        said = output.read().decode()
    if child.exitcode in (0, 4, 5):  # passed, or there is no such test (any more, or on this database)
        return None
    red = re.search(r"^(?:FAILED|ERROR) (tests/\S+::.+?)(?: - .*)?$", said, re.MULTILINE)
    if child.exitcode not in (1, 2) or red is None:
        raise SystemExit(f"pytest ended with {child.exitcode} and no red test:\n{said[-3000:]}")
    return red[1]


def _pytest(arguments: list[str], mutant: str, output: int) -> None:
    """In a fork of this process, so that what pytest imports is imported once."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ[VARIABLE] = mutant
    os.chdir(ROOT)
    sys.exit(pytest.main(arguments))


@functools.cache
def mutating() -> list[Path]:
    """Test files that take guards out themselves: they would be red for want of what they look for."""
    return [
        path for path in sorted((ROOT / "tests").rglob("*.py")) if "fanin.testing.mutate" in path.read_text("utf-8")
    ]


@functools.cache
def green(test: str, seconds: float) -> bool:
    return first_red([test], seconds) is None


def notice(mutant: Mutant, suite: str, seconds: float, known: list[str]) -> str | None:
    """The test of the suite that goes red with the mutant and is green without. Those ``known`` are asked first."""
    stages = [[test for test in known if test.startswith(f"tests/{suite}/")]]
    stages += [path.format(room=mutant.room, guards=GUARDS.get(mutant.room, "")).split() for path in SUITES[suite]]
    for stage in stages:
        paths = [path for path in stage if (ROOT / path.partition("::")[0]).exists()]
        red = first_red(paths, seconds, mutant) if paths else None
        if red is not None:
            if not green(red, seconds):
                raise SystemExit(f"{red} is red without {mutant.name} too: repair it first")
            return red
    return None


def known(mutant: Mutant, found: dict[Mutant, Noticed]) -> list[str]:
    """The tests that noticed it before, or other mutants of the same statement, in the words of its own database."""
    near = [other for other in found if other[:2] == mutant[:2] and found[other].stands]
    near.sort(key=lambda other: (other != mutant, other.guard != mutant.guard))
    tests = (found[other].test for other in near)
    if mutant.dialect == "pg":
        return list(dict.fromkeys(test.replace("[sqlite", "[pg") for test in tests))
    return list(dict.fromkeys(test.replace("[pg", "[sqlite") for test in tests if not test.startswith("tests/races/")))


# The report.

COLUMNS = "| statement | guard taken out | database | noticed by | a test that goes red |"


def report(found: dict[Mutant, Noticed]) -> str:
    """The document, of the mutants that there are now."""
    tried = {mutant: found.get(mutant, Noticed((), "")) for mutant in mutants() if mutant.name not in EQUIVALENT}
    same = [mutant for mutant in mutants() if mutant.name in EQUIVALENT]
    caught = [by for by in tried.values() if by.suites]
    counts = {suite: sum(suite in by.suites for by in caught) for suite in SUITES}
    return "\n".join(
        [
            "# Guards, and the tests that notice when one is gone",
            "",
            "Written by `tools/mutants.py`, not by hand. Each row is one statement of the protocol without one of",
            "its guards, in the words of one database: a condition of a write about more than the key, or a lock. A",
            "suite has noticed it when a test is red, and green again with the guard back.",
            "",
            f"{len(tried) + len(same)} mutants: {len(caught)} noticed, {len(tried) - len(caught)} not noticed, "
            f"{len(same)} equivalent. By two suites or more: {sum(len(by.suites) > 1 for by in caught)}.",
            "The first suites that noticed: " + ", ".join(f"{suite} {n}" for suite, n in counts.items() if n) + ".",
            f"Rooms whose guards have not been tried yet: {', '.join(UNTRIED) or 'none'}.",
            "",
            COLUMNS,
            "| --- | --- | --- | --- | --- |",
            *(
                f"| {where(mutant)} | {', '.join(by.suites) or '**nothing**'} | {by.test and f'`{by.test}`'} |"
                for mutant, by in tried.items()
            ),
            "",
            "## Equivalent",
            "",
            "Without these no schedule ends differently. They stay: a statement says by itself what it relies on.",
            "",
            "| statement | guard | database | why nothing changes |",
            "| --- | --- | --- | --- |",
            *(f"| {where(mutant)} | {EQUIVALENT[mutant.name]} |" for mutant in same),
            "",
        ]
    )


def where(mutant: Mutant) -> str:
    guard = mutant.guard.replace("|", "\\|")
    return f"{mutant.room}.{mutant.statement} | `{guard}` | {DATABASES[mutant.dialect]}"


def reported(text: str) -> dict[str, Noticed]:
    """What a report says: the start of a row, as `where` writes it, to what noticed it."""
    table = text.partition(COLUMNS)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+\.\w+ \| `.+?` \| \w+) \| (.*?) \| `?(.*?)`? \|$", table, re.MULTILINE)
    return {
        where: Noticed(() if suites == "**nothing**" else tuple(suites.split(", ")), test)
        for where, suites, test in rows
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("--only", nargs="*", default=[], help="mutants whose name contains all of these")
    parser.add_argument(
        "--new", action="store_true", help="mutants that the checked-in report does not show as noticed"
    )
    parser.add_argument("--suites", default="protocol,races,crashes,invariants", help="in this order")
    parser.add_argument("--enough", type=int, default=1, help="a mutant is done when so many suites have noticed")
    parser.add_argument("--all", action="store_true", help="run all suites on each mutant")
    parser.add_argument("--seconds", type=float, default=900.0, help="the longest run of one suite; longer is an error")
    parser.add_argument("--write", type=Path, help="the report's file, written anew after each mutant")
    options = parser.parse_args()
    before = reported(REPORT.read_text("utf-8")) if REPORT.exists() else {}
    found = {mutant: before[where(mutant)] for mutant in mutants() if where(mutant) in before}
    chosen = [mutant for mutant in mutants() if all(word in mutant.name for word in options.only)]
    if options.new:
        chosen = [mutant for mutant in chosen if not (mutant in found and found[mutant].stands)]
    if options.what == "list":
        print("\n".join(mutant.name + " equivalent" * (mutant.name in EQUIVALENT) for mutant in chosen))
        return 0
    from tests.support.postgres import RUN_VARIABLE, Guard

    guard = Guard()  # one server for all runs
    os.environ[RUN_VARIABLE] = str(guard.directory)
    try:
        return run(options, chosen, found)
    finally:
        guard.close()


def run(options: argparse.Namespace, chosen: list[Mutant], found: dict[Mutant, Noticed]) -> int:
    suites = options.suites.split(",")
    enough = len(suites) if options.all else options.enough
    chosen = [mutant for mutant in chosen if mutant.name not in EQUIVALENT]
    for number, mutant in enumerate(chosen, 1):
        began = time.monotonic()
        by: dict[str, str] = {}
        for suite in sorted(suites, key=lambda suite: suite != "races") if mutant.is_lock else suites:
            if red := notice(mutant, suite, options.seconds, known(mutant, found)):
                by[suite] = red
                if len(by) == enough:
                    break
        found[mutant] = Noticed(tuple(by), next(iter(by.values()), ""))
        took = f"{time.monotonic() - began:5.1f} s"
        print(f"{number}/{len(chosen)} {took}  {', '.join(by) or 'NOT NOTICED':<12} {mutant.name}", flush=True)
        if options.write:
            options.write.write_text(report(found), encoding="utf-8")
    missed = [mutant.name for mutant in chosen if not found[mutant].suites]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} mutants noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
