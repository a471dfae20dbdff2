"""Kind O, sagas: what was done is undone, in the reverse order, and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

import fanin
from fanin.domain.states import FLOW_LIVE
from fanin.protocol import effect
from fanin.runtime import upkeep
from fanin.stores.base import Store
from fanin.testing.inline import Inline
from tests.protocol import flows
from tests.protocol.effects import begin, intent, said
from tests.protocol.helpers import (
    claim,
    done,
    events,
    failed,
    say,
    settle,
    snapshot,
)


@pytest.fixture
def in_hand(app: fanin.App) -> Iterator[Callable[[], Inline]]:
    """The parts of the application in the hands of the test, once its tasks are declared."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Inline(app)))


def everything(store: Store) -> dict[str, list[Any]]:
    """All rows, to see that none was written."""
    tables = ("flow", "flow_step")
    return snapshot(store) | {t: sorted(say(store, f"SELECT * FROM fanin.{t}"), key=repr) for t in tables}


CHAIN = {"s1": "", "s2": "s1", "s3": "s2", "s4": "s3", "s5": "s4"}


def undone_in_order(store: Store, flow_id: str, *names: str) -> None:
    """What is undone now, one after the other."""
    for name in names:
        assert [n for n, status in flows.states(store, flow_id).items() if status == "undoing"] == [name]
        flows.undo(store, flow_id, name)


def settle_by_a_person(store: Store, flow_id: str, call: effect.Call) -> None:
    """Nobody can say that a step is undone while it is not known what was done in it."""
    for standing in ("calling", "unknown"):
        with pytest.raises(fanin.NotAllowedNow, match=f"not undone yet: effect .*/0/mail is {standing}"):
            flows.resolve(store, flow_id, "s4")
        say(store, "UPDATE fanin.effect SET due_at = 0")
        store.run(lambda: effect.expire(0))
    store.run(lambda: effect.by_hand(0, call.where, True, None, "asked them"))


@pytest.mark.parametrize("variant", ["failed", "effect done", "effect unknown", "a step skipped"])
def test_F102_a_saga_is_undone_in_reverse_and_only_what_was_done(store: Store, variant: str) -> None:
    skipped = {"s3": "failed"} if variant == "a step skipped" else {}
    steps = {**CHAIN, "s4": "s2"} if skipped else CHAIN
    flow_id = flows.start(store, steps, undo=list(steps), conditions=skipped)
    for name in ("s1", "s2", "s3"):
        if name not in skipped:
            flows.end(store, flow_id, name)
    if variant.startswith("effect"):
        held = flows.held(store, flow_id, "s4")
        call = begin(store, held, intent(mode="at_most_once" if variant == "effect unknown" else "idempotent"))
        if variant == "effect done":
            said(store, call, "mark")
        settle(store, failed(held))
        # step 4 left something behind, so it is looked at before the others: what its part did has no result
        assert flows.states(store, flow_id)["s4"] == "undoing"
        flows.end(store, flow_id, "s4", done if variant == "effect done" else failed, undo=True)
        assert flows.row(store, flow_id).status == "needs_attention"
        assert flows.states(store, flow_id)["s4"] == "undo_failed"
        if variant == "effect unknown":
            settle_by_a_person(store, flow_id, call)
        flows.resolve(store, flow_id, "s4")
    else:
        flows.fail(store, flow_id, "s4")
        assert flows.states(store, flow_id)["s4"] == "nothing_to_undo"
    undone_in_order(store, flow_id, *[name for name in ("s3", "s2", "s1") if name not in skipped])
    assert flows.row(store, flow_id).status == "compensated"
    assert flows.states(store, flow_id)["s5"] == "skipped"
    if skipped:
        assert flows.states(store, flow_id)["s3"] == "skipped"
    undos = say(store, "SELECT count(*) FROM fanin.flow_step WHERE undo_job_id IS NOT NULL")
    assert undos == [(len(steps) - 1 - len(skipped) - (not variant.startswith("effect")),)]


class Bank:
    """A service outside, that does what it is asked once for each key."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.done: list[str] = []

    def __call__(self, what: str) -> None:
        key = f"{fanin.current().idempotency_key} {what}"
        self.calls.append(key)
        if key not in self.done:
            self.done.append(key)


@pytest.mark.parametrize("how", ["after the effect", "in the commit", "fails twice"])
def test_F103_a_worker_dies_while_it_undoes(app: fanin.App, in_hand: Callable[[], Inline], how: str) -> None:
    bank = Bank()

    @app.task(attempts=1)
    def pay(step: str) -> str:
        if step == "third":
            raise fanin.Permanent("refused")
        return step

    @app.task(attempts=4, backoff=0)
    def back(step: str) -> None:
        bank(f"back {step}")
        if step == "second" and how == "fails twice" and fanin.current().attempt < 3:
            raise ConnectionError("again")

    plan = app.flow("saga")
    first = plan.step(pay, "first", name="first", undo=back)
    second = plan.step(pay, "second", name="second", after=first, undo=back)
    plan.step(pay, "third", name="third", after=second, undo=back)
    run = plan.start()
    inline, died = in_hand(), False
    while not run.row().ended:
        attempt = inline.claim()
        assert attempt is not None
        attempt.run()
        undoing = bool(bank.calls) and attempt._claim.task == back.name
        if undoing and not died and how != "fails twice":
            died = True
            if how == "after the effect":
                inline.lose(attempt)  # and nothing was reported
                continue
            attempt.commit()  # the commit was made, its answer lost: said again
            assert attempt.commit().value == "replay"
            continue
        attempt.commit()
    assert run.status == "compensated"
    assert [line.rpartition(" ")[2] for line in bank.done] == ["second", "first"], "once each, in the reverse order"
    assert len(bank.calls) == {"after the effect": 3, "in the commit": 2, "fails twice": 4}[how]
    assert [event["status"] for event in events(app.store, run.id)] == ["compensated"]


def test_F105_a_flow_that_fails_at_its_first_step_is_over_and_stays_so(store: Store) -> None:
    flow_id = flows.start(store, CHAIN, undo=list(CHAIN))
    flows.fail(store, flow_id, "s1")
    assert flows.row(store, flow_id).status not in FLOW_LIVE
    assert [event["status"] for event in events(store, flow_id)] == ["compensated"]
    assert flows.states(store, flow_id) == {"s1": "nothing_to_undo"} | dict.fromkeys(list(CHAIN)[1:], "skipped")
    before = everything(store)
    for _ in range(100):
        assert not upkeep.once(store, 0)
    assert claim(store) == []
    assert everything(store) == before
