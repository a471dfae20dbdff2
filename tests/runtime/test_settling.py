"""What a worker does when the reports of several jobs cannot be settled in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fanin.domain.model import Report, Settled, Verdict
from fanin.protocol import finish
from fanin.protocol.steps import Txn
from fanin.runtime.settling import Settling
from fanin.stores.base import Store
from tests.protocol.helpers import QUEUE, TASK, claim, done, make

settle = finish.settle


@pytest.fixture
def reports(store: Store) -> list[Report]:
    """Of three jobs that nobody waits for."""
    for _ in range(3):
        make(store, 1)
    return [done(held) for held in claim(store)]


def test_what_keeps_jobs_from_being_settled_together_is_logged_and_each_is_settled(
    store: Store, reports: list[Report], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def alone(bucket: int, said: Sequence[Report], worker: str) -> Txn[list[Settled]]:
        if len({report.claim.job_id for report in said}) > 1:
            raise LookupError("not these two")
        return (yield from settle(bucket, said, worker))

    monkeypatch.setattr(finish, "settle", alone)
    answers = Settling(store, [QUEUE], {TASK: 60.0}, "w")._rank_by_rank(0, reports)
    assert sorted(report.claim.job_id for report, _ in answers) == sorted(report.claim.job_id for report in reports)
    assert {answer.verdict for _, answer in answers} == {Verdict.LAST}
    (line,) = [record for record in caplog.records if "could not be settled together" in record.getMessage()]
    assert line.exc_info is not None
    assert isinstance(line.exc_info[1], LookupError)


def test_a_job_whose_results_cannot_be_stored_is_told_and_holds_up_no_other(
    store: Store, reports: list[Report], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = reports[1].claim.job_id

    def refusing(bucket: int, said: Sequence[Report], worker: str) -> Txn[list[Settled]]:
        if damaged in {report.claim.job_id for report in said}:
            raise LookupError("no counters")
        return (yield from settle(bucket, said, worker))

    monkeypatch.setattr(finish, "settle", refusing)
    answers = Settling(store, [QUEUE], {TASK: 60.0}, "w")._rank_by_rank(0, reports)
    assert len(answers) == 2
    assert damaged not in {report.claim.job_id for report, _ in answers}
    assert f"job {damaged}: 1 results could not be stored (no counters). Run `fanin check`" in caplog.text
