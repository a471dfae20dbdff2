"""A tree of nested jobs of some depth and width: every level joined, and the memory of the worker bounded."""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest

import fanin
from fanin.testing.invariants import violations

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
