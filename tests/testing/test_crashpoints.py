"""Crash points: named places at which a transaction can be stopped, killed or failed, from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fanin.domain.errors import BadOption
from fanin.domain.model import Spec, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import born, close, counting, effect, ending, finish, lease, outbox, outputs, redrive, submit
from fanin.stores import open_store
from fanin.stores.base import Store
from fanin.testing import crashpoints
from fanin.testing.crashpoints import Crashed, Plan
from tests.protocol.effects import begin, called, intent, said, wanting
from tests.protocol.helpers import cancel, claim, done, failed, make, retried, settle, verdicts

ROOMS = {
    "born": born,
    "submit": submit,
    "lease": lease,
    "counting": counting,
    "ending": ending,
    "finish": finish,
    "close": close,
    "redrive": redrive,
    "outbox": outbox,
    "outputs": outputs,
    "effect": effect,
}

DYING_WORKER = """
import sys
from fanin.stores import open_store
from fanin.testing import crashpoints
from tests.protocol.helpers import claim, done, settle

store = open_store(sys.argv[1])
crashpoints.install(store)
settle(store, *[done(held) for held in claim(store)])
print("survived")
"""


def job_states(store: Store) -> list[tuple[str, int]]:
    from fanin.testing.state import select

    return [(row["status"], row["open_stripes"]) for row in select(store, "SELECT status, open_stripes FROM fanin.job")]


def test_every_point_names_a_statement_of_the_protocol() -> None:
    for name, point in crashpoints.POINTS.items():
        room, _, statement = point.statement.partition(".")
        assert hasattr(ROOMS[room].SQL, statement), f"{name} stands at {point.statement}, which does not exist"
        assert point.when in ("begin", "after", "commit", "committed")


def test_a_store_without_a_plan_is_left_as_it_is(store: Store) -> None:
    assert crashpoints.install(store) is None
    assert "run" not in vars(store)


def test_every_point_is_passed_in_the_life_of_a_job(store: Store) -> None:
    plan = crashpoints.install(store, Plan())
    assert plan is not None
    job_id = make(store, 2, then=Spec(task="next", queue="other"), attempts=1)
    first, second = claim(store, seconds=0.0)
    store.run(lambda: lease.renew(0, [(second, -1.0)]))
    assert verdicts(store, done(first)) == [Verdict.OK]
    assert store.run(lambda: lease.reap(0)) == 1
    store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    assert verdicts(store, done(claim(store)[0])) == [Verdict.LAST]
    other = make(store, 1)
    assert cancel(store, other)
    assert store.run(lambda: close.sweep(0, other, 0)) == 1
    claim_id = "00000000-0000-4000-8000-000000000001"
    events = store.run(lambda: outbox.take(0, 10, 60.0, claim_id, "r"))
    store.run(lambda: outbox.settle(0, claim_id, [outbox.Said(event.key, "mark") for event in events]))
    make(store, 1)
    (held,) = claim(store)
    assert store.run(lambda: outputs.stage(held, "a", "/x"))
    assert store.run(lambda: outputs.mark_ready(held, "a", 1, "d"))
    call = begin(store, held, intent("now"))
    said(store, call, "mark")
    settle(store, wanting(held, intent()))
    assert len(called(store)) == 1
    assert plan.passed.keys() == crashpoints.POINTS.keys()


def test_points_are_not_passed_where_nothing_was_found(store: Store) -> None:
    plan = crashpoints.install(store, Plan())
    assert plan is not None
    assert claim(store) == []
    assert plan.passed == {}


@pytest.mark.parametrize("name", ["complete.part", "complete.stripe", "complete.job", "complete.event",
                                  "complete.successor", "complete.before_commit"])  # fmt: skip
def test_a_failure_inside_the_last_report_leaves_nothing_of_it(store: Store, name: str) -> None:
    make(store, 1, then=Spec(task="next", queue="other"))
    (held,) = claim(store)
    crashpoints.install(store, Plan.parse(f"{name}=raise@1"))
    with pytest.raises(Crashed, match=name):
        settle(store, done(held))
    assert job_states(store) == [("running", 1)]
    assert verdicts(store, done(held)) == [Verdict.LAST]


def test_a_failure_after_the_commit_is_answered_by_saying_it_again(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    crashpoints.install(store, Plan.parse("complete.after_commit=raise@1"))
    with pytest.raises(Crashed):
        settle(store, done(held))
    assert verdicts(store, done(held)) == [Verdict.REPLAY]


def test_a_batch_that_is_run_again_without_its_closed_job_passes_its_points_again(store: Store) -> None:
    closed, open_job = make(store, 1), make(store, 1)
    held = claim(store)
    assert cancel(store, closed)
    plan = crashpoints.install(store, Plan())
    assert plan is not None
    assert set(verdicts(store, *map(done, held))) == {Verdict.CLOSED, Verdict.LAST}
    assert plan.passed["complete.part"] == 2
    assert plan.passed["complete.before_commit"] == 1
    assert open_job


def test_a_heartbeat_on_a_reserved_connection_passes_points_too(store: Store) -> None:
    make(store, 1)
    held = claim(store)
    plan = crashpoints.install(store, Plan())
    assert plan is not None
    own = store.reserve()
    own.run(lambda: lease.renew(0, [(held[0], 60.0)]))
    own.close()
    assert plan.passed == {"renew.committed": 1}


def test_a_removed_point_does_nothing(store: Store) -> None:
    crashpoints.install(store, Plan.parse("submit.job=raise"))
    crashpoints.remove(store)
    assert make(store, 1)


def test_a_paused_thread_goes_on_when_its_rule_is_taken_away(store: Store) -> None:
    make(store, 1)
    (held,) = claim(store)
    plan = crashpoints.install(store, Plan.parse("work.done=pause"))
    assert plan is not None
    answers: list[Verdict] = []
    worker = threading.Thread(target=lambda: answers.extend(verdicts(store, done(held))))
    worker.start()
    while not plan.passed:
        assert worker.is_alive()
    assert answers == []
    plan.remove("work.done")
    worker.join(90)
    assert answers == [Verdict.LAST]


def test_a_plan_in_a_file_is_followed_while_it_changes(store: Store, tmp_path: Path) -> None:
    path = str(tmp_path / "points")
    crashpoints.install(store, Plan.from_file(path))
    make(store, 1)
    (held,) = claim(store)
    crashpoints.write_plan(path, "complete.stripe=raise")
    with pytest.raises(Crashed):
        settle(store, done(held))
    crashpoints.write_plan(path, "# nothing any more")
    assert verdicts(store, done(held)) == [Verdict.LAST]


def test_a_share_is_a_share() -> None:
    plan = Plan.parse("claim.taken=raise%0.25", seed=1)
    hits = 0
    for _ in range(1000):
        try:
            plan.hit("claim.taken")
        except Crashed:
            hits += 1
    assert 200 < hits < 300


@pytest.mark.parametrize("name", ["complete.stripe", "complete.before_commit", "complete.after_commit"])
def test_a_process_named_by_the_environment_is_killed_there(store: Store, name: str, tmp_path: Path) -> None:
    make(store, 1)
    log = tmp_path / "passed"
    dead = subprocess.run(
        [sys.executable, "-c", DYING_WORKER, store.url], capture_output=True, text=True, timeout=60,
        env=os.environ | {crashpoints.VARIABLE: f"{name}=kill", crashpoints.LOG_VARIABLE: str(log), "PYTHONPATH": "."},
    )  # fmt: skip
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    assert "survived" not in dead.stdout
    assert log.read_text().splitlines()[-1].startswith(name)
    ended = job_states(store)[0][0] == "completed"
    assert ended is (name == "complete.after_commit")


def test_a_frozen_process_goes_on_when_it_is_continued(store: Store) -> None:
    make(store, 1)
    frozen = subprocess.Popen(
        [sys.executable, "-c", DYING_WORKER, store.url], stdout=subprocess.PIPE, text=True,
        env=os.environ | {crashpoints.VARIABLE: "work.done=freeze", "PYTHONPATH": "."},
    )  # fmt: skip
    _, status = os.waitpid(frozen.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert job_states(store) == [("running", 1)]
    frozen.send_signal(signal.SIGCONT)
    assert frozen.communicate(timeout=90)[0] == "survived\n"
    assert job_states(store) == [("completed", 0)]


def test_a_job_that_ended_in_a_killed_process_has_lost_nothing(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    make(store, 3, policy=Policy(tolerate=1), attempts=2)
    subprocess.run(
        [sys.executable, "-c", DYING_WORKER, sqlite_url], capture_output=True, timeout=60,
        env=os.environ | {crashpoints.VARIABLE: "complete.part=kill", "PYTHONPATH": "."},
    )  # fmt: skip
    assert claim(store) == []  # the dead worker's leases stand
    assert all(not findings for _, _, findings in store.check())
    store.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("complete.stripes=kill", "there is no crash point 'complete.stripes'"),
        ("complete.stripe=explode", "'explode' is no action"),
        ("complete.stripe", "write NAME=ACTION"),
        ("complete.stripe=kill@x", "write NAME=ACTION"),
    ],
)
def test_a_wrong_plan_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        Plan.parse(text)


def test_retries_and_failures_pass_the_same_points(store: Store) -> None:
    make(store, 2, attempts=2)
    plan = crashpoints.install(store, Plan())
    assert plan is not None
    held = claim(store)
    settle(store, retried(held[0]), failed(held[1]))
    assert plan.passed["complete.part"] == 1
    assert plan.passed["complete.stripe"] == 1
    assert "complete.job" not in plan.passed
