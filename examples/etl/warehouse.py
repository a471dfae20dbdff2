"""The tables that are loaded: a SQLite file of its own, which knows of jobs only the keys of what it took in."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fanin import inbox

FILE = Path(os.environ.get("ETL_WAREHOUSE", "warehouse.db"))
TABLES = """\
CREATE TABLE IF NOT EXISTS orders (batch text, id integer, customer text, cents integer, PRIMARY KEY (batch, id));
CREATE TABLE IF NOT EXISTS totals (batch text, customer text, cents integer, PRIMARY KEY (batch, customer));
"""

Sums = dict[str, dict[str, tuple[int, int]]]
"""Of each table and each load in it: rows and cents."""


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """A connection in a transaction, which is committed at the end of the block, or rolled back."""
    with closing(sqlite3.connect(FILE, timeout=60, isolation_level=None)) as warehouse:
        warehouse.executescript(TABLES + inbox.ddl("sqlite"))
        warehouse.execute("BEGIN IMMEDIATE")
        with warehouse:
            yield warehouse


def sums() -> Sums:
    """What stands in the tables."""
    query = "SELECT batch, count(*), sum(cents) FROM {} GROUP BY batch"
    with transaction() as warehouse:
        return {
            table: {batch: (rows, cents) for batch, rows, cents in warehouse.execute(query.format(table))}
            for table in ("orders", "totals")
        }
