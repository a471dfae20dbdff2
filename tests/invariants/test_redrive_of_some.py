"""A run that takes up only some of the parts does not call the others done."""

from __future__ import annotations

import msgspec
import pytest

from fanin.domain.model import JobRow
from fanin.domain.policy import Policy
from fanin.protocol import close, read, redrive
from fanin.stores.base import Store
from fanin.testing import invariants
from fanin.testing.state import select
from tests.races.stage import BUCKET, Stage, succeed


@pytest.fixture
def stage(store: Store) -> Stage:
    list(store.check())
    invariants.install(store)
    return Stage(store)


def cancelled_with_two_left(stage: Stage, policy: Policy) -> str:
    """One part of three has succeeded, the others are abandoned."""
    job_id = stage.job(3, policy=policy)
    stage.settled([succeed(claim) for claim in stage.claims(1)])
    stage.store.run(lambda: close.cancel(BUCKET, job_id))
    stage.store.run(lambda: close.sweep(BUCKET, job_id, 0))
    return job_id


def run_again(stage: Stage, job_id: str, idx: int) -> JobRow:
    assert stage.store.run(lambda: redrive.redrive(BUCKET, job_id, 1, 1, [idx])) == 2
    stage.settled([succeed(claim) for claim in stage.claims(1)])
    row = stage.store.read(lambda: read.job(BUCKET, job_id))
    assert row is not None
    return row


def test_parts_that_stay_abandoned_are_counted_at_the_end_of_the_next_run(stage: Stage) -> None:
    job_id = cancelled_with_two_left(stage, Policy())
    row = run_again(stage, job_id, 1)
    assert (row.status, row.outcome) == ("failed", "too_many_failures")
    assert (row.succeeded_parts, row.failed_parts, row.abandoned_parts) == (2, 0, 1)
    assert row.reason == "0 of 3 parts failed and 1 abandoned, tolerated 0"
    texts = select(stage.store, f"SELECT payload FROM fanin.outbox WHERE event_key = 'job/{job_id}/finished/2'")
    assert msgspec.json.decode(texts[0]["payload"])["abandoned"] == 1
    assert not stage.store.read(lambda: read.children([BUCKET], job_id)), "no successor of a run that failed"


def test_a_tolerant_job_is_completed_with_what_stays_abandoned(stage: Stage) -> None:
    job_id = cancelled_with_two_left(stage, Policy(tolerate=1))
    row = run_again(stage, job_id, 2)
    assert (row.status, row.outcome, row.abandoned_parts) == ("completed", "with_failures", 1)
    assert len(stage.store.read(lambda: read.children([BUCKET], job_id))) == 1
