"""A room's text cut into statements, and what PostgreSQL would be given of each."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = re.compile(r"^-- name: (?P<name>\w+)(?: --(?P<only>pg|lite))?\s*$")
_ROWS = re.compile(r"^-- rows: ")
_TAG = re.compile(r"--(pg|lite)\s*$")
_COMMENT = re.compile(r"--.*$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@dataclass
class Text:
    """One statement as it stands in the file."""

    name: str
    only: str | None
    """``pg`` or ``lite`` if the heading says that it is for one database."""
    line: int
    lines: list[str] = field(default_factory=list)

    @property
    def comments(self) -> list[str]:
        return [x[2:].strip() for x in self.lines if x.startswith("--") and not _ROWS.match(x)]

    @property
    def tagged(self) -> list[str]:
        return [x for x in self.lines if _TAG.search(x) and not x.startswith("--")]

    @property
    def all_buckets(self) -> bool:
        return any(comment.startswith("all buckets") for comment in self.comments)

    def for_postgres(self) -> str:
        """The SQL without the lines for SQLite, with ``:name`` written ``$n``."""
        kept = [x for x in self.lines if not x.startswith("--") and not x.rstrip().endswith("--lite")]
        text = "\n".join(_COMMENT.sub("", x) for x in kept).strip()
        numbers: dict[str, int] = {}
        return _PARAMETER.sub(lambda m: f"${numbers.setdefault(m[1], len(numbers) + 1)}", text)


def cut(path: Path) -> list[Text]:
    """The statements of a room."""
    found: list[Text] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if match := _HEADER.match(line):
            found.append(Text(match["name"], match["only"], number))
        elif found:
            found[-1].lines.append(line)
    return found


def names_used(path: Path) -> tuple[set[str], set[str]]:
    """The names that a room's Python file takes as ``SQL.name``, and those it may take by getattr.

    The second are the strings of a file that does so, as in a table from name to sentence.
    """
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    written = {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_room(node.value)}
    if not any(_is_getattr(node) for node in nodes):
        return written, set()
    return written, {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def _is_getattr(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and _is_room(node.args[0])
    )


def _is_room(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "SQL"
