"""What a run of ``make prove`` says to people: docs/proof.md, made of the figures that the suites left."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.postgres import installations

Entry = dict[str, Any]

ABOUT = {
    "model": (
        "The model",
        "The protocol as a small exhaustive model: every order of its steps, with crashes, within small bounds. Each"
        " variant with a guard left out has to be caught.",
    ),
    "races": (
        "Interleavings",
        "The product's own SQL on a real PostgreSQL, held before every statement and COMMIT: all orders of two"
        " transactions, of three with few switches, random ones of more. After each schedule every rule is asked.",
    ),
    "crashes": (
        "Crash cuts",
        "Every transaction is cut before each statement, before COMMIT and before its answer, then said again:"
        " it must have happened as a whole or not at all, and the second saying must leave the state of an uncut run.",
    ),
    "sagas": (
        "Sagas",
        "Flows of nine shapes fail at every part, are cancelled, overtaken, given up and killed after every"
        " transaction, their undos fail, calls land late: each step has a defined end, and what took effect is undone"
        " once, in the reverse order. Each case is judged from the database and from what was done outside.",
    ),
    "machine": (
        "Random calls against a model",
        "Random sequences of all public calls, with clock jumps, duplicates and stale tokens, said to SQLite,"
        " PostgreSQL and a dict in lock step; all three must agree after each call.",
    ),
    "powerloss": (
        "Power cuts and bad disks under SQLite",
        "All file operations of a life of jobs are recorded; disk images of every moment are made as a power cut could"
        " leave them, opened and judged. Then each call in turn answers with a full disk or an I/O error.",
    ),
    "faults": (
        "Faults of processes, databases and networks",
        "Workers killed and stopped past their leases, servers crashed, connections cut at every message, clocks moved,"
        " disks full: every case of tests/faults.",
    ),
}  # fmt: skip


SHARED = ("races", "sagas")
SHARE = " This was the short form, with a share of them; `make prove MINUTES=45` takes all."


class Ran(NamedTuple):
    """One program that ran: its name, seed, seconds, exit code and what it printed."""

    name: str
    seed: int
    seconds: float
    code: int
    output: str

    @property
    def good(self) -> bool:
        return self.code == 0

    @property
    def closing(self) -> str:
        """The last line that it printed."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return re.sub(r" in [\d.]+s.*", "", lines[-1].strip("= ")) if lines else f"it printed nothing, exit {self.code}"


def merged(entries: list[Entry]) -> Entry:
    """One entry of all: numbers added, dicts merged by name, texts and lists collected without repeats."""
    found: Entry = {}
    for entry in entries:
        for name, value in entry.items():
            before = found.get(name)
            if isinstance(value, dict):
                found[name] = merged([before or {}, value])
            elif isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = (before or 0) + value
            else:
                values = value if isinstance(value, list) else [value]
                found[name] = [*(before or []), *(one for one in values if one not in (before or []))]
    return found


def report(ran: list[Ran], recorded: dict[str, list[Entry]], bad: list[str], seed: int, minutes: float) -> str:
    """The whole page. recorded: the entries of each suite; those of a suite without a text of its own are faults.

    bad: what did not hold.
    """
    took = sum(one.seconds for one in ran) / 60
    lines = [
        "# Proof",
        "",
        f"Written by `make prove MINUTES={minutes:g}` from what it saw, never by hand; repeat it with"
        f" `make prove MINUTES={minutes:g} ARGS='--seed {seed}'`. What each suite is and how to run it alone stands in"
        " [testing.md](testing.md); which guards of the SQL were removed, and which tests noticed, in"
        " [mutation.md](mutation.md).",
        "",
        f"**{'Everything held' if not bad else 'Not everything held: ' + ', '.join(bad)}.**"
        f" {len(ran)} runs, {took:.0f} minutes.",
        "",
        *_table(["", ""], _where(recorded)),
        "",
        *_table(
            ["run", "seed", "minutes", "said"],
            [(one.name, one.seed, f"{one.seconds / 60:.1f}", _placeless(one.closing)) for one in ran],
        ),
    ]
    for suite, (title, sentence) in ABOUT.items():
        if suite in SHARED and not all(entry["long"] for entry in recorded.get(suite, [])):
            sentence += SHARE
        lines += ["", f"## {title}", "", sentence, ""]
        suites = _others(recorded) if suite == "faults" else [suite]
        told = False
        for name in suites:
            if entries := recorded.get(name, []):
                told = True
                form = "the long form" if all(entry["long"] for entry in entries) else "the short form"
                heading = [f"### {name}, {form}", ""] if suite == "faults" else []
                lines += [*heading, *_figures(merged([entry["counts"] for entry in entries])), ""]
        if not told:
            lines += ["No figures: the suite did not run to its end.", ""]
        lines.pop()
    for one in ran:
        if one.name.startswith("torture"):
            lines += [
                "",
                f"## {one.name[0].upper()}{one.name[1:]}",
                "",
                "```text",
                _placeless(one.output.strip()),
                "```",
            ]
    return "\n".join(lines) + "\n"


def _placeless(text: str) -> str:
    """Without the machine's own folders and ports, and fit for a table."""
    text = re.sub(r"sqlite:////\S*/torture\.db", "sqlite:///torture.db", text)
    return re.sub(r"(postgresql://)\S+?(?=[,\s])", r"\1…", text).replace("|", "/")


def _others(recorded: dict[str, list[Entry]]) -> list[str]:
    return [suite for suite in recorded if suite not in ABOUT or suite == "faults"]


def _where(recorded: dict[str, list[Entry]]) -> list[tuple[str, str]]:
    """Commit, versions and machine."""
    versions: Entry = merged([entry["versions"] for entries in recorded.values() for entry in entries])
    head = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
    commit = head.stdout.strip() or "unknown"
    return [
        ("commit", commit + (" with changes that are not committed" if changed.stdout.strip() else "")),
        *((name, ", ".join(map(str, values))) for name, values in sorted(versions.items())),
        ("postgresql", "; ".join(_server(installation.bin) for installation in installations())),
        ("machine", f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"),
    ]


def _server(programs: Path) -> str:
    """What the server's program calls itself."""
    said = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    return said.stdout.strip()


def _figures(counts: Entry) -> Iterator[str]:
    """Single numbers in one table, each dict in one of its own."""
    single = [(_words(name), _value(value)) for name, value in counts.items() if not isinstance(value, dict)]
    if single:
        yield from _table(["what", "seen"], single)
    for number, (name, value) in enumerate((n, v) for n, v in counts.items() if isinstance(v, dict)):
        if single or number:
            yield ""
        flat = [(f"`{key}`", _value(seen)) for key, seen in sorted(value.items())]
        yield from _table([_words(name), "seen"], flat)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_value(seen)} {name}" for name, seen in sorted(value.items()))
    if isinstance(value, list):
        return "; ".join(map(str, value)).replace("|", "/")
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _table(head: list[str], rows: list[tuple[Any, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}",
        *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows),
    ]  # fmt: skip
