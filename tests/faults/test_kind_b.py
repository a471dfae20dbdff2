"""Kind B: every part must end in some terminal outcome, and every such outcome must be counted once."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

import fanin
from fanin.domain import limits
from fanin.domain.identity import new_claim_id
from fanin.domain.model import Claim, Verdict
from fanin.protocol import lease, redrive
from tests.protocol.helpers import done, events, part, retried, settle
from tests.runtime.rows import end_deadlines
from tests.runtime.working import until, working


@pytest.mark.parametrize(
    ("policy", "status"),
    [({}, "failed"), ({"tolerate": 10, "fail_fast": False}, "completed"), ({"tolerate": 2}, "completed")],
    ids=["all_success", "all_terminal", "at_least_8"],
)
def test_F010_one_part_fails_for_good(app: fanin.App, policy: dict[str, Any], status: str) -> None:
    @app.task
    def work(x: int) -> int:
        if x == 4:
            raise fanin.Permanent("part 4 is bad")
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[Any]:
        return [list(found), [[f.idx, f.status, f.message] for f in found.failures]]

    job = app.map(work, range(10), then=after, **policy)
    with working(app):
        job.wait(90)
        assert (job.status, job.progress().succeeded, job.progress().failed) == (status, 9, 1)
        (event,) = events(app.store, job.id)
        assert (event["status"], event["succeeded"], event["failed"]) == (status, 9, 1)
        if status == "failed":
            assert job.successor is None
            assert [failure.idx for failure in job.failures()] == [4]
        else:
            assert job.successor is not None
            good, bad = job.successor.result(90)
            assert good == [n for n in range(10) if n != 4]
            assert bad == [[4, "failed", "part 4 is bad"]]


@pytest.mark.parametrize("how", ["pending", "running", "waiting for a retry"])
def test_F012_the_last_open_part_is_cancelled(app: fanin.App, how: str) -> None:
    """it is counted once, ends the job by its policy, and whoever ran it is not heard any more"""

    @app.task(attempts=3)
    def work(x: int) -> int:
        return x

    job = app.map(work, range(4), tolerate=1, fail_fast=False)
    store = app.store

    def claims(count: int) -> list[Claim]:
        claim_id = new_claim_id()
        return store.run(lambda: lease.claim(0, "default", {work.name: 60.0}, count, claim_id, "w"))

    settle(store, *(done(held) for held in claims(3)))
    held = claims(1) if how != "pending" else []
    if how == "waiting for a retry":
        settle(store, retried(held[0], delay=3600.0))
    assert job.skip(3, failed=True, reason="not wanted") is True
    assert (job.status, job.row().outcome) == ("completed", "with_failures")
    (event,) = events(store, job.id)
    assert (event["succeeded"], event["failed"], event["ended_by"]["part"]) == (3, 1, 3)
    assert [(f.idx, f.type, f.message) for f in job.failures()] == [(3, "Skipped", "not wanted")]
    if held:
        (answer,) = settle(store, done(held[0]))
        assert answer.verdict is Verdict.LOST
    assert len(events(store, job.id)) == 1
    with pytest.raises(fanin.NotAllowedNow):
        job.skip(3, failed=True)


@pytest.mark.parametrize("parts", [1, 3])
def test_F011_the_failing_part_is_the_last_one_to_end(app: fanin.App, parts: int) -> None:
    """the failure itself ends the job, with the same outcome as when it had come first"""
    others_ended = threading.Event()

    @app.task(attempts=2, backoff=0)
    def work(x: int) -> int:
        if x == parts - 1:
            assert others_ended.wait(90)
            raise ValueError(x)
        return x

    job = app.map(work, range(parts))
    said: list[tuple[str, str]] = []
    with working(app, on_part=lambda report, answer: said.append((report.verb, answer.verdict.value))):
        until(lambda: job.progress().succeeded == parts - 1, "the others have ended")
        assert job.status == "running"
        others_ended.set()
        job.wait(90)
    assert said[-1] == ("retry", "last")
    assert (job.status, job.row().outcome, job.account()["ends"]) == ("failed", "too_many_failures", 1)


def test_F013_a_failed_job_is_opened_again_once_by_operators_who_ask_together(app: fanin.App) -> None:
    """the rule: a redrive is a new run with an end of its own"""
    broken = threading.Event()
    broken.set()

    @app.task(attempts=1)
    def work(x: int) -> int:
        if x == 2 and broken.is_set():
            raise ValueError(x)
        return x

    job = app.map(work, range(4), run=True).wait(90)
    assert job.status == "failed"
    broken.clear()
    together = threading.Barrier(4)
    runs: list[int] = []

    def ask() -> None:
        together.wait(90)
        runs.append(app.store.run(lambda: redrive.redrive(app.store.bucket(job.id), job.id, 1, 1, [2])))

    operators = [threading.Thread(target=ask) for _ in range(4)]
    for operator in operators:
        operator.start()
    for operator in operators:
        operator.join(90)
    assert runs == [2, 2, 2, 2]
    assert job.wait(90, run=True).status == "completed"
    assert part(app.store, job.id, 2)["attempt"] == 2
    with pytest.raises(fanin.NotAllowedNow, match="neither failed nor abandoned"):
        job.redrive([2])
    assert job.redrive() == 0
    assert [(event["run"], event["status"]) for event in events(app.store, job.id)] == [
        (1, "failed"),
        (2, "completed"),
    ]


@pytest.mark.usefixtures("renewals")
def test_F014_fail_fast_while_siblings_are_running(app: fanin.App, caplog: pytest.LogCaptureFixture) -> None:
    begun, fail, finish = threading.Semaphore(0), threading.Event(), threading.Event()
    told: list[int] = []

    @app.task(attempts=1)
    def work(x: int) -> int:
        begun.release()
        if x == 0:
            assert fail.wait(90)
            raise fanin.Permanent("first")
        until(lambda: fanin.current().cancelled, "the sibling learns of it")
        told.append(x)
        assert finish.wait(90)
        return x

    job = app.map(work, range(6), fail_fast=True)
    with caplog.at_level(logging.INFO, "fanin"), working(app, concurrency=3):
        for _ in range(3):
            assert begun.acquire(timeout=90)
        fail.set()
        job.wait(90)
        assert job.account()["ends"] == 1
        until(lambda: sorted(told) == [1, 2], "both siblings know at their next heartbeat")
        finish.set()
        until(lambda: job.account()["stale_refused"] == 2, "their late results are refused")
        until(lambda: job.progress().abandoned == 5, "all others are abandoned")
    assert not begun.acquire(blocking=False), "a pending part was handed out"
    assert (job.status, job.row().outcome, job.account()["ends"]) == ("failed", "too_many_failures", 1)
    loud = [record for record in caplog.records if record.levelno > logging.WARNING]
    assert loud == []
    assert all("refused" not in r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)


def test_F015_parts_that_find_nothing_to_do_and_a_join_that_takes_every_outcome(app: fanin.App) -> None:
    """four with a result, two that failed, two that found nothing to do: their value says so, no state does"""

    @app.task(attempts=1)
    def work(x: int) -> int | None:
        if x in (1, 4):
            raise fanin.Permanent("broken")
        return None if x in (2, 6) else x

    @app.task
    def after(found: fanin.Joined[int | None]) -> list[int]:
        values = list(found)
        return [len(values) - values.count(None), found.failed, values.count(None)]

    job = app.map(work, range(8), then=after, tolerate=8, fail_fast=False, run=True).wait(90)
    assert (job.status, job.row().outcome) == ("completed", "with_failures")
    assert job.successor is not None
    assert job.successor.wait(90, run=True).result() == [4, 2, 2]
    assert (job.account()["successors"], job.account()["ends"]) == (1, 1)


def test_F016_the_join_hands_over_successes_failures_and_what_was_abandoned(app: fanin.App) -> None:
    stuck, begun = threading.Event(), threading.Event()

    @app.task(attempts=1)
    def work(x: int) -> int:
        if x == 1:
            raise ValueError("x" * 1_000_000)
        if x >= 4:
            begun.set()
            assert stuck.wait(90)
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[Any]:
        return [
            [[idx, value] for idx, value in found.items()],
            [[f.idx, f.status, f.type, len(f.message) + len(f.traceback)] for f in found.failures],
        ]

    job = app.map(work, range(6), then=after, give_up_after="1h", give_up="proceed", tolerate=6, fail_fast=False)
    with working(app, concurrency=6):
        until(lambda: job.progress().remaining == 2, "all but the stuck ones have ended")
        end_deadlines(app.store)
        job.wait(90)
        stuck.set()
        until(lambda: job.progress().abandoned == 2, "what was open is abandoned")
        assert begun.is_set()
        assert job.successor is not None
        good, bad = job.successor.result(90)
    assert good == [[n, n] for n in (0, 2, 3)]
    assert [entry[:2] for entry in bad] == [[1, "failed"], [4, "abandoned"], [5, "abandoned"]]
    assert bad[0][2] == "ValueError"
    assert bad[0][3] <= limits.ERROR_BYTES
