"""The invariants of the protocol, asked after every test that used a store."""

from __future__ import annotations

from psycopg.rows import dict_row

from fanin.protocol import check
from fanin.stores import open_store
from tests.support import schemas


def violations(url: str) -> list[str]:
    """What ``fanin check`` finds in a database, one line per row that breaks a rule; or nothing."""
    address, _, schema = url.partition("?fanin_schema=")
    if schemas.shared(address):
        return _asked_together(address, schema)
    store = open_store(url)
    try:
        return [f"{name}: {sentence} {f.row}" for name, sentence, found in store.check() for f in found]
    finally:
        store.close()


def _asked_together(address: str, schema: str) -> list[str]:
    """All in one journey, on the tests' own session: one by one in a new session they take longer than most tests."""
    connection = schemas.session(address)
    with connection.pipeline(), connection.transaction():
        connection.execute("SET TRANSACTION READ ONLY")
        asked = {
            name: connection.cursor(row_factory=dict_row).execute(
                (statement := check.statement(name)).query.for_postgres(schema), statement.postgres_values()
            )
            for name in check.CHECKS
        }
    return [f"{name}: {check.CHECKS[name]} {row}" for name, cursor in asked.items() for row in cursor]
