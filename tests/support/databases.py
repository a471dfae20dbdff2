"""Which databases a test runs on, and fanin's tables in each."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tests.support import schemas
from tests.support.postgres import installations

SQLITE = "sqlite"
PG = "pg"


def postgres_flavours(*, every_version: bool) -> list[tuple[str, str]]:
    """(name in the test's id, flavour): the machine's server, else the wheel's; or both, for pg_versions."""
    found = [installation.flavour for installation in installations()]
    named = [(PG if n == 0 else f"{PG}-{flavour}", flavour) for n, flavour in enumerate(found)]
    return named if every_version else named[:1]


@cache
def _made_file(witness: bool) -> bytes:
    """A file with its tables, made once: the other tests begin with a copy."""
    from fanin.stores import open_store

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/made.db"
        store = open_store(url)
        list(store.check())  # the first use of a file makes its tables
        store.close()
        if witness:
            schemas.furnish(url)
        return Path(folder, "made.db").read_bytes()


def migrate_database(url: str, *, witness: bool = False) -> None:
    """Make fanin's tables in an empty database, with the ``witness`` of `fanin.testing.invariants` or without."""
    from fanin.stores import open_store

    if url.startswith("sqlite:"):
        file = open_store(url).file
        assert file is not None
        Path(file).write_bytes(_made_file(witness))
    else:
        schemas.make(url, witness=witness)
