"""A consumer's own database, reached through every kind of connection that fanin knows.

clerk      a Clerk: one database, one kind of connection, with the tables of inbox and fence and a table ``ledger``;
           each kind in turn, or those that the mark ``clerks`` names
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.boundaries.clerks import CLERKS, Clerk, place
from tests.support.databases import postgres_flavours
from tests.support.postgres import shared_server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "clerk" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("clerks")
        chosen = CLERKS if mark is None else mark.args
        servers = postgres_flavours(every_version=False)
        kinds = [
            pytest.param((kind, database), id=f"{kind.__name__}-{name}")
            for kind in chosen
            for name, database in (("sqlite", "sqlite"), *servers)
            if ("sqlite" if database == "sqlite" else "postgresql") in kind.dialects
        ]
        metafunc.parametrize("clerk", kinds, indirect=True)


@pytest.fixture
def clerk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clerk]:
    kind, database = request.param
    server = None if database == "sqlite" else shared_server(database)
    with place(server, tmp_path) as address:
        clerk = kind(address)
        clerk.make_tables()
        yield clerk
        clerk.close()
