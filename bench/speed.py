"""Rows of end-to-end runs, each followed by the raw program and the fill by hand, so that all see the same neighbours.

Where the handlers take longer than all the rest, what they take is the limit, and the raw program is run once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bench import end_to_end, fill, limit
from bench.databases import Database
from bench.settings import Setting
from bench.summary import Row, row


def rows(found: Iterable[Database], settings: Iterable[Setting], repeat: int) -> Iterator[Row]:
    """One row for each database and setting."""
    for database in found:
        for setting in settings:
            runs: list[Row] = []
            limits: list[Row] = []
            for _ in range(repeat):
                runs.append(end_to_end.measure(database, setting))
                limits.append(_limit(database, setting) if not setting.ideal_seconds or not limits else limits[0])
            yield row(database.name, setting, runs, limits)


def _limit(database: Database, setting: Setting) -> Row:
    raw = limit.measure(database, setting.total, setting.workers, setting.batch)
    return {**raw, **fill.measure(database, setting.total)}
