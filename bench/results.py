"""The rows of a full run, one JSON object a line: what the report is written from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bench.summary import Row

FILE = Path(__file__).parent / "results.jsonl"
SHOWN_DIGITS = 5


def read(file: Path) -> list[Row]:
    """All rows; none if there is no file yet."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def write(file: Path, stage: str, rows: Iterable[Row]) -> Iterator[Row]:
    """Put ``rows`` in the place of the stage's earlier ones. Each is in the file as soon as it is yielded."""
    kept = [row for row in read(file) if row["stage"] != stage]
    file.write_text("".join(_line(row) for row in kept), "utf-8")
    for row in rows:
        staged = {"stage": stage, **row}
        with file.open("a", encoding="utf-8") as lines:
            lines.write(_line(staged))
        yield staged


def _line(row: Row) -> str:
    return json.dumps(_rounded(row)) + "\n"


def _rounded(value: Any) -> Any:
    """As many digits as mean anything."""
    if isinstance(value, float):
        return float(f"{value:.{SHOWN_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value
