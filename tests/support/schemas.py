"""A schema of its own in PostgreSQL for each test, quickly: emptied tables of an earlier test get a new name.

Making the tables takes several times as long as emptying them. Only what is as it was made is used again: a test that
changed a table, an index, a setting or the statistics leaves a schema that is dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.support.postgres import Server

if TYPE_CHECKING:
    import psycopg

SEEDED = ("migration", "setting")
"""Tables that are not empty when they have been made."""

Pool = tuple[str, bool]
"""The address of a server, and whether its schemas have the witness."""

_sessions: dict[str, psycopg.Connection[Any]] = {}
"""One for each server that the tests share. One that a test has started for itself may have no place for another."""
_made: dict[tuple[str, str], tuple[Pool, str]] = {}
"""Where each schema that this process has made belongs, and its shape, by address and name."""
_idle: dict[Pool, list[tuple[str, str]]] = {}
"""Emptied schemas, each with its shape."""

# What a test may change. A TRUNCATE rewrites rows of pg_class and pg_index, so only columns of them are compared.
_SHAPE = """
    WITH r AS (SELECT c.* FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s)
    SELECT md5(string_agg(fact, '|' ORDER BY fact)) FROM (
        SELECT concat_ws(',', relname, relkind, relnatts, relchecks, relhastriggers, reloptions, relpersistence,
                relrowsecurity, relacl) FROM r
        UNION ALL SELECT concat_ws(',', attrelid, attnum, a.xmin) FROM pg_attribute a JOIN r ON r.oid = attrelid
        UNION ALL SELECT concat_ws(',', indexrelid, indisvalid, indisready, indislive)
            FROM pg_index JOIN r ON r.oid = indexrelid
        UNION ALL SELECT concat_ws(',', t.oid, t.xmin) FROM pg_trigger t JOIN r ON r.oid = tgrelid
        UNION ALL SELECT concat_ws(',', c.oid, c.xmin) FROM pg_constraint c JOIN r ON r.oid = conrelid
        UNION ALL SELECT concat_ws(',', p.oid, replace(prosrc, %(schema)s, 'fanin'))
            FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
            WHERE nspname = %(schema)s
        UNION ALL SELECT concat_ws(',', starelid, staattnum) FROM pg_statistic JOIN r ON r.oid = starelid
        UNION ALL SELECT concat_ws(',', nspowner, nspacl) FROM pg_namespace WHERE nspname = %(schema)s
        UNION ALL SELECT m::text FROM {schema}.migration m
        UNION ALL SELECT s::text FROM {schema}.setting s
    ) AS facts (fact)"""


def session(address: str) -> psycopg.Connection[Any]:
    """The tests' own session on a server, kept from test to test: a new one would plan and look up all anew."""
    import psycopg

    found = _sessions.get(address)
    if found is not None:
        try:
            found.execute("SELECT 1")
            return found
        except psycopg.OperationalError:
            found.close()
    made = psycopg.connect(address, autocommit=True, options="-c lock_timeout=2s", prepare_threshold=None)
    _sessions[address] = made
    return made


def shared(address: str) -> bool:
    """Whether there is a session of the tests' own on this server."""
    return address in _sessions


@contextmanager
def schema_of_its_own(server: Server) -> Iterator[str]:
    """The name of a schema that nobody else uses; what the test made in it is dropped or emptied afterwards.

    Raises AssertionError when the test left a transaction open that holds locks in it.
    """
    name = _new_name()
    session(server.url())
    try:
        yield name
    finally:
        left = discard(server.url(), name)
        assert not left, f"transactions were left open in {name}: {left}"


@contextmanager
def anew(server: Server) -> Iterator[None]:
    """Tables that are made in this block are new: of an emptied one the planner may remember something."""
    pool = (server.url(), False)
    kept = _idle.pop(pool, [])
    try:
        yield
    finally:
        _idle.setdefault(pool, []).extend(kept)


def make(url: str, *, witness: bool = False) -> None:
    """Fanin's tables in the empty schema of a test's address.

    ``witness``: with the witness, a place for a `Snapshot`, and a clock that can be set and put back.
    """
    import psycopg

    from fanin.stores import migrate
    from fanin.testing import invariants
    from fanin.testing.state import statement

    address, _, name = url.partition("?fanin_schema=")
    if not shared(address):
        with psycopg.connect(address, autocommit=True) as connection:
            migrate.postgres(connection, name, url)
        return
    connection, pool = session(address), (address, witness)
    if idle := _idle.get(pool):
        earlier, shape = idle.pop()
        connection.execute(f'ALTER SCHEMA "{earlier}" RENAME TO "{name}"')
        if witness:
            for text in invariants.FUNCTIONS:
                connection.execute(statement(text).query.for_postgres(name))
    else:
        migrate.postgres(connection, name, url)
        if witness:
            furnish(url)
        shape = _shape(connection, name)
    _made[address, name] = pool, shape


def furnish(url: str) -> None:
    """The witness and the tables of a `Snapshot`, in a database of fanin's."""
    from fanin.stores import open_store
    from fanin.testing import invariants
    from fanin.testing.clock import Clock
    from fanin.testing.state import Snapshot

    store = open_store(url)
    invariants.install(store)
    Snapshot(store)
    Clock(store).reset()
    store.close()


def discard(address: str, name: str) -> list[str]:
    """Be rid of a test's schema. Sessions that hold locks in it are ended, and what they ran last is returned."""
    import psycopg

    connection = session(address)
    pool, shape = _made.pop((address, name), (None, None))
    try:
        # A new name at once: whatever the test has left running must not find the tables of the next one.
        renamed = _new_name()
        if pool and shape and _emptied(connection, name) and _shape(connection, name) == shape:
            connection.execute(f'ALTER SCHEMA "{name}" RENAME TO "{renamed}"')
            _idle.setdefault(pool, []).append((renamed, shape))
        else:
            connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        return []
    except psycopg.errors.LockNotAvailable:
        holders = connection.execute(
            "SELECT DISTINCT a.pid, a.state || ': ' || a.query FROM pg_locks l "
            "JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
            "JOIN pg_stat_activity a ON a.pid = l.pid "
            "WHERE n.nspname = %s AND l.granted AND a.pid <> pg_backend_pid()",
            [name],
        ).fetchall()
        for pid, _ in holders:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')
        return [said for _, said in holders]


def _new_name() -> str:
    return f"t_{secrets.token_hex(6)}"


def _shape(connection: psycopg.Connection[Any], name: str) -> str:
    quoted = f'"{name}"'
    ((shape,),) = connection.execute(_SHAPE.replace("{schema}", quoted), {"schema": name}).fetchall()
    return str(shape)


def _emptied(connection: psycopg.Connection[Any], name: str) -> bool:
    """Lock each table, as a DROP would, and empty those that have rows. False if a seeded one is not there any more."""
    with connection.transaction():
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [name]).fetchall()
        tables = {table: f'"{name}"."{table}"' for (table,) in found}
        if not tables.keys() >= set(SEEDED):
            return False
        connection.execute(f"LOCK TABLE {', '.join(tables.values())} IN ACCESS EXCLUSIVE MODE")
        asked = [f"SELECT '{t}' WHERE EXISTS (SELECT 1 FROM {at})" for t, at in tables.items() if t not in SEEDED]
        if used := [tables[table] for (table,) in connection.execute(" UNION ALL ".join(asked))]:
            connection.execute(f"TRUNCATE {', '.join(used)} CASCADE")
    return True
