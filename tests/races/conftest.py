"""The arena, and the tally of all races that the run prints at its end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fanin.domain import limits
from fanin.stores import open_store
from fanin.stores.postgres import PostgresStore
from fanin.testing import invariants
from tests.races.arena import Arena
from tests.support.databases import migrate_database

ALL_SCHEDULES = bool(os.environ.get("FANIN_ALL_SCHEDULES"))
"""Set it to run every schedule of two parties and all with two preemptions of three: minutes instead of seconds."""


@pytest.fixture
def arena(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)  # neighbours on different counters
    migrate_database(pg_url)
    store = open_store(pg_url)
    assert isinstance(store, PostgresStore)
    invariants.install(store)
    made = Arena(store)
    yield made
    made.close()
    store.close()
