"""What the README shows: fanin beside the libraries that keep what they do in a store of their own."""

from __future__ import annotations

from bench.report import markdown as md
from bench.report.parts import STORES, plain
from bench.summary import Row

NOT_YET = "*No figures of a full run yet.*"
FEWEST_RUNS = 5
PICTURE = "![Parts per second, end to end](docs/benchmarks/peers.png)"


def figures(rows: list[Row]) -> str:
    """The picture and a short table: each library's speed, and how many times as fast fanin was in the same minutes. A
    trial, with fewer runs or parts than planned, is not shown."""
    about = next((row for row in rows if row["kind"] == "machine" and row["stage"] == "peers"), None)
    mine = [
        row for row in rows if row["kind"] == "peer" and row.get("parts_per_second") and row["database"] != "memory"
    ]
    if not mine or about is None or about["repeat"] < FEWEST_RUNS or about["most"] is not None:
        return NOT_YET
    largest = max(row["parts"] for row in mine)
    shown = [row for row in mine if not row["own"] or row["parts"] == largest]
    shown.sort(key=lambda row: -row["parts_per_second"])
    named = [
        {
            **row,
            "peer": "**fanin**" if row["own"] else plain(row),
            "kept": STORES.get(row["database"], row["database"]),
        }
        for row in shown
    ]
    columns: list[md.Column] = [
        ("", "peer", str), ("kept in", "kept", str), ("parts", "parts", md.count),
        ("parts /s", "parts_per_second", md.number),
        ("fanin on SQLite is", "fanin_sqlite_times", md.times), ("on PostgreSQL", "fanin_postgres_times", md.times),
    ]  # fmt: skip
    return f"{PICTURE}\n\n{md.table(columns, named)}"
