"""Somebody else's open transaction: one way to ask through psycopg, SQLAlchemy, Django, sqlite3 and apsw connections.

`inbox` and `fence` write into the caller's database with it. A connection that would commit each statement by itself
is refused: their promise is that the row and the caller's change are written together.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from fanin.domain import limits
from fanin.domain.errors import BadOption, NotAllowedNow

Values = dict[str, str | int | float]
Rows = list[tuple[Any, ...]]

SUPPORTED = "psycopg, SQLAlchemy, Django, sqlite3 and apsw connections"
DIALECTS = ("postgresql", "sqlite")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


def ask(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    """The rows of the statement in the connection's open transaction. texts: by dialect, with ``:name`` for values.

    Raises `BadOption` for a connection of another kind, `NotAllowedNow` where no transaction is open.
    """
    return _ASKS[_kind(connection, sync=True)](connection, texts, values)


async def ask_async(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    """`ask` for psycopg's and SQLAlchemy's asynchronous connections and sessions."""
    return await _ASYNC_ASKS[_kind(connection, sync=False)](connection, texts, values)


def table_name(name: str) -> str:
    """``name`` if it can stand in a statement as it is. Raises `BadOption` otherwise."""
    if _TABLE.fullmatch(name) is None:
        raise BadOption(f"table={name!r}: give letters, digits and _, with a schema before a dot if you like")
    return name


def text_of(value: object, name: str, most: int = limits.KEY_CHARS) -> str:
    """``value`` if it can be stored as text in every database. Raises `BadOption` naming ``name`` otherwise."""
    if not isinstance(value, str) or not value:
        raise BadOption(f"{name}={value!r}: give a text that is not empty")
    if len(value) > most:
        raise BadOption(f"{name}: {len(value)} characters, at most {most}; store a digest of it instead")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise BadOption(f"{name}={value!r}: NUL and lone surrogates cannot be stored in every database; leave them out")
    return value


def _kind(connection: Any, *, sync: bool) -> str:
    """The library's name. A subclass in the user's own module counts as what it is derived from."""
    for base in type(connection).__mro__:
        library = base.__module__.partition(".")[0]
        if library in _ASKS:
            awaits = "Async" in base.__name__
            if awaits and (sync or library not in _ASYNC_ASKS):
                raise BadOption(f"connection={base.__name__}: it is asynchronous; use the function that ends in _async")
            if not awaits and not sync:
                raise BadOption(f"connection={base.__name__}: it is not asynchronous; use the function without _async")
            return library
    raise BadOption(f"connection={type(connection).__name__}: not supported; fanin knows {SUPPORTED}")


def _text(texts: dict[str, str], dialect: str) -> str:
    if dialect not in texts:
        raise BadOption(f"the connection's database is {dialect}: only {' and '.join(texts)} are supported")
    return texts[dialect]


def _percent(text: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", text)


def _needs_transaction(open_or_implicit: bool) -> None:
    if not open_or_implicit:
        raise NotAllowedNow(
            "the connection is in autocommit and no transaction is open, so the row and your change would be two"
            " transactions; open one around both: with connection.transaction(), transaction.atomic() or BEGIN"
        )


def _implicit(raw: Any) -> bool:
    """Whether a driver's connection is in a transaction, or opens one by itself before a write."""
    if hasattr(raw, "getautocommit"):  # apsw
        return not raw.getautocommit()
    if hasattr(raw, "isolation_level") and hasattr(raw, "in_transaction"):  # sqlite3, also behind aiosqlite
        legacy = getattr(raw, "autocommit", -1)
        return bool(raw.in_transaction or legacy is False or (legacy == -1 and raw.isolation_level is not None))
    if hasattr(raw, "info") and hasattr(raw.info, "transaction_status"):  # psycopg
        return not (raw.autocommit and raw.info.transaction_status.name == "IDLE")
    return getattr(raw, "autocommit", False) is not True


def _ask_psycopg(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    from psycopg.rows import tuple_row

    _needs_transaction(_implicit(connection))
    with connection.cursor(row_factory=tuple_row) as cursor:
        found: Rows = cursor.execute(_percent(_text(texts, "postgresql")), values).fetchall()
    return found


async def _ask_psycopg_async(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    from psycopg.rows import tuple_row

    _needs_transaction(_implicit(connection))
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_percent(_text(texts, "postgresql")), values)
        found: Rows = await cursor.fetchall()
    return found


def _ask_sqlite(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    _needs_transaction(_implicit(connection))
    return [tuple(row) for row in connection.execute(_text(texts, "sqlite"), values).fetchall()]


def _ask_sqlalchemy(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    """A Session or a Connection: both begin a transaction at their first statement, unless told not to."""
    from sqlalchemy import text

    here = connection.connection() if hasattr(connection, "get_bind") else connection
    statement = _text(texts, here.dialect.name)
    _needs_transaction(_implicit(here.connection.dbapi_connection))
    return [tuple(row) for row in here.execute(text(statement), values).all()]


async def _ask_sqlalchemy_async(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    found: Rows = await connection.run_sync(lambda here: _ask_sqlalchemy(here, texts, values))
    return found


def _ask_django(connection: Any, texts: dict[str, str], values: Values) -> Rows:
    _needs_transaction(connection.in_atomic_block or not connection.get_autocommit())
    with connection.cursor() as cursor:
        cursor.execute(_percent(_text(texts, connection.vendor)), values)
        found: Rows = cursor.fetchall()
    return found


_ASKS: dict[str, Callable[[Any, dict[str, str], Values], Rows]] = {
    "psycopg": _ask_psycopg,
    "sqlalchemy": _ask_sqlalchemy,
    "django": _ask_django,
    "sqlite3": _ask_sqlite,
    "apsw": _ask_sqlite,
}
_ASYNC_ASKS: dict[str, Callable[[Any, dict[str, str], Values], Awaitable[Rows]]] = {
    "psycopg": _ask_psycopg_async,
    "sqlalchemy": _ask_sqlalchemy_async,
}
