"""Take each guard out of the protocol's SQL in turn, and see which suites notice.

    python tools/mutants.py list
    python tools/mutants.py run [--only TEXT] [--suites protocol,crashes,...] [--all] [--write docs/mutation.md]

A guard is a condition of a write, or of the statement that locks its rows, about more than the key: a state, a token,
a clock, a counter, a lock. A mutant is a statement without one of them, wherever it stands in the statement. Without
``--all`` a mutant is done when one suite has noticed; a mutant that no suite notices is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fanin.protocol import steps

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("submit", "lease", "finish", "close", "redrive")
SUITES = {
    "room": ["tests/protocol/test_{room}.py", "tests/protocol/test_meanwhile.py"],
    "protocol": ["tests/protocol"],
    "crashes": ["tests/crashes"],
    "races": ["tests/races"],
    "invariants": ["tests/invariants"],
    "runtime": ["tests/runtime"],
}
VARIABLE = "FANIN_MUTANT"
EQUIVALENT = {
    "finish.close_stripes: NOT closed": "all stripes are locked before, and closing a closed one writes the same again",
}
"""Mutants that change nothing that could be seen, and why; they are listed, not run."""
_WRITES = re.compile(r"\b(UPDATE|INSERT|FOR NO KEY UPDATE)\b")
_GUARD = re.compile(r"\b(status|attempt|claim_id|closed|sealed|judged|ready|due_at|open_stripes|give_up_at|outcome)\b")
_CLAUSE_END = re.compile(r"\b(RETURNING|ORDER BY|GROUP BY|HAVING|LIMIT|FOR NO KEY|ON CONFLICT)\b|;")
_LOCK = re.compile(r"FOR NO KEY UPDATE( OF \w)?(?! SKIP)")


class Mutant(NamedTuple):
    room: str
    statement: str
    guard: str

    @property
    def name(self) -> str:
        return f"{self.room}.{self.statement}: {self.guard}"

    def encode(self) -> str:
        return "\x1f".join(self)


def mutants() -> Iterator[Mutant]:
    """One per statement and guard; the same guard in both renderings of a statement is one mutant."""
    for room in ROOMS:
        for query in steps.Room(room):
            found: dict[str, None] = {}
            for text in query.texts.values():
                if _WRITES.search(text):
                    for guard in guards(text):
                        found[guard] = None
            yield from (Mutant(room, query.name, guard) for guard in found)


def guards(text: str) -> Iterator[str]:
    bare = "\n".join(re.sub(r"--.*$", "", line) for line in text.splitlines())
    for match in re.finditer(r"\bWHERE\s|\bON\s+(?=p\.|s\.|j\.)", bare):
        for condition in _conjuncts(bare[match.end() :]):
            if _GUARD.search(condition):
                yield condition
    yield from dict.fromkeys(m[0].strip() for m in _LOCK.finditer(bare))


def _conjuncts(text: str) -> Iterator[str]:
    """The conditions joined by AND at the depth at which ``text`` begins, up to the end of their clause."""
    depth, start, position = 0, 0, 0
    while position < len(text):
        char = text[position]
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and (end := _CLAUSE_END.match(text, position)) and not text[position - 1].isalnum():
            del end
            break
        elif depth == 0 and re.match(r"\bAND\b", text[position:]) and not text[position - 1].isalnum():
            yield text[start:position].strip()
            start = position + 3
            position = start
            continue
        position += 1
    yield text[start:position].strip()


def mutate(queries: steps.Room, mutant: Mutant) -> None:
    """Change the statement in place, in whichever rendering has the guard."""
    query = getattr(queries, mutant.statement)
    put = "" if mutant.guard.startswith("FOR NO KEY") else "true"
    pattern = re.compile(r"\s+".join(re.escape(word) for word in mutant.guard.split()))
    texts = {dialect: pattern.sub(put, text) for dialect, text in query.texts.items()}
    if texts == query.texts:
        raise LookupError(f"{mutant.name} changes nothing")
    query.texts = texts


def apply_from_environment() -> str | None:
    """For the test run of a mutant: change the loaded protocol. The name of the mutant, if there is one."""
    encoded = os.environ.get(VARIABLE)
    if not encoded:
        return None
    import importlib

    mutant = Mutant(*encoded.split("\x1f"))
    mutate(importlib.import_module(f"fanin.protocol.{mutant.room}").SQL, mutant)
    return mutant.name


def noticed(mutant: Mutant, suite: str, seconds: float) -> bool:
    """Whether any test of the suite goes red (a run that hangs has noticed too)."""
    environment = {**os.environ, VARIABLE: mutant.encode()}
    paths = [path.format(room=mutant.room) for path in SUITES[suite]]
    processes = "0" if suite == "room" else "2"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", processes, "--timeout", "60", *paths]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"pytest could not run {suite}:\n{done.stdout.decode()[-2000:]}")
    return done.returncode != 0


def report(rows: list[tuple[Mutant, list[str]]], suites: list[str], every: bool) -> str:
    caught = sum(1 for _, by in rows if by)
    lines = [
        "# Guards, and the tests that notice when one is gone",
        "",
        "Written by `python tools/mutants.py run --write docs/mutation.md`. Each row is one condition of a write of",
        f"the protocol, taken out wherever it stands in it. {caught} of {len(rows)} mutants were noticed.",
        "All suites were run on each." if every else "A mutant was done when the first suite had noticed it.",
        f"Suites, in this order: {', '.join(suites)}.",
        "",
        "| statement | guard taken out | noticed by |",
        "| --- | --- | --- |",
    ]
    for mutant, by in rows:
        guard = " ".join(mutant.guard.split()).replace("|", "\\|")
        lines.append(f"| {mutant.room}.{mutant.statement} | `{guard}` | {', '.join(by) or '**nothing**'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["list", "run"])
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--suites", default="room,races,protocol,crashes,invariants")
    parser.add_argument("--all", action="store_true", help="run all suites on each mutant")
    parser.add_argument("--seconds", type=float, default=240.0, help="the longest run of one suite")
    parser.add_argument("--write", type=Path, help="the report's file")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if options.only in mutant.name]
    if options.what == "list":
        print("\n".join(" ".join(mutant.name.split()) for mutant in chosen))
        return 0
    suites = options.suites.split(",")
    rows: list[tuple[Mutant, list[str]]] = []
    for number, mutant in enumerate(chosen, 1):
        began = time.monotonic()
        by: list[str] = []
        if mutant.name in EQUIVALENT:
            rows.append((mutant, [f"(equivalent: {EQUIVALENT[mutant.name]})"]))
            continue
        for suite in suites:
            if noticed(mutant, suite, options.seconds):
                by.append(suite)
                if not options.all:
                    break
        rows.append((mutant, by))
        took = time.monotonic() - began
        name = " ".join(mutant.name.split())
        print(f"{number}/{len(chosen)} {took:5.1f} s  {', '.join(by) or 'NOT NOTICED':<12} {name}", flush=True)
        if options.write:
            options.write.write_text(report(rows, suites, options.all), encoding="utf-8")
    missed = [mutant.name for mutant, by in rows if not by]
    print(f"{len(rows) - len(missed)} of {len(rows)} mutants noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
