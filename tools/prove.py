"""Run the long form of every suite and write docs/proof.md from what was seen. ``make prove MINUTES=60``.

The suites of a fixed size run first. The minutes that are left go to what can go on for ever: random sequences of
calls against the model, and the torture of both databases. A report is written whatever comes out; the exit code is 0
only when everything held.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fanin.domain.model import Verdict
from tests.support import figures
from tools.proof import Ran, merged, report

HOME = Path(__file__).resolve().parent.parent
LEAST_MINUTES, MOST_MINUTES = 5, 24 * 60
EXAMPLES = 100
"""Sequences of calls in one run of the state machine: about half a minute."""
VERDICT_TIMES = 50
"""How often each verdict has to be met in all of them."""

ALL_MINUTES = 45
"""From here on every schedule of two parties is stepped, and every saga is walked, instead of a share of them."""
LONG_MINUTES = 90
"""From here on the cases of tests/faults run in their long form, which alone takes an hour."""


def fixed(minutes: float) -> dict[str, tuple[str, dict[str, str]]]:
    """The suites that take as long as they take: where they are, and what makes them long."""
    every, rows = minutes >= ALL_MINUTES, {"FANIN_ALL_ROWS": "1"}
    return {
        "model": ("tests/model", {}),
        "races": ("tests/races", {"FANIN_ALL_SCHEDULES": "1", "FANIN_LONG": "1"} if every else {}),
        "crashes": ("tests/crashes", {}),
        "sagas": ("tests/sagas", {"FANIN_LONG": "1"} if every else {}),
        "powerloss": ("tests/powerloss", {"FANIN_POWERLOSS_SHARE": f"{min(minutes / LONG_MINUTES, 1):.2f}", **rows}),
        "faults": ("tests/faults", rows | ({"FANIN_LONG": "1"} if minutes >= LONG_MINUTES else {})),
    }


class Prover:
    """One run. seed: every random choice follows from it. folder: where the suites leave their figures."""

    def __init__(self, seed: int, minutes: float, folder: Path) -> None:
        self.seed, self.minutes, self.folder = seed, minutes, folder
        self.started = time.monotonic()
        self.until = self.started + minutes * 60
        self.ran: list[Ran] = []

    def prove(self) -> None:
        for name, (path, environment) in fixed(self.minutes).items():
            self._pytest(name, [path], environment)
        left = max(self.until - time.monotonic(), LEAST_MINUTES * 30)
        machine_until = time.monotonic() + left / 4
        for seed in self._seeds():
            self._pytest(
                "machine", ["tests/invariants", f"--hypothesis-seed={seed}"], {"FANIN_EXAMPLES": str(EXAMPLES)}, seed
            )
            late = time.monotonic() - machine_until
            if not self.ran[-1].good or late >= left / 4 or (late >= 0 and not self._rare()):
                break
        each = max(self.until - time.monotonic(), left / 2) / 2 / 60
        seeds = self._seeds()
        with tempfile.TemporaryDirectory() as place:
            self._torture("torture on SQLite", ["--url", f"sqlite:///{place}/torture.db"], each, next(seeds))
        self._torture("torture on PostgreSQL", ["--own-server"], each, next(seeds))

    def _rare(self) -> list[str]:
        """Verdicts that the state machine has not met often enough."""
        met = merged([entry["counts"] for entry in figures.recorded(self.folder).get("machine", [])])
        return [verdict.name for verdict in Verdict if met.get("verdicts", {}).get(verdict.name, 0) < VERDICT_TIMES]

    def bad(self) -> list[str]:
        """What did not hold."""
        return [ran.name for ran in self.ran if not ran.good] + [
            f"verdict {name} was met less than {VERDICT_TIMES} times" for name in self._rare()
        ]

    def _seeds(self) -> Iterator[int]:
        chosen = random.Random(self.seed)
        while True:
            yield chosen.randrange(10**6)

    def _pytest(self, name: str, arguments: list[str], environment: dict[str, str], seed: int | None = None) -> None:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "4", "--dist", "worksteal"]
        variables = {figures.VARIABLE: str(self.folder), "CI": "true", **environment}
        variables["FANIN_STORM_SEED"] = variables["FANIN_POWERLOSS_SEED"] = str(self.seed)
        self._run(name, [*command, *arguments], variables, self.seed if seed is None else seed)

    def _torture(self, name: str, where: list[str], minutes: float, seed: int) -> None:
        # the controls come on top of the minutes: they take about a fifth of a short run
        options = ["--minutes", f"{max(minutes * 0.85, 0.5):.1f}", "--seed", str(seed)]
        self._run(name, [sys.executable, "-m", "fanin", "torture", *where, *options], {}, seed)

    def _run(self, name: str, command: list[str], variables: dict[str, str], seed: int) -> None:
        minute = (time.monotonic() - self.started) / 60
        print(f"{minute:5.1f} min  {name}, seed {seed} …", flush=True)
        begun = time.monotonic()
        done = subprocess.run(command, cwd=HOME, env=os.environ | variables, stdout=subprocess.PIPE, text=True)
        ran = Ran(name, seed, time.monotonic() - begun, done.returncode, done.stdout)
        self.ran.append(ran)
        print(f"           {ran.closing}", flush=True)
        if not ran.good:
            print(done.stdout, file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="about how long it may take (default: 30)")
    parser.add_argument("--seed", type=int, help="repeat the run with this seed (default: a new one)")
    parser.add_argument("--out", type=Path, default=HOME / "docs" / "proof.md", help="the report (docs/proof.md)")
    options = parser.parse_args(arguments)
    if not LEAST_MINUTES <= options.minutes <= MOST_MINUTES:
        parser.error(f"--minutes {options.minutes:g}: give {LEAST_MINUTES} to {MOST_MINUTES} (a day)")
    if not options.out.parent.is_dir():
        parser.error(f"--out {options.out}: there is no folder {options.out.parent}; make it first")
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as folder:
        prover = Prover(seed, options.minutes, Path(folder))
        prover.prove()
        bad = prover.bad()
        text = report(prover.ran, figures.recorded(Path(folder)), bad, seed, options.minutes)
    options.out.write_text(text, "utf-8")
    print(f"{options.out}: {'everything held' if not bad else 'NOT everything held: ' + ', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
