"""``fanin flows`` and ``fanin saga``, as a person and as a program see them."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

import fanin
from fanin.cli import exits, main
from fanin.domain import identity
from tests.protocol import flows


@pytest.fixture
def run(app: fanin.App) -> fanin.FlowRun:
    """A flow of which the last step failed, and which a person has to set right."""

    @app.task(attempts=1)
    def book(what: str) -> str:
        if what == "hotel":
            raise fanin.Permanent("no room")
        return what

    @app.task
    def rows(what: str) -> list[int]:
        return [1, 2, 3]

    @app.task
    def double(number: int) -> int:
        return number * 2

    flow = app.flow("trip", key="2026")
    flight = flow.step(book, "flight", name="flight", undo=fanin.manual("call the airline"))
    listed = flow.step(rows, "seats", name="rows", after=flight)
    flow.map(double, listed, name="seats")
    flow.step(book, "hotel", name="hotel", after="seats")
    started = flow.start()
    app.run_worker(until_idle=True)
    assert started.status == "needs_attention"
    return started


def said(app: fanin.App, capsys: Any, *words: str, code: int = exits.OK) -> str:
    capsys.readouterr()
    assert main([*words, "--url", app.url]) == code
    found = capsys.readouterr()
    return str(found.out + found.err)


def test_flows_are_listed_and_drawn(app: fanin.App, run: fanin.FlowRun, capsys: Any) -> None:
    assert run.id[:13] in said(app, capsys, "flows")
    assert "no flows" in said(app, capsys, "flows", "--status", "running")
    drawn = said(app, capsys, "flows", "show", "2026")
    assert drawn == said(app, capsys, "show", "2026")
    lines = [line.strip() for line in drawn.splitlines()]
    assert lines[0] == f"flow {run.id[:13]} trip (2026): needs_attention, run 1"
    seats = run.job("seats").id[:13]
    assert lines[1].startswith("created 20")
    assert ", took " in lines[1]
    assert lines[2] == f"{run.row().reason}"
    assert "step 'hotel': job" in lines[2]
    assert f"├─ flight manual  job {run.job('flight').id[:13]}" in lines
    assert "│     to be undone by a person: call the airline" in lines
    assert f"├─ seats nothing_to_undo 3/3 ← rows  job {seats}" in lines
    assert lines[-3:] == [
        f"└─ hotel failed, nothing_to_undo ← seats  job {run.job('hotel').id[:13]}",
        "part 0 failed at attempt 1: Permanent: no room",
        "what to say about it: fanin saga",
    ]
    with pytest.raises(fanin.JobFailed, match=r"needs_attention: step 'hotel': .*Permanent: no room"):
        run.result()


def test_a_flow_is_drawn_for_mermaid_and_for_programs(app: fanin.App, run: fanin.FlowRun, capsys: Any) -> None:
    drawn = said(app, capsys, "flows", "show", run.id, "--mermaid")
    assert drawn == said(app, capsys, "show", run.id, "--mermaid")
    assert drawn.startswith("flowchart LR")
    assert "s1 --> s2" in drawn
    (listed,) = json.loads(said(app, capsys, "flows", "--json"))
    shown = json.loads(said(app, capsys, "flows", "show", run.id, "--json"))
    assert {**listed, "steps": shown["steps"]} == shown
    assert [step["name"] for step in shown["steps"]] == ["flight", "rows", "seats", "hotel"]
    assert shown["steps"][0]["manual"] == "call the airline"
    counts = [tuple(step[name] for name in ("job", "parts", "done", "failed")) for step in shown["steps"][2:]]
    assert counts == [(run.job("seats").id, 3, 3, 0), (run.job("hotel").id, 1, 1, 1)]
    assert [step["job_status"] for step in shown["steps"]] == ["completed", "completed", "completed", "failed"]
    assert 's3["hotel<br/>failed, nothing_to_undo"]' in drawn


@pytest.fixture
def mapped(app: fanin.App) -> fanin.Flow:
    """A flow whose second step maps over the first."""

    @app.task
    def rows(count: int) -> list[int]:
        return list(range(count))

    @app.task(name="shop.double")
    def double(number: int) -> int:
        return number * 2

    flow = app.flow("shop", key="möbel")
    flow.map(double, flow.step(rows, 3, name="rows"), name="zählen", quorum=5)
    return flow


def test_a_map_that_failed_says_why(app: fanin.App, mapped: fanin.Flow, capsys: Any) -> None:
    run = mapped.start()
    app.run_worker(until_idle=True)
    why = "quorum=5 of 3 parts can never be reached: give a smaller one"
    assert re.fullmatch(f"step 'zählen': job .* was refused: {why}", run.row().reason or "")
    with pytest.raises(fanin.JobFailed, match=f"failed: step 'zählen': job .* was refused: {why}"):
        run.result("zählen")
    drawn = said(app, capsys, "show", "möbel").splitlines()
    assert drawn[-2] == f"  └─ zählen failed ← rows  job {run.job('zählen').id[:13]}"
    assert re.fullmatch(f" {{8}}its parts could not be made: NestedFailed: job .* was refused: {why}", drawn[-1])


def test_a_map_whose_parts_failed_says_why(app: fanin.App, capsys: Any) -> None:
    @app.task(name="rows")
    def rows(count: int) -> list[int]:
        return list(range(count))

    @app.task(name="odd", attempts=1)
    def odd(number: int) -> int:
        if number % 2 == 0:
            raise ValueError(f"{number} is even")
        return number

    flow = app.flow("shop", key="möbel")
    flow.map(odd, flow.step(rows, 4, name="rows"), name="zählen", quorum=3)
    run = flow.start()
    app.run_worker(until_idle=True)
    reason = run.row().reason or ""
    assert reason.startswith(f"step 'zählen': job {run.job('zählen').id} failed (")
    assert "1 of 1 parts" not in reason
    drawn = said(app, capsys, "show", "möbel").splitlines()
    assert drawn[-2].startswith("  └─ zählen failed 4/4, 2 failed ← rows  job")
    assert drawn[-1] == "        part 0 failed at attempt 1: ValueError: 0 is even"


def test_the_built_in_job_of_a_map_is_called_by_what_it_is_for(app: fanin.App, mapped: fanin.Flow, capsys: Any) -> None:
    run = mapped.start()
    app.run_worker(until_idle=True)
    first = run.steps()[1].job_id
    assert first is not None
    listed = said(app, capsys, "jobs")
    assert re.search(rf"{first[:13]}  items of shop.double +failed", listed)
    assert "fanin.expand" not in listed
    shown = said(app, capsys, "show", first)
    assert "task       fanin.expand: items of shop.double   queue" in shown
    assert "part 0 (items of shop.double) failed at attempt 1" in shown
    assert {row["task"] for row in json.loads(said(app, capsys, "jobs", "--json"))} >= {"fanin.expand", "shop.double"}


def test_a_map_over_what_is_no_list_says_so(app: fanin.App, capsys: Any) -> None:
    @app.task(name="one")
    def one(text: str) -> Any:
        return text

    @app.task(name="each")
    def each(text: str) -> str:
        return text

    flow = app.flow("odd")
    flow.map(each, flow.step(one, "x"), name="each")
    run = flow.start()
    app.run_worker(until_idle=True)
    assert f"step 'each': its parts could not be made, see job {run.steps()[1].job_id}" == run.row().reason
    drawn = said(app, capsys, "show", run.id).splitlines()
    assert drawn[-1].startswith("        its parts could not be made: Permanent: job ")
    assert drawn[-1].endswith("did not return a list, so there is nothing to map over")


def test_a_drawn_flow_tells_what_is_paused_and_what_was_abandoned(app: fanin.App, capsys: Any) -> None:
    @app.task(name="load")
    def load(number: int) -> int:
        return number

    flow = app.flow("month", key="ma")
    flow.step(load, 2, name="after", after=flow.map(load, range(30), name="laden"), on="any")
    run = flow.start()
    job = run.job("laden")
    job.pause()
    job.skip(0, result=1)
    assert f"├─ laden running, paused 1/30  job {job.id[:13]}" in said(app, capsys, "show", "ma")
    job.finish()
    drawn = said(app, capsys, "show", "ma")
    assert f"├─ laden done 1/30, 29 abandoned  job {job.id[:13]}" in drawn
    step = json.loads(said(app, capsys, "show", "ma", "--json"))["steps"][0]
    assert (step["done"], step["succeeded"], step["abandoned"], step["paused_at"]) == (30, 1, 29, None)
    assert re.search(r"completed, partial +1/30 +0", said(app, capsys, "jobs"))


def test_an_undo_that_failed_says_why_and_names_the_job_to_look_at(app: fanin.App, capsys: Any) -> None:
    @app.task(name="book")
    def book(what: str) -> str:
        return what

    @app.task(name="unbook", attempts=1)
    def unbook(what: str) -> None:
        raise RuntimeError(f"cannot unbook {what}")

    @app.task(name="close", attempts=1)
    def close(what: str) -> None:
        raise fanin.Permanent("the ledger is locked")

    flow = app.flow("payroll", key="november")
    flow.step(close, "x", name="close", after=flow.step(book, "a room", name="book it", undo=unbook))
    run = flow.start()
    app.run_worker(until_idle=True)
    made = identity.nested_id(str(run.steps()[0].undo_job_id), 0)[:13]
    for words in (["show", "november"], ["saga"]):
        told = said(app, capsys, *words)
        assert "its undo failed: part 0 failed at attempt 1: RuntimeError: cannot unbook a room" in told
        assert f"look at it: fanin show {made}" in told
    commands = [line.partition(": ")[2] for line in told.splitlines() if ": fanin saga" in line]
    assert [shlex.split(one)[2:5] for one in commands] == [
        [verb, run.id[:13], "book it"] for verb in ("retry", "resolve", "abandon")
    ]
    assert "close failed, nothing_to_undo" in said(app, capsys, "show", "november")
    assert "task       unbook" in said(app, capsys, "show", made)


def test_the_story_of_a_flow_is_told_in_order(app: fanin.App, run: fanin.FlowRun, capsys: Any) -> None:
    lines = said(app, capsys, "explain", "2026").splitlines()
    assert lines[0] == f"flow {run.id} needs_attention, failed"
    told = [line.split("  ")[-1] for line in lines[1:]]
    jobs = {step.name: run.job(step.name).id[:13] for step in run.steps()}
    assert told[:2] == [
        "created: 4 steps of flow trip (2026)",
        f"step flight started: job {jobs['flight']} of {book(run)}",
    ]
    order = [told.index(f"step {name} ended: job {jobs[name]} completed") for name in ("flight", "rows", "seats")]
    assert order == sorted(order)
    assert f"step hotel ended: job {jobs['hotel']} failed: 1 of 1 parts failed, tolerated 0" in told
    assert told[-1].startswith("run 1 needs a person for step flight: step 'hotel': job")
    timeline = json.loads(said(app, capsys, "explain", "2026", "--json"))["timeline"]
    assert [line["what"] for line in timeline][:2] == ["created", "child"]


def book(run: fanin.FlowRun) -> str:
    return run.job("flight").row().task


def test_the_story_of_a_flow_says_why_a_step_was_skipped_or_undone(app: fanin.App, capsys: Any) -> None:
    @app.task(attempts=1)
    def work(text: str) -> str:
        if text == "bad":
            raise fanin.Permanent("no")
        return text

    @app.task
    def undo(text: str) -> None: ...

    flow = app.flow("story", fail_fast=False)
    good = flow.step(work, "good", name="good", undo=undo)
    flow.step(work, "never", name="never", after=good, on="failed")
    flow.step(work, "x", name="behind", after=flow.step(work, "bad", name="bad", after=good))
    run = flow.start()
    app.run_worker(until_idle=True)
    told = [line.text for line in run.explain().timeline]
    assert "step never was skipped: it starts if failed, and good was done" in told
    assert "step behind was skipped: it starts if ok, and bad has failed" in told
    assert any(line.startswith("the undo of step good ended: job") for line in told)
    assert told[-1].startswith("run 1 ended: compensated")
    stopped = app.flow("stopped")
    stopped.step(work, "y", name="second", after=stopped.step(work, "x", name="first"))
    cancelled = stopped.start()
    cancelled.cancel("enough")
    app.run_worker(until_idle=True)
    assert [line.text for line in cancelled.explain().timeline][
        -1
    ] == "run 1 ended: cancelled (1 failed, 1 skipped): enough; its event is waiting"


@pytest.mark.parametrize("words", [["cancel"], ["show", "--part", "0"], ["explain", "--part", "0"]])
def test_a_flow_is_no_job(app: fanin.App, run: fanin.FlowRun, capsys: Any, words: list[str]) -> None:
    hint = "'2026' is a flow, and a job is meant: `fanin show 2026` names the jobs of its steps"
    assert hint in said(app, capsys, *words, "2026", code=exits.USAGE)
    job = run.job("seats").id
    assert "is a job, and flows alone are drawn so" in said(app, capsys, "show", job, "--mermaid", code=exits.USAGE)


def test_the_steps_behind_one_that_a_person_undoes_are_named(app: fanin.App, capsys: Any) -> None:
    flow_id = flows.start(app.store, {"a": "", "b": "a", "c": "b", "d": "c"}, undo=["a", "b"], manual=["c"])
    for name in "abc":
        flows.end(app.store, flow_id, name)
    flows.fail(app.store, flow_id, "d")
    assert "  still to be undone behind it: b, a\n" in said(app, capsys, "saga")


def test_the_commands_that_are_shown_can_be_pasted(
    app: fanin.App, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="t", attempts=1)
    def work(text: str) -> str:
        if text == "bad":
            raise fanin.Permanent("no")
        return text

    flow = app.flow("l'été", key="a key; with $odd 'signs'")
    text = "ruf 'die Bank' an\nund schreib [bold]ihr[/]"
    first = flow.step(work, "x", name="größe 1 'x'", undo=fanin.manual(text))
    flow.step(work, "bad", name="bad", after=first)
    run = flow.start()
    app.run_worker(until_idle=True)
    for words in (["saga"], ["show", run.id]):
        shown = said(app, capsys, *words)
        assert re.search(r"( +)(.{2}step .*|.)?to be undone by a person: ruf 'die Bank' an\n", shown)
        assert re.search(r"\n[ │]{4,}und schreib \[bold\]ihr\[/\]\n", shown)
    monkeypatch.setenv("COLUMNS", "40")  # a command that was broken into lines could not be pasted
    commands = [line.partition(": ")[2] for line in said(app, capsys, "saga").splitlines() if ": fanin saga" in line]
    assert [shlex.split(one)[:5] for one in commands] == [
        ["fanin", "saga", verb, run.id[:13], "größe 1 'x'"] for verb in ("resolve", "abandon")
    ]
    with pytest.raises(fanin.UnknownJob) as refused:
        app.job("a key; with $odd 'signs'")
    hint = str(refused.value).split("`")[1]
    assert shlex.split(hint) == ["fanin", "show", "a key; with $odd 'signs'"]
    assert "und schreib" in said(app, capsys, *shlex.split(hint)[1:])
    assert "is compensated" in said(app, capsys, *shlex.split(commands[0])[1:])
    assert run.steps()[0].note == "what was done"


def test_a_name_that_a_job_and_a_flow_have_is_said_to_have_two_meanings(app: fanin.App, capsys: Any) -> None:
    @app.task(name="t")
    def work(number: int) -> int:
        return number

    flow = app.flow("both", key="both")
    flow.step(work, 1)
    run = flow.start()
    job = app.map(work, [1, 2], key="both")
    for verb in ("show", "explain"):
        told = said(app, capsys, verb, "both")
        assert job.id in told
        assert f"this is the job; the flow: fanin flows show {run.id[:13]}" in told
    assert f"flow {run.id[:13]}" in said(app, capsys, "flows", "show", run.id[:13])
    assert "are called so" not in said(app, capsys, "show", job.id)


def test_a_redrive_of_what_went_well_names_the_job_behind_it_that_failed(app: fanin.App, capsys: Any) -> None:
    @app.task(name="t")
    def work(number: int) -> int:
        return number

    @app.task(name="total", attempts=1)
    def total(parts: fanin.Joined[int]) -> int:
        raise ValueError("no")

    job = app.map(work, [1], then=total)
    app.run_worker(until_idle=True)
    assert job.successor is not None
    told = said(app, capsys, "redrive", job.id)
    assert "nothing to redrive" in told
    assert f"a job that followed it has failed: fanin redrive {job.successor.id[:13]}" in told
    assert "run 2 has begun" in said(app, capsys, "redrive", job.successor.id[:13])


def test_a_job_without_parts_has_no_bar_and_one_that_grows_says_so(app: fanin.App, capsys: Any) -> None:
    @app.task(name="t")
    def work(number: int) -> int:
        return number

    shown = said(app, capsys, "show", app.map(work, []).id)
    assert "parts      none\n" in shown
    assert "may grow to 9 parts" in said(app, capsys, "explain", app.map(work, [1], grows=9).id)


def test_a_person_settles_what_waits_for_one(app: fanin.App, run: fanin.FlowRun, capsys: Any) -> None:
    told = said(app, capsys, "saga")
    assert "step flight: to be undone by a person: call the airline" in told
    assert " flight --note 'what was done'" in told
    assert "still to be undone" not in told
    (waiting,) = json.loads(said(app, capsys, "saga", "--json"))
    assert [step["name"] for step in waiting["steps"]] == ["flight"]
    assert "was settled" not in said(app, capsys, "saga", "resolve", "2026", "hotel", "--note", "x", code=exits.USAGE)
    assert "is compensated" in said(app, capsys, "saga", "resolve", "2026", "flight", "--note", "called them")
    assert "no flow waits for a person" in said(app, capsys, "saga")
    assert run.steps()[0].note == "called them"
    said(app, capsys, "saga", "retry", "2026", "flight", code=exits.USAGE)
    said(app, capsys, "flows", "redrive", "2026", code=exits.USAGE)


def test_a_person_gives_up_what_waits_for_one(app: fanin.App, run: fanin.FlowRun, capsys: Any) -> None:
    said(app, capsys, "saga", "abandon", "2026", "flight", code=exits.USAGE)  # a note says why
    said(app, capsys, "saga", "abandon", "2026", "hotel", "--note", "x", code=exits.USAGE)
    told = said(app, capsys, "saga", "abandon", "2026", "flight", "--note", "the airline is bankrupt")
    assert "step flight of flow" in told
    assert "stays as it is; the flow is compensated" in told
    assert "flight not_undone" in said(app, capsys, "flows", "show", "2026")
    assert "note: the airline is bankrupt" in said(app, capsys, "flows", "show", "2026")
    assert "no flow waits for a person" in said(app, capsys, "saga")


def test_a_flow_is_stopped_and_run_again(app: fanin.App, capsys: Any) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    flow = app.flow("plain")
    flow.map(work, [1, 2], name="work")
    started = flow.start()
    assert "stopped" in said(app, capsys, "flows", "cancel", started.id, "--reason", "not now")
    assert (started.status, started.row().reason) == ("cancelled", "not now")
    said(app, capsys, "flows", "cancel", started.id, code=exits.USAGE)
    assert json.loads(said(app, capsys, "flows", "redrive", started.id, "--json"))["run"] == 2
    app.run_worker(until_idle=True)
    assert list(started.result()) == [1, 2]


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["flows", "draw"], "there are list, show"),
        (["flows", "show"], "name the flow"),
        (["flows", "list", "x"], "takes no name"),
        (["flows", "--limit", "0"], "give 1 to"),
        (["flows", "show", "nowhere"], "names no flow"),
        (["flows", "--status", "odd"], "--status 'odd': there are running, ending"),
        (["saga", "retry", "x"], "name the step"),
    ],
)
def test_wrong_words_are_explained(app: fanin.App, capsys: Any, words: list[str], wrong: str) -> None:
    assert wrong in said(app, capsys, *words, code=exits.USAGE)
