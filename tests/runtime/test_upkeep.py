"""What any worker does for all jobs it does for each, whatever another one's rows look like."""

from __future__ import annotations

import pytest

import fanin
from fanin.domain import identity
from fanin.protocol import lease
from fanin.runtime import upkeep
from fanin.testing.state import execute


@pytest.mark.plants_corruption
def test_a_damaged_job_does_not_hold_up_the_others(app: fanin.App) -> None:
    """A job whose open counters are wrong can be ended by nobody; the lost part of another one fails all the same."""

    @app.task(attempts=1)
    def work(number: int) -> int:
        return number

    damaged, sound = app.map(work, [1]), app.map(work, [1])
    overdue = app.map(work, [1], give_up_after=0.001, delay=60)
    assert (
        len(app.store.run(lambda: lease.claim(0, "default", {work.name: -1.0}, 2, identity.new_claim_id(), "w"))) == 2
    )
    execute(app.store, f"UPDATE fanin.job SET open_stripes = 0 WHERE id = '{damaged.id}'")
    while overdue.status == "running":
        upkeep.once(app.store, 0)
    assert (damaged.status, sound.status, overdue.status) == ("running", "failed", "failed")
    assert overdue.progress().abandoned == 1
