"""What every test may ask for. The databases themselves are in tests/support.

store_url      an empty database, once SQLite and once PostgreSQL (if ``pg_versions``: on each server here)
sqlite_url     an empty SQLite file
pg_url         an empty schema on PostgreSQL
pg_server      the server behind pg_url, shared by the run: never stop it
own_pg         starts servers to break: ``server = own_pg(fsync=True)``, then server.restart("immediate")
migrated_url   store_url with the tables in it; the invariants are checked when the test is over
store          an open store on migrated_url
witnessed      an open store with the witness of fanin.testing.invariants; its clock may be set
app            a fanin.App on migrated_url
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.support.databases import SQLITE, migrate_database, postgres_flavours
from tests.support.no_skips import pytest_make_collect_report, pytest_runtest_makereport
from tests.support.postgres import RUN_VARIABLE, Guard, Server, own_server, shared_server
from tests.support.races_line import RacesLine
from tests.support.schemas import schema_of_its_own
from tools import guards

if TYPE_CHECKING:
    import fanin
    from fanin.stores.base import Store

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

GUARD = pytest.StashKey[Guard]()

hypothesis.settings.register_profile("fanin", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fanin")


def pytest_configure(config: pytest.Config) -> None:
    guards.apply_from_environment()
    config.pluginmanager.register(RacesLine())
    # The first process of the run holds the guard; the workers of xdist inherit the directory's name.
    if RUN_VARIABLE not in os.environ:
        guard = config.stash[GUARD] = Guard()
        os.environ[RUN_VARIABLE] = str(guard.directory)


def pytest_unconfigure(config: pytest.Config) -> None:
    if (guard := config.stash.get(GUARD, None)) is not None:
        del os.environ[RUN_VARIABLE]
        guard.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database" not in metafunc.fixturenames:
        return
    every_version = metafunc.definition.get_closest_marker("pg_versions") is not None
    servers = [pytest.param(flavour, id=name) for name, flavour in postgres_flavours(every_version=every_version)]
    only_postgres = not {"pg_server", "own_pg"}.isdisjoint(metafunc.fixturenames)
    if only_postgres and not servers:
        servers = [pytest.param("off", id="pg", marks=pytest.mark.skip(reason="FANIN_TEST_PG=off"))]
    choices = servers if only_postgres else [pytest.param(SQLITE, id=SQLITE), *servers]
    metafunc.parametrize("database", choices, indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """``sqlite``, or the flavour of the PostgreSQL server."""
    return str(request.param)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'fanin.db'}"


@pytest.fixture
def pg_server(database: str) -> Server:
    return shared_server(database)


@pytest.fixture
def own_pg(database: str) -> Iterator[Callable[..., Server]]:
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(own_server(database, **options))


@pytest.fixture
def pg_url(pg_server: Server) -> Iterator[str]:
    with schema_of_its_own(pg_server) as schema:
        yield pg_server.url(schema)


@pytest.fixture
def store_url(database: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("sqlite_url" if database == SQLITE else "pg_url"))


@pytest.fixture
def migrated_url(store_url: str, request: pytest.FixtureRequest) -> Iterator[str]:
    migrate_database(store_url)
    yield store_url
    _must_be_sound(store_url, request)


@pytest.fixture
def store(migrated_url: str) -> Iterator[Store]:
    from fanin.stores import open_store

    opened = open_store(migrated_url)
    yield opened
    opened.close()


@pytest.fixture
def witnessed(store_url: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    from fanin.stores import open_store
    from fanin.testing.clock import Clock

    migrate_database(store_url, witness=True)
    opened = open_store(store_url)
    yield opened
    Clock(opened).reset()
    opened.close()
    _must_be_sound(store_url, request)


def _must_be_sound(url: str, request: pytest.FixtureRequest) -> None:
    from tests.support import invariants

    if request.node.get_closest_marker("plants_corruption") is None:
        broken = invariants.violations(url)
        assert not broken, "after the test these invariants do not hold:\n" + "\n".join(broken)


@pytest.fixture
def app(migrated_url: str) -> Iterator[fanin.App]:
    import fanin

    made: Any = fanin.App(migrated_url)
    yield made
    made.close()
