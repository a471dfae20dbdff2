"""A fence in another SQL store: it keeps the highest token it has accepted for a resource and refuses lower ones.

A worker that was paused past its lease still believes that it holds its part. fanin refuses its commit, but a row that
its handler writes elsewhere is written. With the part's attempt number as token, checked in the transaction of that
write, the other store refuses it too: the number rises with every claim, and never falls.
"""

from __future__ import annotations

from typing import Any

from fanin.domain.errors import BadOption, StaleToken
from fanin.foreign import DIALECTS, Rows, Values, ask, ask_async, table_name, text_of

TABLE = "fanin_fence"
TOKEN_MAX = 2**63 - 1

_DDL = """\
CREATE TABLE IF NOT EXISTS {table} (
  resource text PRIMARY KEY,
  token    bigint NOT NULL  -- the highest one that was accepted
);
"""
_GUARD = """
INSERT INTO {table} AS kept (resource, token) VALUES (:resource, :token)
ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE kept.token <= excluded.token
RETURNING token"""
_KEPT = "SELECT token FROM {table} WHERE resource = :resource"


def ddl(dialect: str, table: str = TABLE) -> str:
    """The statement that makes the fence's table. dialect: ``postgresql`` or ``sqlite``. Raises `BadOption`."""
    if dialect not in DIALECTS:
        raise BadOption(f"dialect={dialect!r}: choose {' or '.join(DIALECTS)}")
    return _DDL.format(table=table_name(table))


def guard(connection: Any, resource: str, token: int, *, table: str = TABLE) -> None:
    """Go on only if no higher token was accepted for the resource; from now on, lower ones are refused.

    Call it before your writes and in their transaction: it locks the resource's row until you commit, so no pause can
    come between the check and the write. The same token is accepted again.

    connection: with an open transaction; see `fanin.inbox.once`. resource: what is written, such as ``"page 7"``, and
    only by parts that share their attempt numbers: normally by one part. token: ``fanin.current().attempt``.

    Raises `StaleToken` (let it pass: your transaction must roll back), `BadOption`, `NotAllowedNow` without a
    transaction, and the driver's own errors.
    """
    values = _values(resource, token)
    if not ask(connection, _texts(_GUARD, table), values):
        _refuse(resource, token, ask(connection, _texts(_KEPT, table), {"resource": resource}))


async def guard_async(connection: Any, resource: str, token: int, *, table: str = TABLE) -> None:
    """`guard` for psycopg's AsyncConnection and SQLAlchemy's AsyncConnection and AsyncSession."""
    values = _values(resource, token)
    if not await ask_async(connection, _texts(_GUARD, table), values):
        _refuse(resource, token, await ask_async(connection, _texts(_KEPT, table), {"resource": resource}))


def _texts(text: str, table: str) -> dict[str, str]:
    return dict.fromkeys(DIALECTS, text.format(table=table_name(table)))


def _values(resource: str, token: object) -> Values:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= TOKEN_MAX:
        raise BadOption(f"token={token!r}: give a whole number from 0 to {TOKEN_MAX}, such as fanin.current().attempt")
    return {"resource": text_of(resource, "resource"), "token": token}


def _refuse(resource: str, token: int, kept: Rows) -> None:
    newer = f"token {kept[0][0]} was accepted" if kept else "a higher one was accepted"
    raise StaleToken(f"{resource}: {newer}, {token} comes too late; roll back, somebody newer is at work")
