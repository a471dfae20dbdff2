"""Which files a report has, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bench.report import parts, plots, summary
from bench.summary import Row

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).parent / "benchmarks.md"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
PLOTS = ROOT / "docs" / "benchmarks"
BEGIN, END = "<!-- figures: written by `make bench-report` -->", "<!-- end of the figures -->"


def write(rows: list[Row]) -> Iterator[Path]:
    """Write the document, the plots and the README's figures; yields each file. Raises LookupError without rows."""
    if not rows:
        raise LookupError("there are no results yet: run `python -m bench --full` first")
    DOCUMENT.write_text(document(rows), "utf-8")
    yield DOCUMENT
    README.write_text(readme(README.read_text("utf-8"), rows), "utf-8")
    yield README
    PLOTS.mkdir(exist_ok=True)
    yield from plots.draw(rows, PLOTS)


def document(rows: list[Row]) -> str:
    """docs/benchmarks.md: the template with its tables. Raises KeyError for a table that does not exist."""
    tables = parts.tables(rows)
    return re.sub(r"\{\{(\w+)\}\}", lambda found: tables[found[1]], TEMPLATE.read_text("utf-8"))


def readme(text: str, rows: list[Row]) -> str:
    """The README with the figures between its two marks. Raises ValueError if it has no such marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has no place for the figures: put {BEGIN} and {END} into it")
    return f"{before}{BEGIN}\n\n{summary.figures(rows)}\n\n{END}{after}"
