"""Take each guard out of the protocol's SQL in turn, and see which suites notice.

    python tools/mutants.py list
    python tools/mutants.py run [--only TEXT | --new] [--suites protocol,races,…] [--enough 2 | --all] [--write FILE]

A guard is a condition of a write, or of the statement that locks its rows, about more than the key: a state, a token,
a clock, a counter; or the lock itself. A mutant is one statement in the words of one database without one of them,
wherever it stands in the statement. A suite has noticed it when a test is red, and green again with the guard back.
A mutant that no suite notices is an error, unless it is EQUIVALENT.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis.stateful
import psycopg
import pytest

from fanin.protocol import steps
from tools.mutants_equivalent import EQUIVALENT

WARM = (hypothesis.stateful, psycopg)
ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "docs" / "mutation.md"
VARIABLE = "FANIN_MUTANT"
SUITES = {
    "protocol": ["tests/protocol/test_guards.py tests/protocol/test_{room}.py", "tests/protocol"],
    "races": ["tests/races/test_lock_order.py", "tests/races"],
    "crashes": ["tests/crashes"],
    "invariants": ["tests/invariants"],
    "runtime": ["tests/runtime"],
}
"""The paths of each suite, the likeliest first. The quickest suite stands first too."""
DATABASES = {"pg": "PostgreSQL", "lite": "SQLite"}

_WRITES = re.compile(r"\b(UPDATE|INSERT)\b")
_KEY = re.compile(
    r"(\w\.)?(bucket|job_id|id|idx|stripe|ctid|queue|task|value|event_key) (=|IN|>=|<) |\(:everything OR|true$"
    r"|s\.remaining > 0$"  # names the index of unswept stripes
)
_GUARD = re.compile(
    r"\b(status|attempt|claim_id|closed|sealed|judged|ready|due_at|open_stripes|give_up_at|outcome|seq)\b"
)
_CLAUSE_END = re.compile(r"(RETURNING|ORDER BY|GROUP BY|HAVING|LIMIT|FOR NO KEY|ON CONFLICT)\b|;")
_LOCK = re.compile(r"FOR NO KEY UPDATE(?: OF \w)?(?: SKIP LOCKED)?")
_SKIP = "SKIP LOCKED"


class Mutant(NamedTuple):
    room: str
    statement: str
    guard: str
    dialect: str

    @property
    def name(self) -> str:
        return f"{self.room}.{self.statement}: {self.guard} ({DATABASES[self.dialect]})"

    @property
    def is_lock(self) -> bool:
        return self.guard == _SKIP or _LOCK.match(self.guard) is not None

    def encode(self) -> str:
        return "\x1f".join(self)


class Noticed(NamedTuple):
    """The suites that went red, and the first red test of the first of them."""

    suites: tuple[str, ...]
    test: str


def rooms() -> list[str]:
    return sorted(path.stem for path in Path(steps.__file__).parent.glob("*.sql"))


def mutants() -> Iterator[Mutant]:
    for room in rooms():
        for query in steps.Room(room):
            if any(_WRITES.search(_bare(text)) for text in query.texts.values()):
                for dialect, text in query.texts.items():
                    for guard in dict.fromkeys(guard for _, _, guard in guards(text)):
                        yield Mutant(room, query.name, guard, dialect)


def guards(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, words) of each guard of a statement. Raises LookupError for a condition of an unknown kind."""
    bare = _bare(text)
    for match in re.finditer(r"\b(WHERE|ON)\s+(?!CONFLICT)", bare):
        for start, end in _conjuncts(bare, match.end()):
            words = " ".join(re.sub(r" INDEXED BY \S+", "", bare[start:end]).split()).replace("( ", "(")
            if _GUARD.search(words):
                yield start, end, words
            elif not _KEY.match(words):
                raise LookupError(f"{words!r} is neither of a key (_KEY) nor a guard (_GUARD); say in {__file__} which")
    for match in _LOCK.finditer(bare):
        yield *match.span(), match[0]
        if match[0].endswith(_SKIP):
            yield match.end() - len(_SKIP), match.end(), _SKIP


def _bare(text: str) -> str:
    """The text with blanks for comments."""
    return re.sub(r"--.*$", lambda comment: " " * len(comment[0]), text, flags=re.MULTILINE)


def _conjuncts(text: str, start: int) -> Iterator[tuple[int, int]]:
    """The conditions joined by AND at the depth of ``start``, up to the end of their clause."""
    depth, position = 0, start
    while position < len(text):
        char, word = text[position], not text[position - 1].isalnum()
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and word and _CLAUSE_END.match(text, position):
            break
        elif depth == 0 and word and re.match(r"AND\b", text[position:]):
            yield start, position
            start = position = position + 3
            continue
        position += 1
    yield start, position


def mutated(text: str, guard: str) -> str:
    """The text without the guard. Raises LookupError if it does not stand there."""
    spans = [(start, end) for start, end, words in guards(text) if words == guard]
    if not spans:
        raise LookupError(f"there is no {guard!r} in: {text}")
    for start, end in reversed(spans):
        put = "" if _SKIP in guard or _LOCK.match(guard) else " true "
        text = text[:start] + put + text[end:]
    return text


def apply_from_environment() -> str | None:
    """For the test run of a mutant: change the loaded protocol. The name of the mutant, if there is one."""
    encoded = os.environ.get(VARIABLE)
    if not encoded:
        return None
    mutant = Mutant(*encoded.split("\x1f"))
    query = getattr(importlib.import_module(f"fanin.protocol.{mutant.room}").SQL, mutant.statement)
    query.texts = {**query.texts, mutant.dialect: mutated(query.texts[mutant.dialect], mutant.guard)}
    return mutant.name


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
    if child.exitcode in (0, 5):  # passed, or there is no test on this database
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


def notice(mutant: Mutant, suite: str, seconds: float, known: str | None) -> str | None:
    """The test of the suite that goes red with the mutant and is green without; the one known from before first."""
    stages = [path.format(room=mutant.room).split() for path in SUITES[suite]]
    if known is not None and known.startswith(f"tests/{suite}/") and (ROOT / known.partition("::")[0]).exists():
        stages.insert(0, [known])
    for stage in stages:
        paths = [path for path in stage if (ROOT / path.partition("::")[0]).exists()]
        red = first_red(paths, seconds, mutant) if paths else None
        if red is not None:
            if not green(red, seconds):
                raise SystemExit(f"{red} is red without {mutant.name} too: repair it first")
            return red
    return None


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
            "",
            COLUMNS,
            "| --- | --- | --- | --- | --- |",
            *(
                f"| {_where(mutant)} | {', '.join(by.suites) or '**nothing**'} | {by.test and f'`{by.test}`'} |"
                for mutant, by in tried.items()
            ),
            "",
            "## Equivalent",
            "",
            "Without these no schedule ends differently. They stay: a statement says by itself what it relies on.",
            "",
            "| statement | guard | database | why nothing changes |",
            "| --- | --- | --- | --- |",
            *(f"| {_where(mutant)} | {EQUIVALENT[mutant.name]} |" for mutant in same),
            "",
        ]
    )


def _where(mutant: Mutant) -> str:
    guard = mutant.guard.replace("|", "\\|")
    return f"{mutant.room}.{mutant.statement} | `{guard}` | {DATABASES[mutant.dialect]}"


def reported(text: str) -> dict[str, Noticed]:
    """What a report says: the start of a row, as `_where` writes it, to what noticed it."""
    table = text.partition(COLUMNS)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+\.\w+ \| `.+?` \| \w+) \| (.*?) \| `?(.*?)`? \|$", table, re.MULTILINE)
    return {
        where: Noticed(() if suites == "**nothing**" else tuple(suites.split(", ")), test)
        for where, suites, test in rows
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("--only", default="", help="mutants whose name contains this")
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
    found = {mutant: before[_where(mutant)] for mutant in mutants() if _where(mutant) in before}
    chosen = [
        mutant for mutant in mutants()
        if options.only in mutant.name and not (options.new and mutant in found and found[mutant].suites)
    ]  # fmt: skip
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
            if red := notice(mutant, suite, options.seconds, found[mutant].test if mutant in found else None):
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
