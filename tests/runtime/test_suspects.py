"""A part whose last attempt may kill its worker has it when that worker holds nothing else."""

from __future__ import annotations

import fanin
from fanin.domain import identity
from fanin.domain.model import Report
from fanin.protocol import finish, lease
from tests.runtime.rows import end_leases, execute


def lose(app: fanin.App, task: str, times: int) -> None:
    """So many workers claim every part, and die."""
    for _ in range(times):
        claims = app.store.run(lambda: lease.claim(0, "default", {task: 60.0}, 256, identity.new_claim_id(), "dead"))
        assert claims
        end_leases(app.store)
        app.store.run(lambda: lease.wake(0))


def test_parts_that_were_lost_together_have_their_last_attempts_one_by_one(app: fanin.App) -> None:
    held: list[int] = []

    @app.task(attempts=3)
    def work(n: int) -> int:
        ((count,),) = execute(app.store, "SELECT count(*) FROM {part} WHERE status = 'running' AND NOT ready")
        held.append(int(count))
        return n

    job = app.map(work, range(6))
    lose(app, work.name, 2)
    app.run_worker(until_idle=True, concurrency=4)
    assert list(job.results()) == list(range(6))
    assert held == [1] * 6


def test_a_suspect_that_was_given_back_is_still_one(app: fanin.App) -> None:
    @app.task(attempts=2)
    def work(n: int) -> int:
        return n

    app.map(work, [1])
    lose(app, work.name, 1)
    leases = {work.name: 60.0}
    for _ in range(3):
        (claim,) = app.store.run(lambda: lease.claim(0, "default", leases, 9, identity.new_claim_id(), "w"))
        assert claim.alone
        app.store.run(lambda c=claim: finish.settle(0, [Report(c, "release")]))  # type: ignore[misc]
