"""The line about the races counts what every process of the run reported."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "from tests.support.races_line import RacesLine\n\ndef pytest_configure(config):\n"
PLUGIN += "    config.pluginmanager.register(RacesLine())\n"
RACES = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_race(record_property, number):
    facts = {"races": 1, "schedules": 500 + number, "outcomes": 2, "lock_waits": 9, "violations": 1, "deadlocks": 0}
    record_property("race", facts)

def test_form(record_property):
    record_property("race", {"caught": 1})
    assert record_property is None, "a test that fails is counted too"
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_all_reports_are_added_up(pytester: pytest.Pytester, processes: str) -> None:
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile(RACES)
    result = pytester.runpytest_subprocess(processes)
    result.stdout.fnmatch_lines(
        ["races: 4 with 2,006 schedules, 8 outcomes, 36 lock waits, 4 violations, 0 deadlocks; 1 broken forms caught"]
    )
    result.assert_outcomes(passed=4, failed=1)


def test_a_run_without_races_has_no_line(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(PLUGIN)
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_subprocess("-n0")
    assert "races:" not in result.stdout.str()
