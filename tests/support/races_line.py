"""The line at the end of a run that says what all races came to, whichever process of pytest-xdist ran them."""

from __future__ import annotations

from collections import Counter

import pytest

PROPERTY = "race"
"""The property of a test's report that holds its figures: a dict of numbers."""


class RacesLine:
    """Adds the figures of all reports. Tell pytest of it: ``config.pluginmanager.register(RacesLine())``."""

    def __init__(self) -> None:
        self._sum: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY and isinstance(value, dict):
                    self._sum.update(value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._sum:
            terminalreporter.write_line(self.line())

    def line(self) -> str:
        n = self._sum
        return (
            f"races: {n['races']:,} with {n['schedules']:,} schedules, {n['outcomes']:,} outcomes, "
            f"{n['lock_waits']:,} lock waits, {n['violations']:,} violations, {n['deadlocks']:,} deadlocks; "
            f"{n['caught']:,} broken forms caught"
        )
