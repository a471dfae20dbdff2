"""Rows of figures as tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.summary import Row

WIDEST_ROWS = 6


class Column(NamedTuple):
    key: str
    heading: str
    form: Callable[[Any], str]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _milliseconds(value: float) -> str:
    return f"{value * 1000:.1f} ms"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _decimal(value: float) -> str:
    return f"{value:.3f}"


def _times(value: float) -> str:
    return f"{value:.2g} ×"


class Kind(NamedTuple):
    title: str
    columns: list[Column]


SPEED = Kind(
    "Parts per second, end to end (medians)",
    [
        Column("database", "database", str),
        Column("workers", "workers", str),
        Column("work", "each part does", str),
        Column("mode", "handlers are", str),
        Column("submit_parts_per_second", "submitted /s", _count),
        Column("parts_per_second", "total /s", _count),
        Column("limit_parts_per_second", "limit /s", _count),
        Column("share_of_limit", "of the limit", _percent),
        Column("submit_share_of_fill", "submit, of a fill by hand", _percent),
        Column("submit_share_of_limit", "submit, of the raw program's", _percent),
        Column("first_part_seconds", "first part", _milliseconds),
        Column("join_seconds", "join", _milliseconds),
        Column("worker_cpu_per_1000", "worker CPU s/1000", _decimal),
        Column("server_cpu_per_1000", "server CPU s/1000", _decimal),
        Column("submit_peak_megabytes", "submitter MB", _count),
        Column("worker_peak_megabytes", "worker MB", _count),
        Column("server_peak_megabytes", "server MB", _count),
        Column("commits_per_part", "commits /part", _decimal),
        Column("statements_per_part", "statements /part", _decimal),
        Column("reads_per_part", "reads /part", _decimal),
        Column("log_bytes_per_part", "log bytes /part", _count),
        Column("row_versions_per_part", "row versions /part", _decimal),
        Column("dead_rows", "dead rows left", _count),
        Column("stored_bytes_per_part", "stored bytes /part", _count),
        Column("efficiency", "of the ideal", _percent),
    ],
)
IDLE = Kind(
    "A worker without work",
    [
        Column("database", "database", str),
        Column("transactions_per_second", "transactions /s", _decimal),
        Column("cpu_share", "of one core", lambda share: f"{share:.2%}"),
        Column("server_share_of_100", "server, 100 workers", lambda share: f"{share:.2%}"),
    ],
)
PICKUP = Kind(
    "From the call of submit to the start of the handler, idle worker",
    [
        Column("database", "database", str),
        Column("p50_seconds", "half within", _milliseconds),
        Column("p99_seconds", "99 % within", _milliseconds),
        Column("worst_seconds", "worst", _milliseconds),
    ],
)
JOIN = Kind(
    "From the end of a job to the start of its successor",
    [
        Column("database", "database", str),
        Column("p50_seconds", "half within", _milliseconds),
        Column("p99_seconds", "99 % within", _milliseconds),
        Column("worst_seconds", "worst", _milliseconds),
    ],
)
MEMORY = Kind(
    "Peak memory, two workers",
    [
        Column("database", "database", str),
        Column("parts", "parts", _count),
        Column("submit_peak_megabytes", "submitter MB", _count),
        Column("worker_peak_megabytes", "worker MB", _count),
    ],
)


CONTENTION = Kind(
    "Single parts of one job, one to a transaction",
    [
        Column("connections", "connections", str),
        Column("stripes", "stripes", str),
        Column("parts_per_second", "parts /s", _count),
        Column("p50_seconds", "half within", _milliseconds),
        Column("p99_seconds", "99 % within", _milliseconds),
        Column("lock_share", "waiting for a lock", _percent),
        Column("log_share", "waiting for the log", _percent),
    ],
)
DECAY = Kind(
    "Job after job in the same tables",
    [
        Column("database", "database", str),
        Column("parts", "parts", _count),
        Column("first_parts_per_second", "first fifth /s", _count),
        Column("last_parts_per_second", "last fifth /s", _count),
        Column("kept", "kept", _percent),
        Column("dead_rows", "dead rows left", _count),
        Column("vacuums", "autovacuums", _count),
        Column("stored_bytes_per_part", "stored bytes /part", _count),
    ],
)
PEERS = Kind(
    "The same job on other libraries, two workers (medians)",
    [
        Column("peer", "library", str),
        Column("database", "kept in", str),
        Column("version", "version", str),
        Column("parts", "parts", _count),
        Column("parts_per_second", "total /s", _count),
        Column("submit_seconds", "submit", _milliseconds),
        Column("fanin_sqlite_times", "fanin on SQLite", _times),
        Column("fanin_postgres_times", "fanin on PostgreSQL", _times),
        Column("missing", "missing", str),
        Column("wrong", "wrong", str),
    ],
)


def line(row: Row) -> str:
    """A row in a few words, to see a long run go on."""
    speed = row.get("parts_per_second")
    names = ("kind", "database", "peer", "parts", "jobs", "workers", "work", "mode", "batch", "connections", "stripes")
    words = [f"{name}={row[name]}" for name in names if row.get(name) is not None]
    peak = row.get("worker_peak_megabytes")
    said = [*([] if speed is None else [f"-> {speed:,.0f}/s"]), *([] if peak is None else [f"worker {peak:,.0f} MB"])]
    return " ".join([*words, *said, row.get("missing") or ""]).strip()


def show(kind: Kind, rows: list[Row], console: Console) -> None:
    """Print one line per figure and one column per row, for terminals are narrow; many rows stand as they are. What is
    not known is left out."""
    if len(rows) > WIDEST_ROWS:
        _show_long(kind, rows, console)
        return
    table = Table(title=kind.title)
    first, *rest = kind.columns
    table.add_column("")
    for each in rows:
        table.add_column(first.form(each[first.key]), justify="right")
    for column in rest:
        values = [each.get(column.key) for each in rows]
        if any(value is not None for value in values):
            table.add_row(column.heading, *("-" if value is None else column.form(value) for value in values))
    console.print(table)


def _show_long(kind: Kind, rows: list[Row], console: Console) -> None:
    columns = [column for column in kind.columns if any(row.get(column.key) is not None for row in rows)]
    table = Table(title=kind.title)
    for column in columns:
        table.add_column(column.heading, overflow="fold")
    for row in rows:
        known = [(row.get(column.key), column.form) for column in columns]
        table.add_row(*("-" if value is None else form(value) for value, form in known))
    console.print(table)
