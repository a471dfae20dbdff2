"""In CI a skipped test is a failed test: what is not run there is not proved anywhere."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, TypeVar

import pytest

ALLOWED: tuple[str, ...] = ()
"""How the reasons begin for which a test may be skipped in CI."""

R = TypeVar("R", pytest.TestReport, pytest.CollectReport)


def judge(report: R, *, ci: bool, allowed: tuple[str, ...] = ALLOWED) -> R:
    """Turn a skip into a failure where skips are forbidden. An expected failure is no skip."""
    if not ci or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(allowed or ("\0",)):
        report.outcome = "failed"
        report.longrepr = (
            f"skipped in CI: {reason}\n"
            "CI runs every test; install what is missing, or list the reason in tests/support/no_skips.py"
        )
    return report


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    return judge(report, ci=in_ci())


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    return judge(report, ci=in_ci())
