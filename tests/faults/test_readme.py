"""The table of README.md says the truth about which cases are shown, and by what."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
IDS = [f"F{n:03}" for n in range(1, 114)]


def rows() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (HERE / "README.md").read_text("utf-8").splitlines():
        if re.match(r"\| F\d{3} \|", line):
            name, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
            assert name not in found, f"{name} stands twice"
            found[name] = cells
    return found


def nodes(cell: str) -> list[str]:
    return re.findall(r"`(\w+::\w+)`", cell)


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file, or of all files of a folder."""
    if path.is_dir():
        return frozenset().union(*(names_in(file) for file in path.rglob("test_*.py")))
    functions = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def test_every_case_has_one_row() -> None:
    found = rows()
    assert list(found) == IDS
    assert {len(cells) for cells in found.values()} == {4}


@pytest.mark.parametrize("name", IDS)
def test_a_row_names_tests_that_exist_or_says_why_there_is_none(name: str) -> None:
    cell = rows()[name][0]
    named = nodes(cell)
    assert named or cell.startswith(("Not yet:", "Not built:"))
    for node in named:
        folder, _, test = node.partition("::")
        assert test in names_in(TESTS / folder), node


def test_every_test_that_is_named_by_a_case_stands_in_its_row() -> None:
    found = rows()
    missing = []
    for path in sorted(HERE.glob("test_kind_*.py")):
        for test in sorted(names_in(path)):
            match = re.match(r"test_(F\d{3}(?:_F\d{3})*)_", test)
            if match:
                missing += [
                    (name, test) for name in match[1].split("_")
                    if f"faults::{test}" not in nodes(found[name][0])
                ]  # fmt: skip
    assert missing == []


def test_the_kind_of_a_test_is_the_kind_of_its_case() -> None:
    bounds = {"a": 1, "b": 10, "c": 17, "d": 23, "e": 33, "f": 40, "g": 47, "h": 51, "i": 59, "j": 68, "k": 76, "l": 82,
              "m": 89, "n": 93, "o": 98, "p": 107, "q": 110, "r": 114}  # fmt: skip
    for path in sorted(HERE.glob("test_kind_*.py")):
        kind = path.stem[-1]
        for test in names_in(path):
            for number in re.findall(r"F(\d{3})", test):
                assert bounds[kind] <= int(number) < bounds[chr(ord(kind) + 1)], f"{test} in {path.name}"
