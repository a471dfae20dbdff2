"""What people and programs read: pages, progress, history, search."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanin.domain.model import Progress
from fanin.domain.policy import Policy
from fanin.protocol import lease, read
from fanin.stores.base import Store
from tests.protocol.helpers import (
    TASK,
    THEN,
    Clock,
    append,
    cancel,
    claim,
    claim_all,
    done,
    failed,
    make,
    make_open,
    released,
    retried,
    run_all,
    settle,
    sweep_all,
)

NOBODY = "00000000-0000-7000-8000-000000000000"


def progress(store: Store, job_id: str) -> Progress:
    found = store.read(lambda: read.progress(0, job_id))
    assert found is not None
    return found


def test_what_does_not_exist_is_none(store: Store) -> None:
    job_id = make(store, 1)
    assert store.read(lambda: read.job(0, NOBODY)) is None
    assert store.read(lambda: read.progress(0, NOBODY)) is None
    assert store.read(lambda: read.part(0, job_id, 1)) is None
    assert store.read(lambda: read.results(0, NOBODY, 0)) == []
    assert store.read(lambda: read.failures(0, NOBODY, 0)) == []
    assert store.read(lambda: read.history(0, NOBODY)) == []
    assert store.read(lambda: read.events(0, NOBODY)) == []
    assert store.read(lambda: read.children([0], NOBODY)) == []


def test_results_come_in_pages_in_the_order_of_the_parts(store: Store) -> None:
    job_id = make(store, 1_203, stripes=4)
    settle(store, *[done(c, json.dumps(f"r{c.idx}")) for c in claim_all(store)])
    found: list[Any] = []
    pages = 0
    while page := store.read(lambda: read.results(0, job_id, len(found))):
        assert len(page) <= read.PAGE_PARTS
        found += page
        pages += 1
    assert found == [(n, "succeeded", json.dumps(f"r{n}")) for n in range(1_203)]
    assert pages == 3


def test_failures_come_in_pages_with_what_was_said_last(store: Store) -> None:
    job_id = make(store, 30, attempts=2, policy=Policy(tolerate=30))
    settle(store, *[retried(c, message=f"first {c.idx}") for c in claim_all(store)])
    held = claim_all(store)
    settle(store, *[failed(c, f"second {c.idx}") if c.idx % 2 else done(c) for c in held])
    page = store.read(lambda: read.failures(0, job_id, 0, 10))
    assert [f.idx for f in page] == list(range(1, 21, 2))
    rest = store.read(lambda: read.failures(0, job_id, page[-1].idx + 1, 10))
    assert [f.idx for f in rest] == list(range(21, 31, 2))
    one = page[0]
    assert (one.status, one.attempt, one.type, one.message, one.traceback, one.payload) == (
        "failed", 2, "ValueError", "second 1", "tb", 1,
    )  # fmt: skip
    assert str(one) == "part 1 failed at attempt 2: ValueError: second 1"


def test_an_abandoned_part_says_that_the_job_ended_first(store: Store) -> None:
    job_id = make(store, 2)
    settle(store, done(claim(store, 1)[0]))
    cancel(store, job_id)
    sweep_all(store)
    (failure,) = store.read(lambda: read.failures(0, job_id, 0))
    assert (failure.idx, failure.status, failure.attempt) == (1, "abandoned", 0)
    assert (failure.type, failure.message) == ("Abandoned", "the job ended first")


def test_progress_is_the_sum_over_the_stripes(store: Store) -> None:
    job_id = make(store, 200, stripes=3)
    assert progress(store, job_id) == Progress("running", None, 1, 200, 200, 0, 0, 0)
    assert progress(store, job_id).fraction == 0.0
    held = claim_all(store)
    settle(store, *map(done, held[:49]), failed(held[199]))
    assert progress(store, job_id) == Progress("running", None, 1, 200, 150, 49, 1, 0)
    assert progress(store, job_id).fraction == 0.25
    cancel(store, job_id)
    seen = progress(store, job_id)
    assert seen == Progress("cancelled", "cancelled", 1, 200, 0, 49, 1, 150)
    assert (seen.ended, seen.fraction) == (True, 1.0)
    sweep_all(store)
    assert progress(store, job_id) == seen


def test_a_job_without_parts_is_complete_when_it_has_ended(store: Store) -> None:
    assert progress(store, make(store, 0)).fraction == 1.0
    assert progress(store, make_open(store)).fraction == 0.0


def test_the_newest_jobs_come_first_and_can_be_chosen_by_state(store: Store, clock: Clock) -> None:
    made = []
    for _ in range(4):
        made.append(make(store, 1))
        clock.advance(1)
    cancel(store, made[1])
    assert [j.id for j in store.read(lambda: read.jobs([0], None, 10))] == made[::-1]
    assert [j.id for j in store.read(lambda: read.jobs([0], None, 2))] == made[:1:-1]
    assert [j.id for j in store.read(lambda: read.jobs([0], "cancelled", 10))] == [made[1]]
    assert store.read(lambda: read.jobs([0], "failed", 10)) == []


def test_a_job_is_found_by_the_beginning_of_its_id_or_by_its_key(store: Store) -> None:
    job_id = make(store, 1, key="Album 100%_!")
    make(store, 1)

    def like(text: str) -> list[str]:
        return store.read(lambda: read.jobs_like([0], text))

    assert like(job_id) == like(job_id[:13]) == like(job_id[:13].upper()) == [job_id]
    assert like("Album 100%_!") == [job_id]
    assert like("Album") == []
    assert like("%") == []
    assert like("_" * 36) == []
    assert like("!") == []


def test_more_than_two_jobs_of_one_prefix_are_enough_to_call_it_ambiguous(store: Store) -> None:
    for _ in range(5):
        make(store, 1)
    assert len(store.read(lambda: read.jobs_like([0], ""))) == 3


def test_children_are_successors_with_a_step_and_started_jobs_without(store: Store) -> None:
    job_id = make(store, 1, then=THEN)
    started = make(store, 1, parent_id=job_id, root_id=job_id, depth=1, queue="other")
    run_all(store)
    found = dict(store.read(lambda: read.children([0], job_id)))
    assert len(found) == 2
    assert found[started] is None
    assert set(found.values()) == {None, "then"}


def test_running_parts_are_listed_with_their_holder_and_their_lease(store: Store) -> None:
    job_id = make(store, 3)
    claim(store, 2, worker="one", seconds=100)
    found = store.read(lambda: read.running(0, job_id))
    assert [(r["idx"], r["attempt"], r["worker"]) for r in found] == [(0, 1, "one"), (1, 1, "one")]
    assert all(90 < r["lease_seconds"] <= 100 for r in found)
    assert len(store.read(lambda: read.running(0, job_id, 1))) == 1


def test_the_account_counts_what_a_job_cost(store: Store, clock: Clock) -> None:
    job_id = make(store, 4, attempts=3, then=THEN)
    again, given, zombie, fine = claim(store)
    settle(store, retried(again), released(given), done(fine))
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    held = claim_all(store)
    assert len(held) == 3
    settle(store, done(zombie))
    settle(store, *map(done, held))
    assert store.read(lambda: read.account(0, job_id)) == {
        "parts": 4, "attempts": 7, "leases_lost": 1, "stale_refused": 1, "retried": 1, "released": 1,
        "events": 1, "successors": 1,
    }  # fmt: skip


def test_the_history_is_told_in_the_order_of_time(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=5)
    settle(store, retried(claim(store)[0]), worker="a")
    clock.advance(1)
    settle(store, released(claim(store)[0]), worker="b")
    clock.advance(1)
    claim(store, worker="c")
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    clock.advance(1)
    settle(store, failed(claim(store)[0]), worker="d")
    found = store.read(lambda: read.history(0, job_id))
    assert [(h["what"], h["attempt"], h["worker"]) for h in found] == [
        ("retried", 1, "a"), ("released", 2, "b"), ("lease_lost", 3, "c"), ("failed", 4, "d"),
    ]  # fmt: skip
    assert len(store.read(lambda: read.history(0, job_id, 2))) == 2


def test_the_event_of_an_end_has_the_key_of_its_run(store: Store) -> None:
    job_id = make(store, 1)
    run_all(store)
    ((key, seq, kind, payload, at, published),) = store.read(lambda: read.events(0, job_id))
    assert (key, seq, kind, published) == (f"job/{job_id}/finished/1", 1, "job.finished", None)
    assert at > 1.7e9
    assert json.loads(payload)["status"] == "completed"


@pytest.mark.parametrize("what", ["ready", "delayed", "held"])
def test_a_backlog_is_anything_that_is_still_live_in_these_queues(store: Store, what: str) -> None:
    def left(*queues: str, tasks: list[str] | None = None) -> bool:
        return store.read(lambda: read.backlog([0], queues, tasks or [TASK]))

    assert left("q", "other") is False
    make(store, 1, queue="other", delay=0.0)
    assert left("q") is False
    make(store, 1, delay=60.0 if what == "delayed" else 0.0)
    if what == "held":
        claim(store)
    assert left("q") is True
    assert left("nothing", "other") is True
    assert left() is False
    assert store.read(lambda: read.backlog([0], ["q"], ["another"])) is False
    assert left("q", tasks=["unknown here"]) is False


def test_nothing_is_left_when_every_part_has_ended(store: Store) -> None:
    make(store, 2)
    run_all(store)
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    cancel(store, job_id)
    assert store.read(lambda: read.backlog([0], ["q"], [TASK])) is True
    sweep_all(store)
    assert store.read(lambda: read.backlog([0], ["q"], [TASK])) is False
