"""Kind M: saying the same twice is saying it once; saying something else under the same key is refused."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import Any

import pytest

import fanin
from fanin.domain.model import Report, Verdict
from fanin.protocol import close, finish
from fanin.runtime import upkeep
from fanin.testing.crashpoints import VARIABLE
from fanin.testing.fakes import EffectReceiver
from fanin.testing.inline import Inline
from fanin.testing.state import dump
from tests.faults.crew import ROOT
from tests.protocol.helpers import say
from tests.runtime.receiver import Receiver
from tests.runtime.working import take_over, until, working

ASKER = """
import sys
import fanin
from fanin.testing import crashpoints

app = fanin.App(sys.argv[1])

@app.task(name="echo")
def echo(x: int) -> int:
    return x

app.store.buckets
crashpoints.install(app.store)
print("ready", flush=True)
sys.stdin.readline()
print(app.map(echo, range(300), key="once").id)
"""


def test_F089_the_same_key_from_many_callers_at_once_is_one_job(app: fanin.App) -> None:
    """threads and processes at one moment; one process is killed before its COMMIT"""

    @app.task(name="echo")
    def echo(x: int) -> int:
        return x

    points = ["", "", "submit.before_commit=kill"]
    askers = [
        subprocess.Popen(
            [sys.executable, "-c", ASKER, app.url], cwd=ROOT, text=True, env=os.environ | {VARIABLE: point},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for point in points
    ]  # fmt: skip
    for asker in askers:
        assert asker.stdout is not None
        assert asker.stdout.readline() == "ready\n"
    together = threading.Barrier(9)
    found: list[str] = []

    def ask() -> None:
        together.wait(90)
        found.append(app.map(echo, range(300), key="once").id)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    together.wait(90)
    for asker, point in zip(askers, points, strict=True):
        said, _ = asker.communicate("\n", timeout=60)
        if asker.returncode == 0:
            found.append(said.strip())
        else:
            assert (point != "", asker.returncode) == (True, -signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert len(found) >= 10
    assert set(found) == {app.job("once").id}
    assert say(app.store, "SELECT count(*) FROM fanin.job") == [(1,)]
    assert say(app.store, "SELECT count(*) FROM fanin.part") == [(300,)]


def test_F090_the_same_key_with_any_other_content_is_a_conflict(app: fanin.App) -> None:
    @app.task
    def work(x: int) -> int:
        return x

    @app.task
    def other(x: int) -> int:
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> int:
        return 0

    base: dict[str, Any] = {"then": after, "tolerate": 1, "attempts": 2, "give_up_after": 60}
    first = app.map(work, range(10), key="k", **base)
    before = dump(app.store)
    assert app.map(work, list(range(10)), key="k", **base).id == first.id
    different: list[tuple[Any, Any, dict[str, Any]]] = [
        (work, range(11), {}),
        (work, range(9), {}),
        (other, range(10), {}),
        (work, reversed(range(10)), {}),
        (work, range(10), {"then": None}),
        (work, range(10), {"then": after, "tolerate": 2}),
        (work, range(10), {"fail_fast": False}),
        (work, range(10), {"attempts": 3}),
        (work, range(10), {"give_up_after": 61}),
        (work, range(10), {"give_up": "proceed"}),
        (work, range(10), {"queue": "q"}),
        (work, range(10), {"priority": 1}),
    ]
    for task, items, options in different:
        for stream in (False, True):
            with pytest.raises(fanin.KeyConflict, match="'k'"):
                app.map(task, list(items), key="k", stream=stream, **base | options)
    with pytest.raises(fanin.KeyConflict, match="'k'"):
        app.submit_with(work, [1], key="k")
    assert dump(app.store) == before


def test_F091_everything_said_once_more_changes_nothing(app: fanin.App) -> None:
    """submits, reports, cancels, redrives and upkeep, in any order, twice"""
    broken = threading.Event()
    broken.set()
    reports: list[Report] = []

    @app.task(attempts=2, backoff=0)
    def work(x: int) -> int:
        if x % 5 == 1 and broken.is_set():
            raise ValueError(x)
        return x

    @app.task
    def after(found: fanin.Joined[int]) -> list[int]:
        return list(found)

    def submits() -> list[fanin.Job]:
        jobs = [app.map(work, range(n), key=f"job {n}", then=after, tolerate=n % 3) for n in range(12)]
        jobs.append(app.map(work, range(30), key="to cancel", delay=3600))
        return jobs

    jobs = submits()
    with working(app, on_part=lambda report, answer: reports.append(report)):
        jobs[-1].cancel("enough")
        for job in jobs:
            job.wait(60)
        runs = {job.id: job.row().run for job in jobs}
        broken.clear()
        jobs[2].redrive()
        jobs[2].wait(90)
        until(lambda: not say(app.store, "SELECT 1 FROM fanin.part WHERE status IN ('pending', 'running')"), "quiet")
    assert {job.status for job in jobs} == {"completed", "failed", "cancelled"}
    before = facts(app)

    def redrive_again(job: fanin.Job) -> None:
        from fanin.protocol import redrive

        app.store.run(lambda: redrive.redrive(app.store.bucket(job.id), job.id, runs[job.id], 1))

    again: list[Any] = [lambda r=report: app.store.run(lambda: finish.settle(0, [r], "w")) for report in reports]
    again += [submits, lambda: app.store.run(lambda: finish.settle(0, reports, "w"))]
    again += [lambda job=job: app.store.run(lambda: close.cancel(0, job.id)) for job in jobs]
    again += [lambda job=job: app.store.run(lambda: close.give_up(0, job.id)) for job in jobs]
    again += [lambda: redrive_again(jobs[2]), lambda: upkeep.once(app.store, 0)]
    after_once: Any = None
    for seed in (91, 92):
        random.Random(seed).shuffle(again)
        for say_it in again:
            say_it()
        assert facts(app) == before
        assert after_once in (None, dump(app.store)), "saying it a second time was written down again"
        after_once = dump(app.store)


def facts(app: fanin.App) -> dict[str, Any]:
    """Everything but the note that an overtaken attempt was refused, which is a measure and not a state."""
    found = dump(app.store)
    return {**found, "attempt_log": [row for row in found["attempt_log"] if "refused" not in row]}


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
def test_F092_an_effect_is_one_whichever_attempt_and_run_wants_it(app: fanin.App, mode: str) -> None:
    """a zombie, the next attempt and a later run name one effect: it is called once, and all are told its answer"""
    receiver = Receiver(honours_keys=False)
    app.effect("charge", mode=mode)(receiver.call)
    told: list[Any] = []

    @app.task(attempts=3)
    def order(x: int) -> int:
        part = fanin.current()
        told.append((part.attempt, part.effect("charge", x, now=True)))
        part.effect("charge", x)
        if part.attempt < 3:
            raise fanin.Permanent("not yet")
        return x

    job = app.map(order, [7])
    inline = Inline(app)
    first = inline.claim()
    assert first is not None
    first.run()
    inline.lose(first)
    inline.run_until_idle()
    assert first.commit() is Verdict.LOST
    job.redrive()
    inline.run_until_idle()
    assert list(job.results()) == [7]
    assert receiver.calls == receiver.applied == {f"{job.id}/0/charge": 1}
    assert told == [(n, "receipt of charge") for n in (1, 2, 3)]
    assert [(e.status, e.calls, e.attempt) for e in job.effects()] == [("done", 1, 1)]
    inline.close()


@pytest.mark.parametrize("first", ["zombie", "holder"])
def test_F092_the_key_of_an_effect_does_not_depend_on_the_attempt(app: fanin.App, first: str) -> None:
    """a zombie, the next attempt and a later run call with one key; another part has another"""
    gates = [threading.Event(), threading.Event()]
    begun = threading.Semaphore(0)
    fails = threading.Event()
    fails.set()

    with EffectReceiver() as receiver:

        def call(body: str) -> None:
            request = urllib.request.Request(
                receiver.url, body.encode(), {"Idempotency-Key": fanin.current().idempotency_key}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200

        @app.task(attempts=1, lease=60)
        def mail(x: int) -> int:
            if x == 0 and fanin.current().attempt <= 2:
                begun.release()
                assert gates[fanin.current().attempt - 1].wait(90)
            call(f"mail {x}")
            if x == 0 and fails.is_set():
                raise fanin.Permanent("no")
            return x

        job = app.map(mail, range(2))
        with working(app):
            assert begun.acquire(timeout=90)
            take_over(app, job)
            say(app.store, "UPDATE fanin.part SET due_at = 0, attempts_allowed = 9 WHERE idx = 0")
            order = [0] if first == "zombie" else []
            for n in order:
                gates[n].set()
                until(lambda: len(receiver.keys) == 2, "the zombie has called")
            gates[1].set()
            until(lambda: job.progress().ended, "the holder has failed")
            gates[0].set()
            fails.clear()
            job.redrive(attempts=2)
            job.wait(90)
            until(lambda: len(receiver.keys) == 4, "all have called")
        assert sorted(receiver.applied.values()) == [1, 1]
        assert set(receiver.keys) == {f"{job.id}/0", f"{job.id}/1"}
