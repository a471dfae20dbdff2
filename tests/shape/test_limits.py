"""Every bound is in one place, is used, and says its unit last."""

from __future__ import annotations

import ast
from pathlib import Path

import fanin
from fanin.domain import limits

PACKAGE = Path(fanin.__file__).parent
UNITS = (
    "PARTS",
    "SCHEDULES",
    "SLOTS",
    "FIRINGS",
    "LEVELS",
    "BYTES",
    "CHARS",
    "SECONDS",
    "TRIES",
    "MIN",
    "MAX",
    "ATTEMPTS",
    "STRIPES",
    "BUCKETS",
    "EVENTS",
    "EFFECTS",
    "CALLS",
    "LISTENERS",
    "STEPS",
    "ROWS",
)


def names() -> set[str]:
    return {name for name in vars(limits) if name.isupper()}


def used(text: str) -> set[str]:
    """The limits that a program reads, as ``limits.NAME`` or imported by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "limits":
            found.add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module == "fanin.domain.limits":
            found |= {alias.name for alias in node.names}
    return found


def test_every_limit_is_used() -> None:
    texts = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "limits.py"]
    assert names() - set().union(*map(used, texts)) == set()


def test_a_limit_that_nobody_reads_is_not_taken_for_used() -> None:
    assert used("from fanin.domain import limits\nx = limits.A\n# limits.B\ny = 'limits.C'\n") == {"A"}
    assert used("from fanin.domain.limits import A, B as b\nfrom elsewhere import C\n") == {"A", "B"}


def test_every_limit_is_a_positive_number_with_its_unit_in_its_name() -> None:
    for name in names():
        value = getattr(limits, name)
        assert isinstance(value, int | float)
        assert value > 0
        assert name.endswith(UNITS), f"{name} does not say its unit"


def test_one_insert_and_one_claim_stay_within_the_bounds_of_a_job() -> None:
    assert limits.CLAIM_PARTS <= limits.CHUNK_PARTS <= limits.JOB_WIDTH_PARTS
    assert limits.PAYLOAD_BYTES <= limits.CHUNK_BYTES <= limits.SPOOL_BYTES
    assert limits.JOB_WIDTH_PARTS < 2**31 - limits.CHUNK_PARTS  # part.idx is an integer
    assert limits.PRIORITY_MAX < 2**15  # part.priority is a smallint
    assert limits.STRIPES < 2**15
    assert limits.BUCKETS < 2**15
