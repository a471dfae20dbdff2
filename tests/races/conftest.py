"""The arena, and what the tests note for the line that the run prints at its end and for whoever asks for figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from fanin.domain import limits
from fanin.stores import open_store
from fanin.stores.postgres import PostgresStore
from fanin.testing.clock import Clock
from fanin.testing.explorer import Tally
from tests.races.arena import Arena
from tests.races.scenarios import Race
from tests.support import figures
from tests.support.databases import migrate_database
from tests.support.races_line import PROPERTY

ALL_SCHEDULES = bool(os.environ.get("FANIN_ALL_SCHEDULES"))
"""Set it to run every schedule of two parties and all with two preemptions of three: minutes instead of seconds."""

NOON = 1_700_000_000.0


@pytest.fixture
def arena(pg_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)  # neighbours on different counters
    migrate_database(pg_url, witness=True)
    store = open_store(pg_url)
    assert isinstance(store, PostgresStore)
    clock = Clock(store)
    clock.freeze(NOON)
    yield Arena(store)
    clock.reset()
    store.close()


class Note:
    """Writes down what a test counted."""

    def __init__(self, record_property: Callable[[str, object], None]) -> None:
        self._record = record_property

    def __call__(self, race: Race, tally: Tally) -> None:
        facts = {"races": 1, **tally.facts()}
        self._record(PROPERTY, {**facts, "outcomes": len(tally.outcomes)})
        title = {"what_could_break": {race.title: race.risk}, "outcomes": {race.title: dict(tally.outcomes)}}
        figures.record("races", **facts, **title)

    def caught(self, form: str, by: str) -> None:
        """A broken form was noticed, as it must be."""
        self._record(PROPERTY, {"caught": 1})
        figures.record("races", caught={form: by})


@pytest.fixture
def note(record_property: Callable[[str, object], None]) -> Note:
    return Note(record_property)
