"""A tree of nested jobs of some depth and width: every level joined, and the memory of the worker bounded."""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest

import fanin
from fanin.domain import identity
from fanin.protocol import lease
from fanin.runtime import upkeep
from fanin.runtime.worker import Worker
from fanin.testing.invariants import violations
from fanin.testing.state import execute, select

LEVELS = 5 if os.environ.get("FANIN_LONG") else 3
GROWTH_BYTES = 200_000_000


@pytest.mark.timeout(7200 if LEVELS == 5 else 300)
def test_a_tree_is_joined_in_bounded_memory(app: fanin.App) -> None:
    @app.task
    def add(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task
    def tree(levels: int) -> Any:
        if levels == 0:
            return 1
        return fanin.current().fan_out(tree, [levels - 1] * 10, then=add)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job = app.map(tree, [LEVELS])
    app.run_worker(until_idle=True)
    assert job.result() == 10**LEVELS
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < GROWTH_BYTES, f"{grown:,} bytes more for {10**LEVELS:,} leaves"
    assert violations(app.store) == []


TREE_LEVELS = 5


def growing(app: fanin.App, width: int = 2) -> fanin.Job:
    """A tree whose leaves are ready to be run, and all that stands above them waits."""

    @app.task
    def add(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    @app.task
    def tree(levels: int) -> Any:
        if levels == 0:
            return 1
        queue = "leaves" if levels == 1 else "default"
        return fanin.current().fan_out(tree, [levels - 1] * width, then=add, queue=queue)

    job = app.map(tree, [TREE_LEVELS])
    Worker(app, queues=["default"]).run(until=lambda: len(app.jobs(limit=10_000)) == width**TREE_LEVELS)
    return job


def jobs_by_status(app: fanin.App) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in app.jobs(limit=10_000):
        found[row.status] = found.get(row.status, 0) + 1
    return found


@pytest.mark.parametrize("how", ["cancel", "give_up"])
def test_a_tree_is_ended_whole_in_one_round_of_upkeep(app: fanin.App, how: str) -> None:
    job = growing(app)
    jobs = 2**TREE_LEVELS
    assert jobs_by_status(app) == {"running": jobs}
    if how == "cancel":
        job.cancel("enough")
    else:
        execute(app.store, f"UPDATE fanin.job SET give_up_at = 0 WHERE id = '{job.id}'")
    assert upkeep.once(app.store, 0)
    assert jobs_by_status(app) == ({"cancelled": jobs} if how == "cancel" else {"cancelled": jobs - 1, "failed": 1})
    assert select(app.store, "SELECT job_id FROM fanin.job_stripe WHERE remaining > 0") == []
    assert not upkeep.once(app.store, 0)
    assert violations(app.store) == []


def test_no_part_of_a_tree_starts_after_its_job_was_told(app: fanin.App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody claims a part after every transaction of the upkeep, wherever one is ready."""
    job = growing(app)
    leases = dict.fromkeys(app.tasks, 60.0)
    started: list[str] = []
    done = upkeep._done

    def between(*call: Any) -> bool:
        found = done(*call)
        claimed = app.store.run(lambda: lease.claim(0, "leaves", leases, 1, identity.new_claim_id(), "w"))
        for one in claimed:
            started.append(app.job(one.job_id).status)
        return found

    monkeypatch.setattr(upkeep, "_done", between)
    job.cancel("enough")
    while upkeep.once(app.store, 0):
        pass
    assert started
    assert set(started) == {"running"}
    assert set(jobs_by_status(app)) == {"cancelled"}
    assert violations(app.store) == []
