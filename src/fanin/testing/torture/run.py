"""The whole of a torture: storm, calm, judgement, and the control."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable

import msgspec

from fanin.testing.torture import breaks, judge, outside, report
from fanin.testing.torture.app import passed_points
from fanin.testing.torture.ground import Ground, ground_of
from fanin.testing.torture.history import History
from fanin.testing.torture.journal import Reader
from fanin.testing.torture.report import Account, Control
from fanin.testing.torture.storm import Options, Server, Storm

STORM_SHARE = 0.75
CALM_SECONDS = 60.0
CONTROL_SECONDS = 40.0
LOOK_SECONDS = 5.0
STALL_SECONDS = 10.0
STILL_SECONDS = 5.0
"""A control in which something never happens is long enough, and has waited long enough when nothing moves."""


class Request(msgspec.Struct, frozen=True):
    """What was asked for. ``seconds`` of storm and calm together; ``controls`` are guards to remove afterwards."""

    url: str
    seed: int
    seconds: float
    workers: int = 8
    jobs: int | None = None
    broken: str | None = None
    controls: tuple[str, ...] = tuple(breaks.BREAKS)
    keep: bool = False


Tell = Callable[[str], None]
Enough = Callable[[dict[str, int], History], bool]
"""Whether a storm has shown enough: asked twice a second, with the faults so far and what was written down so far."""


def torture(request: Request, tell: Tell, server: Server | None = None, enough: Enough | None = None) -> Account:
    """Do it all. ``tell`` gets a line about once a second. ``enough`` may end the storm before its time.

    Raises `BadOption` for a wrong request.
    """
    if request.broken is not None:
        breaks.check(request.broken)
    for guard in request.controls:
        breaks.check(guard)
    options = Options(request.seed, request.workers, request.jobs, request.broken)
    account = _Trial(request.url, options, request.keep, server).whole(request.seconds, tell, enough)
    if request.broken is None and account.verdict != "FAIL":
        longest = max(8.0, min(CONTROL_SECONDS, request.seconds / 2))
        for guard in request.controls:
            broken = Options(request.seed, request.workers, request.jobs, guard)
            account.controls.append(_Trial(request.url, broken, False, None).until_caught(longest, tell))
    return account


class _Trial:
    """One place, one storm, one judgement."""

    def __init__(self, url: str, options: Options, keep: bool, server: Server | None) -> None:
        self._ground: Ground = ground_of(url, options.seed)
        self._options = options
        self._keep = keep
        self._server = server
        self._folder = tempfile.mkdtemp(prefix="fanin-torture-")
        self._reader = Reader(self._folder)
        self._history = History()
        self._found = judge.Verdicts()
        self._looked = time.monotonic()
        self._label = f"without the guard {options.broken!r}" if options.broken else "storm"

    def whole(self, seconds: float, tell: Tell, enough: Enough | None) -> Account:
        keep = self._keep
        try:
            self._ground.create()
            account = self._judged(seconds, tell, enough)
            keep = keep or account.verdict == "FAIL"
            if keep:
                account.kept = f"the tables at {self._ground.shown}, the histories in {self._folder}"
            return account
        finally:
            if not keep:
                self._clean_up()

    def until_caught(self, longest: float, tell: Tell) -> Control:
        """Storm until the judge sees something, then at the latest judge what is left."""
        guard = str(self._options.broken)
        found = breaks.check(guard)
        longest = min(longest, STALL_SECONDS) if found.stalls else longest
        began = time.monotonic()
        try:
            self._ground.create()
            with Storm(self._ground, self._options, self._folder) as storm:
                began = time.monotonic()
                storm.rage(longest, self._progress(storm, tell), lambda: not self._look().clean)
                if self._found.clean:
                    storm.settle(CALM_SECONDS / 2, lambda _: None, STILL_SECONDS if found.stalls else None)
                    tables = judge.Tables(self._ground.tables())
                    history = self._history.read(self._reader.news())
                    self._found = judge.live(tables, history)
                    judge.final(tables, history, self._found)
                    judge.beyond(tables, history, outside.look(self._folder), self._found)
        finally:
            self._clean_up()
        seconds = None if self._found.clean else time.monotonic() - began
        return Control(guard, found.sentence, seconds, report.summarize(self._found))

    def _judged(self, seconds: float, tell: Tell, enough: Enough | None) -> Account:
        storm_seconds = seconds * STORM_SHARE
        with Storm(self._ground, self._options, self._folder, self._server) as storm:
            began = time.monotonic()
            storm.rage(storm_seconds, self._progress(storm, tell), lambda: self._over(storm, enough))
            storm_seconds = time.monotonic() - began
            deadline = max(CALM_SECONDS, seconds * (1 - STORM_SHARE))
            calm = storm.settle(deadline, lambda t: tell(f"calm {t:.0f} s: {storm.last[0]} jobs are still running"))
            # The workers sweep too; the last pass forgets all that was removed, whoever removed it.
            faults, swept = storm.faults, storm.swept.forgotten
        tables = judge.Tables(self._ground.tables())
        history = self._history.read(self._reader.news())
        in_storm, self._found = self._found, judge.live(tables, history)
        judge.final(tables, history, self._found)
        lying = outside.look(self._folder)
        judge.beyond(tables, history, lying, self._found)
        for kind, times in in_storm.counts.items():
            if kind not in self._found.counts:
                self._found.add(kind, f"during the storm: {in_storm.examples[kind][0]}", times)
        if crashed := faults.get("crashed", 0):
            self._found.add("processes that ended by an error of their own", self._last_words(), crashed)
        account = Account(
            url=self._ground.shown, seed=self._options.seed, broken=self._options.broken, storm_seconds=storm_seconds,
            calm_seconds=calm, faults=faults, figures=report.figures(tables, history, lying, swept),
            points=passed_points(self._folder), findings=dict(self._found.counts), examples=self._found.examples,
            never=[], check=self._ground.check(),
        )  # fmt: skip
        account.never = report.never(account, self._ground.postgres, self._server is not None)
        return account

    def _over(self, storm: Storm, enough: Enough | None) -> bool:
        """Look from time to time; a broken promise ends the storm, and so does having seen enough."""
        if enough is not None and enough(storm.faults, self._history.read(self._reader.news())):
            return True
        pause = 0.5 if self._options.broken else LOOK_SECONDS
        if self._server is not None or time.monotonic() - self._looked < pause:
            return False
        return not self._look().clean

    def _look(self) -> judge.Verdicts:
        self._looked = time.monotonic()
        tables = judge.Tables(self._ground.tables())
        self._found = judge.live(tables, self._history.read(self._reader.news()))
        return self._found

    def _progress(self, storm: Storm, tell: Tell) -> Callable[[float], None]:
        def line(seconds: float) -> None:
            counts = storm.counts
            running, jobs, _ = storm.look()
            cuts = sum(times for name, times in (storm.proxy.counts.items() if storm.proxy else ())
                       if name.startswith("cut_"))  # fmt: skip
            cut = f", cut {cuts}" if storm.proxy is not None else ""
            tell(f"{self._label} {seconds:.0f} s: killed {counts['kills']}, zombies {counts['zombies']}{cut}; "
                 f"jobs ended {jobs - running} of {jobs}")  # fmt: skip

        return line

    def _last_words(self) -> str:
        with open(f"{self._folder}/stderr", encoding="utf-8", errors="replace") as file:
            said = [line.strip() for line in file if line.strip() and not line.startswith(" ")]
        return said[-1] if said else "it said nothing"

    def _clean_up(self) -> None:
        self._ground.destroy()
        shutil.rmtree(self._folder, ignore_errors=True)
