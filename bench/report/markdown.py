"""Numbers and tables as the documents show them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.summary import Row

NONE = "—"
Form = Callable[[Any], str]
Column = tuple[str, str, Form]
"""Heading, key, form."""


def table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """A Markdown table. A figure that nobody knows is a dash."""
    lines = [[heading for heading, _, _ in columns], ["---"] * len(columns)]
    for row in rows:
        found = [(row.get(key), form) for _, key, form in columns]
        lines.append([NONE if value is None else form(value) for value, form in found])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def number(value: float) -> str:
    """Three digits that mean something, thousands apart: ``23 500``."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}".replace(",", " ")


def count(value: float) -> str:
    """All digits, thousands apart."""
    return f"{value:,.0f}".replace(",", " ")


def milliseconds(seconds: float) -> str:
    return f"{number(seconds * 1000)} ms"


def seconds(value: float) -> str:
    return f"{number(value)} s"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.1 else f"{share:.1%}".replace("%", " %")


def times(value: float) -> str:
    """How many times as fast: two digits."""
    return f"{value:.2g} ×" if value < 10 else f"{count(value)} ×"
