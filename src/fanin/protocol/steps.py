"""The form of the protocol: statements loaded from a room's .sql file, and transactions that yield them.

A transaction is a generator. It yields a `Statement`, is sent the rows, and returns a value; a store drives it inside
one database transaction. So each transaction is written once, runs on every database, in sync and in async programs
and inside the user's own transaction, and the gap between two statements is a place where a test can stop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, TypeVar

import msgspec

Row = tuple[Any, ...]
Rows = Sequence[Row]
T = TypeVar("T")
Txn = Generator["Statement", Rows, T]
TxnFactory = Callable[[], Txn[T]]


class Again(Exception):
    """Raised by a transaction that must be rolled back as a whole and replaced by ``factory()``."""

    def __init__(self, factory: TxnFactory[Any]) -> None:
        super().__init__("roll back and run the replacement")
        self.factory = factory


class Apart(Exception):
    """Raised by a transaction over several jobs that must be rolled back, and said again for each job by itself."""


class Query:
    """One named statement of a room, in its two renderings."""

    __slots__ = ("_rendered", "columns", "name", "parameters", "room", "texts")

    def __init__(self, room: str, name: str, columns: tuple[str, ...], texts: Mapping[str, str]) -> None:
        self.room = room
        self.name = name
        self.columns = columns
        self.texts = texts
        """Dialect (``pg`` or ``lite``) to the text as it stands in the file, without the other's lines."""
        found = {p for text in texts.values() for p in _PARAMETER.findall(_without_comments(text))}
        self.parameters = found - set(columns) - {"rows"}
        self._rendered: dict[str, str] = {}

    def __call__(self, rows: Sequence[Row] | None = None, **values: Any) -> Statement:
        if (rows is None) is bool(self.columns) or values.keys() != self.parameters:
            given = sorted(values) + (["rows"] if rows is not None else [])
            wanted = sorted(self.parameters) + (["rows"] if self.columns else [])
            raise TypeError(f"{self.room}.{self.name} takes {wanted}, was given {given}")
        return Statement(self, values, rows)

    def for_postgres(self, schema: str) -> str:
        """The text for psycopg: ``fanin.`` is the schema, ``:name`` is ``%(name)s``."""
        if (text := self._rendered.get(schema)) is None:
            text = _without_comments(self.texts["pg"]).replace("%", "%%")
            text = _TABLE.sub(f'"{schema}".', text)
            text = self._rendered[schema] = _PARAMETER.sub(r"%(\1)s", text)
        return text

    def for_sqlite(self) -> str:
        """The text for SQLite: ``fanin.`` is the prefix ``fanin_``, ``:name`` stays.

        SQLite's RETURNING knows the written table alone, and not by its alias.
        """
        if (text := self._rendered.get("")) is None:
            text = _TABLE.sub("fanin_", _without_comments(self.texts["lite"]))
            head, returning, tail = text.partition("RETURNING")
            text = self._rendered[""] = head + returning + _ALIAS.sub("", tail)
        return text

    def __repr__(self) -> str:
        return f"<{self.room}.{self.name}>"


class Statement:
    """A query with its values: what a transaction yields."""

    __slots__ = ("query", "rows", "values")

    def __init__(self, query: Query, values: dict[str, Any], rows: Sequence[Row] | None) -> None:
        self.query = query
        self.values = values
        self.rows = rows

    def postgres_values(self) -> dict[str, Any]:
        """``rows`` as one array per column."""
        if self.rows is None:
            return self.values
        columns: Any = zip(*self.rows, strict=True) if self.rows else ((),) * len(self.query.columns)
        return {**self.values, **{name: list(c) for name, c in zip(self.query.columns, columns, strict=True)}}

    def sqlite_values(self) -> dict[str, Any]:
        """``rows`` as one JSON array of arrays, any other list as a JSON array."""
        values = {k: _json(v) if isinstance(v, list) else v for k, v in self.values.items()}
        if self.rows is not None:
            values["rows"] = _json(self.rows)
        return values

    def __repr__(self) -> str:
        return f"<{self.query.room}.{self.query.name} {self.values}>"


class Room:
    """The statements of ``protocol/NAME.sql`` as attributes. An unknown name is an error at once."""

    def __init__(self, name: str) -> None:
        self._queries = {query.name: query for query in parse(name, read(name))}

    def __getattr__(self, name: str) -> Query:
        try:
            return self._queries[name]
        except KeyError:
            raise AttributeError(f"no statement {name!r}; there are {sorted(self._queries)}") from None

    def __iter__(self) -> Iterator[Query]:
        return iter(self._queries.values())


def read(name: str) -> str:
    return resources.files("fanin.protocol").joinpath(f"{name}.sql").read_text("utf-8")


def parse(room: str, text: str) -> list[Query]:
    """The statements of a room's text. See ``CONTRIBUTING.md`` for the format."""
    found: dict[str, dict[str, str]] = {}
    columns: dict[str, tuple[str, ...]] = {}
    for match in _STATEMENT.finditer(text):
        name, only, body = match["name"], match["only"], match["body"]
        heading = _ROWS.search(body)
        columns[name] = tuple(c.strip() for c in heading["columns"].split(",")) if heading else ()
        texts = found.setdefault(name, {})
        for dialect, other in (("pg", "--lite"), ("lite", "--pg")):
            if only in (None, dialect):
                if dialect in texts:
                    raise ValueError(f"{room}.sql gives {name} twice for {dialect}")
                kept = [line for line in body.splitlines() if not line.rstrip().endswith(other)]
                texts[dialect] = "\n".join(kept)
    return [Query(room, name, columns[name], texts) for name, texts in found.items()]


def one(rows: Rows) -> Row:
    """The only row. Anything else means that the protocol is wrong, not the caller."""
    assert len(rows) == 1, f"expected one row, got {len(rows)}"
    return rows[0]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _without_comments(text: str) -> str:
    kept = (_COMMENT.sub("", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in kept if line).strip().rstrip(";")


_STATEMENT = re.compile(
    r"^-- name: (?P<name>\w+)(?: --(?P<only>pg|lite))?\n(?P<body>.*?)(?=^-- name: |\Z)",
    re.MULTILINE | re.DOTALL,
)
_ROWS = re.compile(r"^-- rows: (?P<columns>.+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_TABLE = re.compile(r"\bfanin\.")
_ALIAS = re.compile(r"\b[a-z]\.")
_COMMENT = re.compile(r"--.*$")
