"""Listeners: the end of a run creates the job of each, in its own transaction, once, however it ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fanin.domain import identity, limits
from fanin.domain.events import JobFinished
from fanin.protocol import read, redrive
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    append,
    cancel,
    claim,
    claim_all,
    done,
    ending,
    events,
    failed,
    job,
    listeners,
    make,
    make_open,
    run_all,
    seal,
    settle,
)


def heard(store: Store, job_id: str) -> dict[str, str]:
    """Step to id of the jobs that listeners of a job have been given."""
    found = store.read(lambda: read.children([0], job_id))
    return {f"{step} {n}": child for n, (child, step) in enumerate(found) if step and step.startswith("on/")}


def payloads(store: Store) -> list[JobFinished]:
    """What the listeners' parts receive."""
    claims = claim_all(store, queue="joins", tasks=["one", "two"])
    return [msgspec.json.decode(held.payload, type=list[JobFinished])[0] for held in claims]


def succeeds(store: Store, **options: Any) -> str:
    job_id = make(store, 2, **options)
    run_all(store)
    return job_id


def fails(store: Store, **options: Any) -> str:
    job_id = make(store, 2, **options)
    settle(store, *map(failed, claim(store)))
    return job_id


def is_cancelled(store: Store, **options: Any) -> str:
    job_id = make(store, 2, **options)
    cancel(store, job_id)
    return job_id


def is_empty(store: Store, **options: Any) -> str:
    return make(store, 0, **options)


def is_streamed(store: Store, **options: Any) -> str:
    job_id = make_open(store, **options)
    append(store, job_id, 0, 1)
    run_all(store)
    seal(store, job_id, 1)
    return job_id


@pytest.mark.parametrize("ends", [succeeds, fails, is_cancelled, is_empty, is_streamed])
def test_each_end_creates_the_job_of_each_listener_with_the_event(store: Store, ends: Any) -> None:
    job_id = ends(store, listeners=listeners("one", "two"))
    born = heard(store, job_id)
    assert len(born) == 2
    assert set(born.values()) == {identity.successor_id(job_id, f"on/{name}", 1) for name in ("one", "two")}
    (event,) = events(store, job_id)
    received = payloads(store)
    assert [msgspec.to_builtins(one) for one in received] == [event, event]
    assert (received[0].status, received[0].outcome) == ending(store, job_id)


def test_nothing_is_created_before_the_end(store: Store) -> None:
    job_id = make(store, 2, listeners=listeners("one"))
    first, second = claim(store)
    settle(store, done(first))
    assert heard(store, job_id) == {}
    settle(store, done(second))
    settle(store, done(second))
    assert len(heard(store, job_id)) == 1


def test_every_run_is_heard(store: Store) -> None:
    job_id = fails(store, listeners=listeners("one"))
    assert store.run(lambda: redrive.redrive(0, job_id, 1, 1)) == 2
    assert len(heard(store, job_id)) == 1
    run_all(store)
    assert len(heard(store, job_id)) == 2
    assert sorted(one.run for one in payloads(store)) == [1, 2]


def test_a_listener_stands_beside_the_successor(store: Store) -> None:
    job_id = succeeds(store, listeners=listeners("one"), then=THEN)
    assert len(heard(store, job_id)) == 1
    successor = store.read(lambda: read.successor(0, job_id))
    assert successor is not None
    assert job(store, successor).step == "then"
    assert store.read(lambda: read.account(0, job_id))["successors"] == 1


def test_a_listener_that_would_stand_too_deep_is_refused_and_the_end_is_not(store: Store) -> None:
    job_id = succeeds(store, listeners=listeners("one"), depth=limits.JOB_DEPTH_LEVELS)
    (child,) = heard(store, job_id).values()
    assert ending(store, job_id)[0] == "completed"
    assert ending(store, child) == ("failed", "refused")


def test_what_a_listener_does_is_not_heard_by_it(store: Store) -> None:
    job_id = succeeds(store, listeners=listeners("one"))
    (child,) = heard(store, job_id).values()
    run_all(store, queue="joins", tasks=["one"])
    assert job(store, child).status == "completed"
    assert heard(store, child) == {}
