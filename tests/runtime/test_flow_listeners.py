"""Tasks that listen to the ends of flows."""

from __future__ import annotations

from typing import Any

import pytest

import fanin
from fanin.testing.invariants import violations


def work(app: fanin.App) -> None:
    app.run_worker(until_idle=True)
    assert violations(app.store) == []


def test_a_listener_hears_each_flow_of_its_application_once(app: fanin.App) -> None:
    heard: list[tuple[str, str, dict[str, int]]] = []

    @app.task(attempts=1)
    def number(n: int) -> int:
        if n < 0:
            raise fanin.Permanent("no")
        return n

    def plan(n: int, name: str) -> fanin.FlowRun:
        flow = app.flow(name)
        flow.step(number, 1, name="first", undo=fanin.manual("call"))
        flow.step(number, n, name="second", after="first")
        return flow.start()

    before = plan(1, "before")

    @app.on("flow.finished")
    def told(event: fanin.FlowFinished) -> None:
        heard.append((event.name, event.status, event.steps))
        if event.name == "good":
            plan(1, "of a listener")

    @app.on("flow.needs_attention")
    def asked(event: fanin.FlowFinished) -> None:
        heard.append((event.name, event.status, event.notable))  # type: ignore[arg-type]

    @app.on("job.finished")
    def ended(event: fanin.JobFinished) -> None:
        raise AssertionError("the jobs of steps are not submitted one by one")

    plan(1, "good")
    bad = plan(-1, "bad")
    work(app)
    assert before.status == "completed"
    assert sorted(heard, key=lambda one: one[0]) == [
        ("bad", "needs_attention", {"first": "manual"}), ("good", "completed", {"done": 2}),
    ]  # fmt: skip
    bad.abandon_undo("first", "nobody answers")
    work(app)
    assert heard[-1] == ("bad", "compensated", {"not_undone": 1, "nothing_to_undo": 1})
    assert bad.steps()[0].note == "nobody answers"
    with pytest.raises(fanin.BadOption, match="note"):
        bad.abandon_undo("first", " ")


def test_a_listener_to_flows_says_so_in_its_annotation_and_hears_all(app: fanin.App) -> None:
    @app.task
    def one() -> int:
        return 1

    with pytest.raises(fanin.BadPayload):

        @app.on("flow.finished")
        def wrong(event: fanin.JobFinished) -> None: ...

    with pytest.raises(fanin.BadOption, match="hears all flows"):
        app.on("flow.finished", of=one)
    with pytest.raises(fanin.BadOption, match=r"flow\.needs_attention"):
        app.on("flow.started")

    async def twin() -> Any:
        return fanin.AsyncApp(app.url).on("flow.finished")

    assert callable(app.on("flow.finished"))
