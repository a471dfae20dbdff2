"""Parts run by hand in the test's thread, and the pytest fixtures that bring it to users."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import fanin
from fanin.domain.errors import NotAllowedNow
from fanin.domain.model import Verdict
from fanin.testing.inline import Inline


def tasks(app: fanin.App, ran: list[Any]) -> tuple[Any, Any]:
    @app.task(name="work", attempts=4, lease="30s", backoff=600)
    def work(n: int) -> int:
        ran.append(n)
        if n == 13 and fanin.current().attempt < 3:
            raise ValueError("unlucky")
        return n

    @app.task(name="total")
    def total(parts: fanin.Joined[int]) -> int:
        ran.append("total")
        return sum(parts)

    return work, total


def opened(app: fanin.App, ran: list[Any]) -> tuple[Any, Any, Inline]:
    work, total = tasks(app, ran)
    return work, total, Inline(app)


def test_parts_and_their_join_run_in_this_thread_and_every_wait_is_skipped(app: fanin.App) -> None:
    ran: list[Any] = []
    work, total, inline = opened(app, ran)
    job = app.map(work, [1, 13, 2], then=total, delay="2h")
    began = time.monotonic()
    assert inline.run_until_idle() == 6  # three parts, two of them again, and the join
    assert ran == [1, 13, 2, 13, 13, "total"]
    assert time.monotonic() - began < 280  # the back-off alone is 600 s
    assert inline.ahead > 2 * 3600 + 60
    assert job.successor is not None
    assert job.successor.result() == 16
    inline.close()


def test_every_handler_can_be_delivered_twice_and_counts_once(app: fanin.App) -> None:
    ran: list[Any] = []
    work, total, inline = opened(app, ran)
    job = app.map(work, [1, 2, 3], then=total)
    inline.run_until_idle(deliver_twice=True)
    assert sorted(ran[:6]) == [1, 1, 2, 2, 3, 3]
    assert ran.count("total") == 2
    assert job.successor is not None
    assert job.successor.result() == 6
    assert job.account()["stale_refused"] == 3
    inline.close()


def test_of_two_attempts_at_one_part_the_overtaken_one_is_refused(app: fanin.App) -> None:
    work, _, inline = opened(app, [])
    job = app.map(work, [5])
    first = inline.claim()
    assert first is not None
    first.run()
    inline.lose(first)
    second = inline.claim()
    assert second is not None
    assert (second.idx, second.number) == (0, 2)
    assert second.run().commit() is Verdict.LAST
    assert first.commit() is Verdict.LOST
    assert second.commit() is Verdict.REPLAY
    assert list(job.results()) == [5]
    inline.close()


def test_a_holder_whose_lease_ran_out_may_still_report_until_it_is_overtaken(app: fanin.App) -> None:
    work, _, inline = opened(app, [])
    app.map(work, [5])
    first = inline.claim()
    assert first is not None
    inline.lose(first)
    assert first.run().commit() is Verdict.LAST
    inline.close()


def test_an_attempt_that_has_not_run_has_nothing_to_report(app: fanin.App) -> None:
    work, _, inline = opened(app, [])
    app.map(work, [5])
    attempt = inline.claim()
    assert attempt is not None
    with pytest.raises(NotAllowedNow, match="call run"):
        attempt.commit()
    assert inline.claim() is None
    inline.close()


def test_handlers_on_an_event_loop_run_too(app: fanin.App) -> None:
    @app.task(name="later")
    async def later(n: int) -> int:
        if n == 2:
            raise fanin.Permanent("two")
        return n

    inline = Inline(app)
    job = app.map(later, [1, 2], tolerate=1)
    inline.run_until_idle()
    assert list(job.results()) == [1]
    assert job.failures()[0].message == "two"
    inline.close()


def test_parts_without_end_are_noticed(app: fanin.App) -> None:
    @app.task(name="again", attempts=1000)
    def again(n: int) -> int:
        raise fanin.RetryLater(1)

    inline = Inline(app)
    app.map(again, [1])
    with pytest.raises(RuntimeError, match="10 attempts were run"):
        inline.run_until_idle(most=10)
    inline.close()


USERS_PROJECT = {
    "shop.py": """
import fanin
app = fanin.App("sqlite:///never-made.db")
mails = []

@app.task
def mail(order: int) -> int:
    mails.append(order)
    return order

@app.task
def total(parts: fanin.Joined[int]) -> int:
    return sum(parts)
""",
    "conftest.py": 'pytest_plugins = ["fanin.testing.plugin"]\n',
    "test_shop.py": """
import shop

def test_orders(fanin_inline):
    inline = fanin_inline(shop.app)
    job = shop.app.map(shop.mail, [1, 2], then=shop.total, key="k")
    inline.run_until_idle()
    assert job.successor.result() == 3

def test_each_test_has_a_database_of_its_own(fanin_inline):
    inline = fanin_inline(shop.app)
    assert shop.app.jobs() == []
    inline.run_until_idle()

def test_a_fresh_application(fanin_app):
    @fanin_app.task
    def one(n: int) -> int:
        return n
    job = fanin_app.map(one, [1])
    fanin_app.run_worker(until_idle=True)
    assert job.status == "completed"
""",
    "test_broken.py": """
from fanin.protocol import counting
from fanin.testing.mutate import without
import shop

def test_that_breaks_a_rule(fanin_inline):
    inline = fanin_inline(shop.app)
    job = shop.app.map(shop.mail, [1, 2])
    held = inline.claim().run()
    job.cancel()
    with without(counting.SQL.count_down, " AND NOT closed"):
        held.commit()
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in USERS_PROJECT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run_pytest(project: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words], cwd=project, capture_output=True,
        text=True, timeout=280, env={k: v for k, v in os.environ.items() if not k.startswith(("FANIN", "PYTEST"))},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_users_run_their_handlers_and_joins_on_a_database_of_the_test(store_url: str, project: Path) -> None:
    where = ["--fanin-url", store_url] if store_url.startswith("postgresql") else []
    code, said = run_pytest(project, "test_shop.py", *where)
    assert code == 0, said
    assert "3 passed" in said
    assert not (project / "never-made.db").exists()


def test_a_broken_rule_fails_the_users_test(project: Path) -> None:
    code, said = run_pytest(project, "test_broken.py")
    assert code == 1
    assert "these rules do not hold" in said
