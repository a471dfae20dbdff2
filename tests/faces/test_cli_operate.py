"""``fanin pause``, ``resume``, ``skip``, ``finish`` and ``explain``."""

from __future__ import annotations

import pytest

import fanin
from fanin.cli import exits
from fanin.domain.timeline import Moment
from fanin.runtime.timeline import _place
from tests.faces.terminal import Terminal


@pytest.fixture
def job(terminal: Terminal) -> fanin.Job:
    """A job of three parts that wait, with a successor."""
    app = fanin.App(terminal.url)

    @app.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    @app.task(name="sum")
    def total(parts: fanin.Joined[int]) -> int:
        return sum(parts)

    return app.map(double, [1, 2, 3], then=total, key="numbers", tolerate=1, fail_fast=False)


def test_a_job_is_paused_shown_as_paused_and_resumed(terminal: Terminal, job: fanin.Job) -> None:
    paused = terminal.json("pause", "numbers", "--reason", "prices are wrong", "--by", "kim")
    assert (paused["id"], paused["status"]) == (job.id, "running")
    assert paused["paused_at"] > 0
    assert b"running, paused" in terminal.run("show", "numbers").stdout
    again = terminal.run("pause", "numbers")
    assert f"job {job.id[:13]} was paused before; 3 parts are not done" in again.stderr.decode()
    assert b"goes on; 3 parts are not done" in terminal.run("resume", "numbers").stderr
    assert b"was not paused" in terminal.run("resume", "numbers").stderr
    assert terminal.json("resume", "numbers")["paused_at"] is None


def test_parts_are_skipped_and_the_last_one_ends_the_job(terminal: Terminal, job: fanin.Job) -> None:
    first = terminal.json("skip", "numbers", "0", "--result", "7", "--by", "kim")
    assert (first["succeeded"], first["ended"]) == (1, False)
    said = terminal.run("skip", "numbers", "1", "--failed", "--reason", "no such input").stderr.decode()
    assert "part 1 of job " in said
    assert "counts as failed; 1 parts are not done" in said
    assert (
        b"task sum, which follows it, gets its result, so say what that is"
        in terminal.run("skip", "numbers", "2", code=exits.USAGE).stderr
    )
    last = terminal.json("skip", "numbers", "2", "--result", "null")
    assert (last["status"], last["outcome"], last["ended"]) == ("completed", "with_failures", True)
    with fanin.App(terminal.url) as plain:  # as an int, the task could not have returned null
        assert list(plain.job(job.id).results()) == [7, None]
    (failure,) = job.failures()
    assert (failure.type, failure.message) == ("Skipped", "no such input")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["skip", "numbers", "3"], "has no part 3"),
        (["skip", "numbers", "-1"], "no index of a part"),
        (["skip", "numbers", "0", "--result", "{"], "is no JSON"),
        (["skip", "numbers", "0", "--result", "1", "--failed"], "choose"),
        (["pause", "nothing"], "there is no job"),
        (["explain", "numbers", "--part", "9"], "has no part 9"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    terminal: Terminal, job: fanin.Job, words: list[str], said: str
) -> None:
    done = terminal.run(*words, code=exits.USAGE)
    assert said in done.stderr.decode()
    assert job.progress().remaining == 3


def test_a_job_is_finished_with_what_has_arrived_and_its_successor_is_made(terminal: Terminal, job: fanin.Job) -> None:
    terminal.run("skip", "numbers", "0", "--result", "7")
    finished = terminal.json("finish", "numbers", "--reason", "good enough", "--by", "kim")
    assert (finished["status"], finished["outcome"], finished["reason"]) == ("completed", "partial", "good enough")
    assert job.successor is not None
    refused = terminal.run("finish", "numbers", code=exits.USAGE)
    assert b"had completed before" in refused.stderr
    assert b"only a job that has not ended" in terminal.run("pause", "numbers", code=exits.USAGE).stderr


def test_explain_tells_what_happened_in_the_order_of_time(terminal: Terminal, job: fanin.Job) -> None:
    terminal.run("pause", "numbers", "--reason", "prices are wrong", "--by", "kim")
    terminal.run("resume", "numbers", "--by", "lee")
    terminal.run("skip", "numbers", "1", "--failed", "--reason", "no such input", "--by", "kim")
    terminal.run("finish", "numbers", "--reason", "good enough", "--by", "kim")
    found = terminal.json("explain", "numbers")
    deeds = [line["what"] for line in found["timeline"] if line["what"] not in ("first", "failed")]
    assert deeds == ["created", "paused", "resumed", "skipped", "finished", "ended", "successor"]
    text = terminal.run("explain", "numbers").stdout.decode()
    assert "paused by kim: prices are wrong" in text
    assert "resumed by lee" in text
    assert "part 1 skipped by kim: no such input" in text
    assert "run 1 ended: completed, partial (1 failed, 2 abandoned): good enough; its event is waiting" in text
    assert "finished by kim: good enough" in text
    part = terminal.json("explain", "numbers", "--part", "1")
    assert [line["what"] for line in part["timeline"] if line.get("part") == 1] == ["failed", "ended", "skipped"]


def test_explain_tells_each_failure_before_the_end_that_it_caused(terminal: Terminal) -> None:
    with fanin.App(terminal.url) as app:

        @app.task(name="both", attempts=2, backoff=fanin.Backoff(first=0.01, jitter=0.0))
        def both(number: int) -> int:
            raise ValueError(str(number))

        found = app.map(both, range(8), key="both", fail_fast=False).wait("30s", run=True)
        story = found.explain().timeline
        told = [moment.what for moment in story]
        assert told.count("failed") == 8
        assert told[-1] == "ended"
        assert {"first", "last"} < set(told)
        assert max(moment.at for moment in story if moment.what in ("first", "last")) <= story[-1].at
        part = [moment.what for moment in found.explain(part=0).timeline]
        assert part == ["created", "retried", "failed", "ended", "ended"]
        assert found.explain(part=0).timeline[-1].run == 1
        assert found.redrive() == 2
        found.wait("30s", run=True)
        runs = [moment for moment in found.explain().timeline if moment.what in ("failed", "ended", "redriven")]
        assert [moment.what for moment in runs if moment.what != "failed"] == ["ended", "redriven", "ended"]
        assert runs[-1].what == "ended"
        assert runs.index(next(one for one in runs if one.what == "ended")) == 5


def test_explain_tells_what_ended_with_the_last_skip_before_the_end(terminal: Terminal, job: fanin.Job) -> None:
    for part in ("0", "1", "2"):
        terminal.run("skip", "numbers", part, "--failed", "--by", "kim")
    told = [line["what"] for line in terminal.json("explain", "numbers")["timeline"]]
    assert told[-2:] == ["skipped", "ended"]
    assert told.count("skipped") == 3


def test_a_failure_soon_after_an_end_belongs_to_the_next_run_if_one_was_asked_for() -> None:
    soon, late, redriven = (
        Moment(2.2, "failed", "", part=0, attempt=2), Moment(4.0, "failed", "", part=1, attempt=2),
        Moment(2.1, "redriven", "", run=2),
    )  # fmt: skip
    first, second = Moment(2.0, "ended", "", run=1), Moment(5.0, "ended", "", run=2)
    for one in ([first, soon, late, second], [first, redriven, soon, late, second]):
        told = sorted(one, key=_place(one))
        assert told == (one if redriven in one else [soon, first, late, second])
