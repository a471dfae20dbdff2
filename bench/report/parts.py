"""The tables of docs/benchmarks.md: name to Markdown."""

from __future__ import annotations

from collections.abc import Callable

from bench.report import markdown as md
from bench.report import targets
from bench.report.markdown import Column
from bench.summary import Row

NOT_YET = "*Not measured in this series.*"
STORES = {"redis": "Redis", "postgres": "PostgreSQL", "sqlite": "SQLite", "memory": "memory"}

WHERE: list[Column] = [("database", "database", str), ("parts", "parts", md.count), ("workers", "workers", str)]
SHARE: Column = ("of the limit (lowest to highest)", "share", str)
TOTAL: Column = ("total /s", "parts_per_second", md.number)
SPREAD: list[Column] = [
    ("half within", "p50_seconds", md.milliseconds),
    ("99 % within", "p99_seconds", md.milliseconds),
    ("worst", "worst_seconds", md.milliseconds),
]


def tables(rows: list[Row]) -> dict[str, str]:
    """Every table; what was not measured says so."""
    shown = [{**row, **_ranges(row)} for row in rows]
    found: dict[str, str] = {}
    for name, (stage, kind, columns) in TABLES.items():
        mine = [row for row in shown if row["stage"] in stage.split() and row["kind"] == kind]
        if name == "speed":  # of two stages
            mine.sort(key=lambda row: (row["database"], row["parts"], row["workers"]))
        found[name] = md.table(columns, mine) if mine else NOT_YET
    found["costs"] = _costs(shown)
    found["memory"] = _memory(shown)
    found["peers"], found["missing"] = _peers(shown), _missing(shown)
    found["promises"] = _promises(shown)
    found["machine"] = _machine(shown)
    found["targets"], found["misses"] = targets.table(rows), targets.misses(rows)
    return found


def _ranges(row: Row) -> Row:
    if row.get("share_of_limit") is None:
        return {}
    low, high = (md.percent(row[f"share_of_limit_{end}"]) for end in ("low", "high"))
    return {"share": f"{md.percent(row['share_of_limit'])} ({low} to {high})"}


TABLES: dict[str, tuple[str, str, list[Column]]] = {
    "speed": (
        "speed cross", "speed",
        [*WHERE, SHARE, TOTAL, ("limit /s", "limit_parts_per_second", md.number),
         ("submitted /s", "submit_parts_per_second", md.number),
         ("of a fill by hand", "submit_share_of_fill", md.percent),
         ("of the raw program's", "submit_share_of_limit", md.percent),
         ("first part", "first_part_seconds", md.milliseconds), ("join", "join_seconds", md.milliseconds)],
    ),
    "commits": (
        "commits", "speed",
        [*WHERE, SHARE, TOTAL, ("limit /s", "limit_parts_per_second", md.number),
         ("commits /part", "commits_per_part", md.number), ("statements /part", "statements_per_part", md.number)],
    ),
    "handlers": (
        "handlers", "speed",
        [("database", "database", str), ("each part", "work", str), ("handlers", "mode", str),
         ("parts", "parts", md.count), ("workers", "workers", str), ("at once in each", "concurrency", str),
         ("of the ideal", "efficiency", md.percent), SHARE, TOTAL,
         ("worker CPU s/1 000", "worker_cpu_per_1000", md.number)],
    ),
    "jobs": ("jobs", "speed", [("jobs", "jobs", md.count), *WHERE, SHARE, TOTAL]),
    "idle": (
        "probes", "idle",
        [("database", "database", str), ("of one core", "cpu_share", lambda share: f"{share:.2%}".replace("%", " %")),
         ("transactions /s", "transactions_per_second", md.number),
         ("100 of them, of the server", "server_share_of_100", md.percent)],
    ),
    "pickup": ("probes", "pickup", [("database", "database", str), *SPREAD]),
    "join": ("probes", "join", [("database", "database", str), *SPREAD]),
    "contention": (
        "contention", "contention",
        [("connections", "connections", str), ("stripes", "stripes", str), ("parts /s", "parts_per_second", md.number),
         *SPREAD[:2], ("waits for a row lock", "lock_share", md.percent),
         ("waits for the log", "log_share", md.percent)],
    ),
    "million": ("million", "speed", [("jobs", "jobs", md.count), *WHERE, SHARE, TOTAL]),
    "decay": (
        "decay", "decay",
        [("database", "database", str), ("parts", "parts", md.count),
         ("first fifth /s", "first_parts_per_second", md.number), ("last fifth /s", "last_parts_per_second", md.number),
         ("kept", "kept", md.percent), ("dead rows", "dead_rows", md.count), ("autovacuums", "vacuums", md.count),
         ("stored bytes /part", "stored_bytes_per_part", md.number)],
    ),
    "tree": (
        "tree", "tree",
        [("database", "database", str), ("leaves", "parts", md.count), ("leaves /s", "parts_per_second", md.number),
         ("seconds", "total_seconds", md.number), ("the worker, MB", "worker_peak_megabytes", md.number),
         ("the largest server process, MB", "server_peak_megabytes", md.number)],
    ),
    "flows": (
        "flows", "flow",
        [("shape", "shape", str), ("database", "database", str), ("steps", "steps", md.count),
         ("declared in, s", "declare_seconds", md.number), ("started in, s", "start_seconds", md.number),
         ("run in, s", "run_seconds", md.number), ("each step, ms", "milliseconds_per_step", md.number),
         ("the process, MB", "peak_megabytes", md.number)],
    ),
}  # fmt: skip


def _pick(rows: list[Row], **wanted: object) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _costs(rows: list[Row]) -> str:
    """One line for each figure, one column for each database: 10 000 parts that do nothing, two workers."""
    both = _pick(rows, stage="speed", kind="speed", parts=10_000, workers=2)
    lines: list[tuple[str, str, Callable[[float], str]]] = [
        ("commits", "commits_per_part", md.number),
        ("statements in them", "statements_per_part", md.number),
        ("reads outside", "reads_per_part", md.number),
        ("bytes of log", "log_bytes_per_part", md.number),
        ("row versions written", "row_versions_per_part", md.number),
        ("bytes stored, indexes and dead rows included", "stored_bytes_per_part", md.number),
        ("CPU of the workers, µs", "worker_cpu_per_1000", lambda value: md.number(value * 1000)),
        ("CPU of the server, µs", "server_cpu_per_1000", lambda value: md.number(value * 1000)),
    ]
    return _crossed("each part costs", lines, both)


def _memory(rows: list[Row]) -> str:
    lines: list[tuple[str, str, Callable[[float], str]]] = [
        ("the program that submits", "submit_peak_megabytes", lambda value: f"{value:.0f} MB"),
        ("the largest worker", "worker_peak_megabytes", lambda value: f"{value:.0f} MB"),
        ("the largest server process", "server_peak_megabytes", lambda value: f"{value:.0f} MB"),
    ]
    some = [row for n in (1_000, 100_000) for row in _pick(rows, stage="speed", kind="speed", parts=n, workers=2)]
    labelled = [{**row, "database": f"{row['database']}, {md.count(row['parts'])} parts"} for row in some]
    return _crossed("peak memory of", lines, sorted(labelled, key=lambda row: str(row["database"])[:3]))


def _crossed(corner: str, lines: list[tuple[str, str, Callable[[float], str]]], rows: list[Row]) -> str:
    if not rows:
        return NOT_YET
    columns: list[Column] = [(corner, "what", str)]
    columns += [(row["database"], str(n), str) for n, row in enumerate(rows)]
    crossed = []
    for what, key, form in lines:
        values = [(str(n), row[key]) for n, row in enumerate(rows)]
        crossed.append({"what": what, **{n: form(value) for n, value in values if value is not None}})
    return md.table(columns, crossed)


def _peers(rows: list[Row]) -> str:
    mine = [row for row in rows if row["kind"] == "peer" and row.get("parts_per_second") is not None]
    if not mine:
        return NOT_YET
    shown = [
        {**row, "name": _name(row), "kept": STORES.get(row["database"], row["database"]),
         "submit": None if row["own"] is False and row["database"] == "memory" else row["submit_seconds"]}
        for row in sorted(mine, key=lambda row: (-row["parts"], -row["parts_per_second"]))
    ]  # fmt: skip
    columns: list[Column] = [
        ("parts", "parts", md.count), ("library", "name", str), ("kept in", "kept", str), TOTAL,
        ("submit", "submit", md.seconds), ("fanin on SQLite is", "fanin_sqlite_times", md.times),
        ("fanin on PostgreSQL is", "fanin_postgres_times", md.times), ("wrong", "wrong", str),
    ]  # fmt: skip
    return md.table(columns, shown)


def plain(row: Row) -> str:
    """The library's name, without what the column of the store says."""
    return str(row["peer"]).partition(" (")[0]


def _name(row: Row) -> str:
    if row["own"]:
        return "**fanin**"
    known = row.get("version")
    return plain(row) if not known or known.startswith("Python") else f"{plain(row)} {known}"


def _missing(rows: list[Row]) -> str:
    absent = [row for row in rows if row["kind"] == "peer" and row.get("missing")]
    if not absent:
        return "No library of the list was missing."
    return "Not measured: " + "; ".join(f"{row['peer']} ({row['missing']})" for row in absent) + "."


def _promises(rows: list[Row]) -> str:
    mine = [row for row in rows if row["kind"] == "peer" and not row["own"]]
    if not mine:
        return NOT_YET
    return md.table(
        [("library", "peer", str), ("fan-in", "join", str), ("survives a killed process", "survives", str)], mine
    )


def _machine(rows: list[Row]) -> str:
    about = [row for row in rows if row["kind"] == "machine"]
    if not about:
        return NOT_YET
    last = about[-1]
    versions = {
        "Python": last["python"], "SQLite": last["sqlite"], "PostgreSQL": last["postgresql"], "Redis": last["redis"],
        **last["packages"],
    }  # fmt: skip
    named = ", ".join(f"{name} {known}" for name, known in versions.items() if known)
    trials = ", ".join(f"{row['stage']} ({row['most']})" for row in about if row["most"] is not None)
    trial = f" **Only a trial, with so many parts at most: {trials}.**" if trials else ""
    loads = ", ".join(f"{row['stage']} {row['load_before']:.1f}" for row in about)
    dates = sorted({row["date"] for row in about})
    return (
        f"{last['cores']} cores ({last['processor']}), {last['memory_gigabytes']} GB, {last['system']}; {named}. "
        f"Measured {' and '.join(dict.fromkeys((dates[0], dates[-1])))}, {min(row['repeat'] for row in about)} runs of "
        f"each row where nothing else is said. Load of the machine before each stage: {loads}.{trial}"
    )
