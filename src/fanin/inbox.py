"""The inbox of a consumer: a change is made once, however often its event is delivered.

The event's key is written first, then the change, in one transaction of the consumer's own database. If the key was
there before, the change was made before. Of two deliveries at the same moment one waits for the other at the primary
key; it goes on only if the first one rolled back. Looking first and writing later would let both through.
"""

from __future__ import annotations

from typing import Any

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption
from fanin.foreign import DIALECTS, Values, ask, ask_async, table_name, text_of

TABLE = "fanin_inbox"
FORGET_ROWS = 10_000

_NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}
_DDL = """\
CREATE TABLE IF NOT EXISTS {table} (
  consumer  text NOT NULL,
  event_key text NOT NULL,
  seen_at   double precision NOT NULL DEFAULT ({now}),  -- seconds since 1970
  PRIMARY KEY (consumer, event_key)
);
CREATE INDEX IF NOT EXISTS {index}_seen_at ON {table} (seen_at);
"""
_ONCE = """
INSERT INTO {table} (consumer, event_key) VALUES (:consumer, :event_key)
ON CONFLICT (consumer, event_key) DO NOTHING RETURNING 1"""
_FORGET = """
DELETE FROM {table} WHERE (consumer, event_key) IN (
  SELECT consumer, event_key FROM {table}
  WHERE seen_at <= {now} - CAST(:seconds AS double precision) AND (:consumer = '' OR consumer = :consumer)
  ORDER BY seen_at LIMIT :rows
) RETURNING 1"""


def ddl(dialect: str, table: str = TABLE) -> str:
    """The statements that make the inbox's table. dialect: ``postgresql`` or ``sqlite``.

    Run it once, or put it into a migration: ``op.execute`` in Alembic, ``RunSQL`` in Django. Raises `BadOption`.
    """
    if dialect not in DIALECTS:
        raise BadOption(f"dialect={dialect!r}: choose {' or '.join(DIALECTS)}")
    return _DDL.format(table=table_name(table), index=table.rpartition(".")[2], now=_NOW[dialect])


def once(connection: Any, consumer: str, event_key: str, *, table: str = TABLE) -> bool:
    """Whether this consumer sees the event for the first time; if so it is noted in the connection's transaction.

    Call it first, make the change only if it is true, commit, then acknowledge the event. When it is false, just
    acknowledge: the change has been committed before.

    connection: with an open transaction: of psycopg, sqlite3 or apsw, Django's, or SQLAlchemy's Connection or Session.
    consumer: your name for this change; two consumers of one database do not hide events from each other.
    event_key: the event's ``id`` (CloudEvents), which is also the ``webhook-id`` header, the ``Nats-Msg-Id``, ….

    Raises `BadOption` for unusable values, `NotAllowedNow` without a transaction, and the driver's own errors.
    """
    return bool(ask(connection, _texts(_ONCE, table), _once_values(consumer, event_key)))


async def once_async(connection: Any, consumer: str, event_key: str, *, table: str = TABLE) -> bool:
    """`once` for psycopg's AsyncConnection and SQLAlchemy's AsyncConnection and AsyncSession."""
    return bool(await ask_async(connection, _texts(_ONCE, table), _once_values(consumer, event_key)))


def forget(
    connection: Any, older_than: Duration, *, consumer: str | None = None, rows: int = FORGET_ROWS, table: str = TABLE
) -> int:
    """Remove notes of that age or older, at most ``rows`` of them; returns how many. Call it until it returns 0.

    older_than: longer than any event can still be delivered again: the sink's own retention, plus the longest time
    that an event may lie parked. An event that comes back later than this is applied a second time.

    Raises `BadOption` for unusable values, `NotAllowedNow` without a transaction.
    """
    return len(ask(connection, _texts(_FORGET, table), _forget_values(older_than, consumer, rows)))


async def forget_async(
    connection: Any, older_than: Duration, *, consumer: str | None = None, rows: int = FORGET_ROWS, table: str = TABLE
) -> int:
    """`forget` for asynchronous connections and sessions."""
    return len(await ask_async(connection, _texts(_FORGET, table), _forget_values(older_than, consumer, rows)))


def _texts(text: str, table: str) -> dict[str, str]:
    return {dialect: text.format(table=table_name(table), now=now) for dialect, now in _NOW.items()}


def _once_values(consumer: str, event_key: str) -> Values:
    return {
        "consumer": text_of(consumer, "consumer", limits.NAME_CHARS),
        "event_key": text_of(event_key, "event_key"),
    }


def _forget_values(older_than: Duration, consumer: str | None, rows: int) -> Values:
    if rows < 1:
        raise BadOption(f"rows={rows}: give 1 or more")
    name = "" if consumer is None else text_of(consumer, "consumer", limits.NAME_CHARS)
    return {"seconds": seconds(older_than, "older_than"), "consumer": name, "rows": rows}
