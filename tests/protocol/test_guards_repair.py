"""Each guard of a repair, alone: what is not as it was seen is not written."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fanin.domain import limits
from fanin.domain.identity import new_claim_id
from fanin.domain.repairs import Repaired
from fanin.protocol import repair as room
from fanin.runtime.repair import repair
from fanin.stores.base import Store
from fanin.testing.state import statement
from tests.protocol.helpers import (
    claim,
    done,
    job,
    make,
    say,
    settle,
)
from tests.protocol.test_repair import logged, plant, stripes, written


@pytest.mark.plants_corruption
@pytest.mark.parametrize(
    "column", ["created", "remaining", "succeeded", "failed", "abandoned", "spawned", "sealed", "closed"]
)
def test_a_counter_that_is_not_what_was_seen_is_not_written(
    store: Store, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if somebody could write it under our lock: the facts of a repair are those that it has seen."""
    job_id = make(store, 4)
    plant(store, "UPDATE fanin.job_stripe SET remaining = 7")
    _meanwhile(
        monkeypatch, "job_stripe", f"NOT {column}" if column in ("sealed", "closed") else f"{column} + 1", column
    )
    with pytest.raises(AssertionError):
        store.run(partial(room.recount, 0, job_id, new_claim_id()))
    assert stripes(store, job_id) == [(0, 4, 7, 0, 0)]
    assert logged(store) == 0


@pytest.mark.plants_corruption
@pytest.mark.parametrize(("column", "value"), [("status", "'open'"), ("run", "2"), ("open_stripes", "5")])
def test_a_job_that_is_not_as_it_was_seen_is_not_written(
    store: Store, column: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = make(store, 4)
    plant(store, "UPDATE fanin.job SET open_stripes = 3")
    _meanwhile(monkeypatch, "job", value, column)
    with pytest.raises(AssertionError):
        store.run(partial(room.recount, 0, job_id, new_claim_id()))
    assert job(store, job_id).open_stripes == 3


def _meanwhile(monkeypatch: pytest.MonkeyPatch, table: str, value: str, column: str) -> None:
    look = room.look

    def changed(bucket: int, job_id: str) -> Any:
        seen = yield from look(bucket, job_id)
        yield statement(f"UPDATE fanin.{table} SET {column} = {value}")
        return seen

    monkeypatch.setattr(room, "look", changed)


@pytest.mark.plants_corruption
@pytest.mark.parametrize(("column", "value"), [("status", "'running'"), ("waiting", "NOT waiting")])
def test_a_part_that_is_not_as_it_was_seen_is_not_mended(store: Store, column: str, value: str) -> None:
    job_id = make(store, 1)
    plant(store, "UPDATE fanin.part SET due_at = due_at + 1e9, ready = false")
    (before,) = say(store, "SELECT due_at FROM fanin.part")

    def changed() -> Any:
        inner = room.mend(0, job_id, new_claim_id())
        asked = next(inner)
        while True:
            if asked.query is room.SQL.set_moment:
                yield statement(f"UPDATE fanin.part SET {column} = {value}")
            try:
                asked = inner.send((yield asked))
            except StopIteration as stop:
                return stop.value

    with pytest.raises(AssertionError):
        store.run(changed)
    assert say(store, "SELECT due_at FROM fanin.part") == [before]


@pytest.mark.plants_corruption
def test_what_has_ended_is_not_mended(store: Store) -> None:
    job_id = make(store, 2)
    settle(store, done(claim(store, 1)[0]))
    plant(store, "UPDATE fanin.part SET due_at = due_at + 1e9 WHERE status = 'succeeded'")
    before = written(store)
    assert store.run(partial(room.mend, 0, job_id, new_claim_id())) == room.Mended([], None)
    assert repair(store, job_id) == Repaired(looked=1)
    assert written(store) == before


def test_parts_that_are_right_are_not_locked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "REPAIR_PARTS", 1)
    job_id = make(store, 3)
    before = written(store, locks=True)
    assert store.run(partial(room.mend, 0, job_id, new_claim_id())) == room.Mended([], None)
    assert written(store, locks=True) == before
