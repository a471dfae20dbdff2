"""SQL of a test's own, on either database."""

from __future__ import annotations

from typing import Any

from fanin.stores.base import Store

TABLES = ("setting", "job", "job_stripe", "part", "attempt_log", "outbox")


def end_leases(store: Store, where: str = "true") -> None:
    """Let every lease that is held now (``where``: of these parts) end, as if its time had passed."""
    execute(store, f"UPDATE {{part}} SET due_at = 0 WHERE status = 'running' AND {where}")


def end_deadlines(store: Store) -> None:
    """Let the deadline of every job be now, as if its time had passed."""
    execute(store, "UPDATE {job} SET give_up_at = created_at WHERE give_up_at IS NOT NULL")


def execute(store: Store, text: str) -> list[tuple[Any, ...]]:
    """Run one statement, committed; ``{part}`` and so on stand for the tables."""
    if store.dialect == "pg":
        from fanin.stores.postgres import PostgresStore

        assert isinstance(store, PostgresStore)
        with store.connection() as connection:
            cursor = connection.execute(text.format(**{t: f'"{store.schema}".{t}' for t in TABLES}).encode())
            return cursor.fetchall() if cursor.description else []
    from fanin.stores.sqlite import SqliteStore

    assert isinstance(store, SqliteStore)
    lite = store.connect()
    try:
        return list(lite.execute(text.format(**{t: f"fanin_{t}" for t in TABLES})))
    finally:
        lite.close()
