"""Kind F: what happens to leased work when the process around it ends or splits."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback

import pytest

import fanin
from fanin.protocol import read
from tests.faults.crew import Crew
from tests.faults.scale import scaled
from tests.protocol.helpers import say
from tests.runtime.working import until, working


@pytest.mark.parametrize("point", ["claim.taken", "claim.committed", "work.done"])
def test_F042_a_worker_is_killed_while_it_claims_and_works(crew: Crew, point: str) -> None:
    """the points of the completion are those of F005"""
    job = crew.map("quick", range(3), then=crew.app.tasks["after"])
    assert crew.ended(crew.start(points=f"{point}=kill@2")) == -signal.SIGKILL
    crew.expire()
    with working(crew.app):
        job.wait(90)
        assert job.successor is not None
        assert job.successor.result(90) == [0, 1, 2]
    assert job.account()["ends"] == 1
    assert all(entry["what"] == "lease_lost" for entry in job.history())


def test_F043_the_threads_of_a_forked_child_never_share_a_connection_of_its_parent(app: fanin.App) -> None:
    """the first use in the child is by many threads at once"""

    @app.task
    def echo(x: int) -> int:
        return x

    app.map(echo, range(5), run=True).wait(90)
    parents = {connection.info.backend_pid for connection in getattr(app.store, "_idle", [])}
    for _ in range(scaled(12)):
        pid = os.fork()
        if pid == 0:
            os._exit(use_from_many_threads(app, parents))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, "see the captured output"
    assert app.map(echo, range(5), run=True).result(90) == list(range(5))


def use_from_many_threads(app: fanin.App, parents: set[int]) -> int:
    sys.setswitchinterval(1e-6)
    threads, wrong = 8, []
    together = threading.Barrier(threads)

    def use() -> None:
        try:
            together.wait(90)
            for _ in range(3):
                assert app.store.run(lambda: read.jobs(range(1), None, 10))
                if app.store.dialect == "pg" and say(app.store, "SELECT pg_backend_pid()")[0][0] in parents:
                    wrong.append("the session of the parent")
        except BaseException:
            wrong.append(traceback.format_exc())

    users = [threading.Thread(target=use) for _ in range(threads)]
    for user in users:
        user.start()
    for user in users:
        user.join(90)
    for problem in wrong:
        print(problem, file=sys.stderr, flush=True)
    return 1 if wrong or any(user.is_alive() for user in users) else 0


def test_F043_a_child_that_closes_what_it_never_used_leaves_its_parent_alone(app: fanin.App) -> None:
    @app.task
    def echo(x: int) -> int:
        return x

    app.map(echo, range(5), run=True).wait(90)
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                app.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        job = app.map(echo, range(5), run=True)
        assert job.result(90) == list(range(5))
        assert say(app.store, "SELECT count(*) FROM fanin.part WHERE status <> 'succeeded'") == [(0,)]
    until(lambda: job.status == "completed", "the last job has ended")
