"""Runs of one setting as one row: medians, and each run beside the limit that was measured right after it."""

from __future__ import annotations

import statistics
from typing import Any

from bench.settings import Setting

Row = dict[str, Any]


def row(database: str, setting: Setting, runs: list[Row], limits: list[Row]) -> Row:
    """Medians of the runs and of the limit, and the median of their quotients run by run."""
    pairs = list(zip(runs, limits, strict=False))
    shares = [max(raw["total_seconds"], setting.ideal_seconds) / run["total_seconds"] for run, raw in pairs]
    copies = [run["submit_parts_per_second"] / raw["submit_parts_per_second"] for run, raw in pairs]
    fills = [run["submit_parts_per_second"] / raw["fill_parts_per_second"] for run, raw in pairs]
    return {
        "kind": "speed",
        "database": database,
        **flat(setting),
        **medians(runs),
        **{f"limit_{key}": value for key, value in medians(limits).items()},
        "share_of_limit": median(shares),
        "share_of_limit_low": min(shares, default=None),
        "share_of_limit_high": max(shares, default=None),
        "submit_share_of_limit": median(copies),
        "submit_share_of_fill": median(fills),
        "runs": runs,
        "limits": limits,
    }


def flat(setting: Setting) -> Row:
    work = setting.work
    return {
        "parts": setting.parts, "jobs": setting.jobs, "workers": setting.workers, "concurrency": setting.concurrency,
        "batch": setting.batch, "work": work.name, "sleep": work.sleep, "cpu": work.cpu, "mode": work.mode,
    }  # fmt: skip


def medians(runs: list[Row]) -> Row:
    """The median of each figure; None where a run could not tell it."""
    return {key: median([run[key] for run in runs]) for key in (runs[0] if runs else {})}


def median(values: list[float] | list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def percentile(values: list[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)]
