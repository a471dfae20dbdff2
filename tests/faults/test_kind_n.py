"""Kind N: the part rows are the authority. Repairs that write are not built yet; what they will need to see is."""

from __future__ import annotations

import time

import pytest

import fanin
from fanin.stores.base import Bell, Store
from tests.protocol.helpers import THEN, claim_all, done, make, say, settle
from tests.runtime.working import working


class Deaf(Bell):
    """A bell that hears nothing: every dispatch signal is lost."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._bell.wait(left)
        return False

    def ring(self) -> None:
        pass

    def close(self) -> None:
        self._bell.close()


@pytest.mark.plants_corruption
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ("UPDATE fanin.job_stripe SET created = created + 1, remaining = remaining + 1", "c1"),
        ("UPDATE fanin.job_stripe SET created = created - 1, remaining = remaining - 1", "c1"),
        ("UPDATE fanin.job SET planned_parts = planned_parts + 1, sealed_parts = sealed_parts + 1", "c2"),
        ("DELETE FROM fanin.part WHERE idx = 0", "c1"),
    ],
    ids=["counter too high", "counter too low", "planned one more", "one row less"],
)
def test_F093_F097_drift_is_reported_with_the_job(store: Store, wrong: str, found: str) -> None:
    job_id = make(store, 10, then=THEN)
    say(store, wrong)
    findings = {name: rows for name, _, rows in store.check() if rows}
    assert found in findings
    assert job_id in [str(row.row.get("job_id", row.row.get("id"))) for row in findings[found]]


@pytest.mark.plants_corruption
def test_F094_parts_that_have_all_ended_without_an_end_of_the_job_are_reported(store: Store) -> None:
    job_id = make(store, 3, then=THEN)
    before = say(store, "SELECT open_stripes FROM fanin.job")
    settle(store, *map(done, claim_all(store)))
    say(store, "DELETE FROM fanin.outbox")
    say(store, "UPDATE fanin.job SET status = 'running', outcome = NULL, finished_at = NULL, reason = NULL, "
        f"open_stripes = {before[0][0]} WHERE id = '{job_id}'")  # fmt: skip
    findings = {name: rows for name, _, rows in store.check() if rows}
    assert {"l2", "s1"} <= set(findings)


def test_F095_parts_of_which_every_signal_was_lost_are_found_by_polling(
    app: fanin.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell = app.store.bell
    monkeypatch.setattr(app.store, "bell", lambda queues: Deaf(bell(queues)))

    @app.task
    def echo(x: int) -> int:
        return x

    with working(app, concurrency=50):
        app.map(echo, range(5)).wait(90)
