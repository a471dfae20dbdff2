"""Parts that wait for what will not come are found, and wait for it no more."""

from __future__ import annotations

from functools import partial

import pytest

from fanin.domain import limits
from fanin.domain.identity import new_claim_id
from fanin.protocol import lease, pause
from fanin.protocol.deeds import Deed
from fanin.runtime.repair import repair
from fanin.stores.base import Store
from tests.protocol import test_nested
from tests.protocol.helpers import (
    Clock,
    claim_all,
    job,
    make,
    part,
    say,
)
from tests.protocol.test_check import findings
from tests.protocol.test_repair import logged, plant


@pytest.mark.plants_corruption
def test_a_part_whose_nested_job_is_gone_is_run_again(store: Store) -> None:
    held, nested = test_nested.waiting(store)
    plant(store, f"UPDATE fanin.job SET waiter_id = NULL, waiter_idx = NULL WHERE id = '{nested}'")
    assert "n1" in findings(store)
    found = repair(store)
    assert (found.repaired, found.parts) == (1, 1)
    (line,) = found.repairs
    assert (line.what, line.which, line.after) == (
        "part",
        held.idx,
        {"status": "pending", "ready": True, "waiting": False},
    )
    stands = part(store, held.job_id, held.idx)
    assert (stands["status"], stands["attempt"], stands["attempts_allowed"]) == ("pending", 1, 4)
    assert "n1" not in findings(store)


@pytest.mark.plants_corruption
def test_a_part_that_waits_for_a_moment_beside_its_nested_job_waits_for_the_job_alone(store: Store) -> None:
    held, _ = test_nested.waiting(store)
    plant(store, "UPDATE fanin.part SET due_at = 7 WHERE waiting")
    assert repair(store).parts == 1
    assert part(store, held.job_id, held.idx)["due_at"] == limits.NEVER_SECONDS
    assert findings(store) == set()


@pytest.mark.plants_corruption
@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_moment_that_does_not_come_becomes_now(store: Store, status: str, clock: Clock) -> None:
    job_id = make(store, 2)
    if status == "running":
        claim_all(store)
    plant(store, f"UPDATE fanin.part SET due_at = due_at + 1e9, ready = false WHERE status = '{status}'")
    found = repair(store)
    assert (found.repaired, found.parts, [line.which for line in found.repairs]) == (1, 2, [0, 1])
    assert findings(store) == set()
    clock.advance(1)
    store.run(lambda: lease.wake(0))
    assert len(claim_all(store)) == 2
    assert job(store, job_id).status == "running"


@pytest.mark.plants_corruption
def test_a_running_part_that_is_held_back_loses_its_lease(store: Store) -> None:
    make(store, 1)
    claim_all(store)
    plant(store, "UPDATE fanin.part SET due_at = due_at + 1e12")
    assert repair(store).parts == 1
    assert findings(store) == set()


@pytest.mark.plants_corruption
def test_parts_that_are_held_back_for_ever_are_let_go_by_the_walk(store: Store) -> None:
    job_id = make(store, 3)
    plant(store, "UPDATE fanin.part SET due_at = due_at + 1e12, ready = false WHERE idx < 2")
    (line,) = repair(store).repairs
    assert (line.what, line.before, line.after) == ("job", {"walk_from": None}, {"walk_from": 0})
    while store.run(partial(pause.walk, 0, job_id)):
        pass
    assert len(claim_all(store)) == 3


@pytest.mark.plants_corruption
def test_a_part_that_is_ready_and_held_back_is_not_ready(store: Store) -> None:
    job_id = make(store, 2)
    store.run(partial(pause.pause, 0, job_id, Deed(new_claim_id())))
    while store.run(partial(pause.walk, 0, job_id)):
        pass
    plant(store, "UPDATE fanin.part SET ready = true WHERE idx = 1")
    (line,) = repair(store).repairs
    assert (line.which, line.after) == (1, {"ready": False})
    assert findings(store) == set()


@pytest.mark.plants_corruption
def test_many_wrong_parts_are_mended_in_portions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make(store, 10)
    plant(store, "UPDATE fanin.part SET due_at = due_at + 1e9, ready = false WHERE idx <> 4")
    monkeypatch.setattr(limits, "REPAIR_PARTS", 3)
    monkeypatch.setattr(limits, "REPAIRS_TOLD_MAX", 4)
    found = repair(store)
    assert (found.parts, len(found.repairs)) == (9, 4)
    assert logged(store) == 9
    assert len({row[0] for row in say(store, "SELECT id FROM fanin.repair")}) == 3
    assert findings(store) == set()
