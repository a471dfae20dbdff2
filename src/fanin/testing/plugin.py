"""Fixtures for pytest. Put ``pytest_plugins = ["fanin.testing.plugin"]`` into your conftest.py.

fanin_url      an empty database of the test's own: a file, or a schema if ``--fanin-url postgresql://…`` is given
fanin_app      a `fanin.App` on it, without tasks
fanin_inline   call it with your application: for this test it works on that database, and its parts run in the test's
               thread (see `fanin.testing.inline.Inline`)

When the test is over, every invariant is asked; a broken one fails the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fanin
from fanin.stores import open_store
from fanin.testing.inline import Inline
from fanin.testing.invariants import check_all
from fanin.testing.torture.ground import SchemaGround

VARIABLE = "FANIN_TEST_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fanin-url", default=os.environ.get(VARIABLE),
        help=f"the PostgreSQL in which fanin's fixtures make a schema for each test (default: {VARIABLE}, else a file)",
    )  # fmt: skip


@pytest.fixture
def fanin_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database with fanin's tables. It is gone after the test."""
    named = request.config.getoption("--fanin-url")
    if named is None or str(named).startswith("sqlite:"):
        url = f"sqlite:///{tmp_path / 'fanin.db'}"
        yield url
        _check(url)
        return
    ground = SchemaGround(str(named), kind="test")
    ground.create()
    try:
        yield ground.url
        _check(ground.url)
    finally:
        ground.destroy()


@pytest.fixture
def fanin_app(fanin_url: str) -> Iterator[fanin.App]:
    """An application without tasks on a database of the test's own."""
    app = fanin.App(fanin_url)
    yield app
    app.close()


@pytest.fixture
def fanin_inline(fanin_url: str) -> Iterator[Callable[[fanin.App], Inline]]:
    """Put an application on a database of the test's own, and run its parts by hand."""
    begun: list[tuple[Inline, object]] = []

    def begin(app: fanin.App) -> Inline:
        before = app.store
        if before.url != fanin_url:
            app.store = open_store(fanin_url)
        begun.append((Inline(app), before))
        return begun[-1][0]

    yield begin
    for inline, before in reversed(begun):
        inline.close()
        if inline.app.store is not before:
            inline.app.store.close()
            inline.app.store = before  # type: ignore[assignment]


def _check(url: str) -> None:
    store = open_store(url)
    try:
        check_all(store)
    finally:
        store.close()
