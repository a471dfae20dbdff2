"""Lists as PostgreSQL arrays, written in one go."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper


class ColumnDumper(Dumper):
    """A list as an array literal without a type: every list in the protocol has a cast. psycopg's own dumper asks each
    element for its type and its quotes, which costs the client as much as all the rest of a transaction."""

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._encoding = self.connection.info.encoding if self.connection is not None else "utf-8"

    def dump(self, column: list[Any]) -> bytes:
        if set(map(type, column)) == {str} and (text := "\0".join(column)).count("\0") < len(column):
            literal = '{"' + _escaped(text).replace("\0", '","') + '"}'
        else:
            literal = "{" + ",".join(map(_element, column)) + "}"
        if "\0" in literal:
            raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00)")
        return literal.encode(self._encoding)


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    return '"' + _escaped(value) + '"' if isinstance(value, str) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
