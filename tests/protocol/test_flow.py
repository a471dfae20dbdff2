"""Flows: what starts, what is skipped, how it ends, and what every guard refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanin.domain.errors import BadOption, KeyConflict, NotAllowedNow, UnknownJob
from fanin.protocol import advance, close, deeds, effect, finish, flow, redrive
from fanin.stores.base import Store
from fanin.testing.cuts import statements
from tests.protocol.effects import begin, called, intent, said, wanting
from tests.protocol.effects import states as effects_of
from tests.protocol.flows import (
    again,
    cancel,
    cancel_left,
    end,
    fail,
    held,
    job_of,
    plan,
    resolve,
    row,
    start,
    states,
    undo,
    undo_again,
)
from tests.protocol.helpers import Clock, done, failed, say, settle, sweep_all
from tests.support.figures import record

CHAIN = {"a": "", "b": "a", "c": "b"}
DIAMOND = {"top": "", "left": "top", "right": "top", "bottom": "left right"}


def events(store: Store, flow_id: str) -> list[dict[str, Any]]:
    texts = say(store, "SELECT payload FROM fanin.outbox WHERE job_id = :id ORDER BY seq", id=flow_id)
    return [json.loads(text) for (text,) in texts]


def test_a_step_starts_when_the_last_one_before_it_has_ended(store: Store) -> None:
    flow_id = start(store, DIAMOND)
    end(store, flow_id, "top")
    end(store, flow_id, "right")
    assert states(store, flow_id)["bottom"] == "waiting"
    end(store, flow_id, "left")
    assert states(store, flow_id)["bottom"] == "running"
    end(store, flow_id, "bottom")
    assert (row(store, flow_id).status, row(store, flow_id).running) == ("completed", 0)
    (event,) = events(store, flow_id)
    assert (event["status"], event["steps"], event["notable"]) == ("completed", {"done": 4}, {})


def test_both_last_steps_in_one_batch_start_what_follows_once(store: Store) -> None:
    flow_id = start(store, {"a": "", "b": "", "c": "a b"})
    one = held(store, flow_id, "a")
    settle(store, done(one), done(held(store, flow_id, "b")))
    assert states(store, flow_id) == {"a": "done", "b": "done", "c": "running"}


def test_two_callers_with_one_key_make_one_flow(store: Store) -> None:
    new = plan(CHAIN, key="k")
    assert store.run(lambda: flow.create(new))
    assert not store.run(lambda: flow.create(new))
    other = plan(CHAIN, key="k")
    with pytest.raises(KeyConflict, match="'k'"):
        store.run(lambda: flow.create(_hashed(other)))
    assert len(say(store, "SELECT id FROM fanin.job")) == 1


def _hashed(new: flow.NewFlow) -> flow.NewFlow:
    return flow.NewFlow(new.id, 0, new.name, new.key, "another", new.steps, new.jobs)


def test_the_deadline_stops_a_flow_unless_it_was_moved(store: Store, clock: Clock) -> None:
    flow_id = start(store, CHAIN, give_up_after=5.0)
    assert store.read(lambda: flow.overdue(0)) == []
    assert not store.run(lambda: flow.give_up(0, flow_id))
    clock.advance(6)
    assert store.read(lambda: flow.overdue(0)) == [flow_id]
    say(store, "UPDATE fanin.flow SET give_up_at = give_up_at + 100")
    assert not store.run(lambda: flow.give_up(0, flow_id))
    clock.advance(100)
    assert store.run(lambda: flow.give_up(0, flow_id))
    assert not store.run(lambda: flow.give_up(0, flow_id))
    assert states(store, flow_id) == {"a": "running", "b": "skipped", "c": "skipped"}
    cancel_left(store)
    assert (row(store, flow_id).status, row(store, flow_id).cause) == ("failed", "gave_up")


def test_what_is_done_stays_where_a_flow_proceeds_at_its_deadline(store: Store, clock: Clock) -> None:
    flow_id = start(store, CHAIN, give_up_after=5.0, give_up_policy="proceed", undo=["a"])
    end(store, flow_id, "a")
    clock.advance(6)
    assert store.run(lambda: flow.give_up(0, flow_id))
    cancel_left(store)
    assert row(store, flow_id).status == "completed"
    assert states(store, flow_id) == {"a": "done", "b": "failed", "c": "skipped"}


def test_a_stopped_flow_starts_nothing_and_is_not_stopped_again(store: Store) -> None:
    flow_id = start(store, CHAIN)
    one = held(store, flow_id, "a")
    assert store.run(lambda: flow.cancel(0, flow_id, deeds.deed("kim", "enough")))
    assert not store.run(lambda: flow.cancel(0, flow_id, deeds.deed("kim", "again")))
    settle(store, done(one))  # it came first: its job has not been cancelled yet
    assert states(store, flow_id) == {"a": "done", "b": "skipped", "c": "skipped"}
    assert (row(store, flow_id).status, row(store, flow_id).reason) == ("cancelled", "enough")
    assert not store.run(lambda: flow.cancel(0, flow_id, deeds.deed("kim", "late")))


def test_who_comes_late_to_end_a_stopped_flow_leaves_its_next_run_alone(store: Store) -> None:
    flow_id = start(store, CHAIN)
    store.run(lambda: flow.cancel(0, flow_id))
    (job_id,) = store.read(lambda: flow.left_running(0))
    assert store.run(lambda: flow.end_running(0, job_id))
    assert not store.run(lambda: flow.end_running(0, job_id))
    assert again(store, flow_id) == 2
    assert not store.run(lambda: flow.end_running(0, job_id))
    assert states(store, flow_id) == {"a": "running", "b": "waiting", "c": "waiting"}


def test_what_is_said_of_no_flow_or_in_no_words_is_refused(store: Store) -> None:
    nowhere = "01980000-0000-7000-8000-0000000000ff"
    for ask in (
        lambda: flow.cancel(0, nowhere),
        lambda: flow.run_again(0, nowhere, 1),
        lambda: flow.resolve(0, nowhere, "a", "undone", deeds.deed()),
    ):
        with pytest.raises(UnknownJob):
            store.run(ask)
    assert store.read(lambda: flow.row(0, nowhere)) is None
    flow_id = start(store, CHAIN)
    with pytest.raises(BadOption, match="undone"):
        store.run(lambda: flow.resolve(0, flow_id, "a", "done", deeds.deed()))


def test_undoing_goes_back_in_the_order_of_the_ends(store: Store) -> None:
    flow_id = start(store, DIAMOND, undo=["top", "left", "right", "bottom"])
    end(store, flow_id, "top")
    end(store, flow_id, "right")
    end(store, flow_id, "left")
    fail(store, flow_id, "bottom")
    assert states(store, flow_id) == {
        "top": "done", "left": "undoing", "right": "done", "bottom": "nothing_to_undo",
    }  # fmt: skip
    undo(store, flow_id, "left")
    undo(store, flow_id, "right")
    assert row(store, flow_id).status == "compensating"
    undo(store, flow_id, "top")
    assert row(store, flow_id).status == "compensated"
    with pytest.raises(NotAllowedNow, match="compensated"):
        again(store, flow_id)


def by_a_person(store: Store) -> str:
    """A chain whose last step failed, and whose middle one a person undoes. The first one waits for that."""
    flow_id = start(store, CHAIN, undo=["a"], manual=["b"])
    end(store, flow_id, "a")
    end(store, flow_id, "b")
    fail(store, flow_id, "c")
    assert states(store, flow_id) == {"a": "done", "b": "manual", "c": "nothing_to_undo"}
    return flow_id


def needing_attention(store: Store) -> str:
    """The same one, whose middle step a person has undone, and whose first one could not be undone."""
    flow_id = by_a_person(store)
    resolve(store, flow_id, "b")
    fail(store, flow_id, "a", undo=True)
    assert states(store, flow_id) == {"a": "undo_failed", "b": "undone", "c": "nothing_to_undo"}
    return flow_id


def test_a_person_settles_what_could_not_be_undone(store: Store) -> None:
    flow_id = by_a_person(store)
    assert row(store, flow_id).status == "needs_attention"
    with pytest.raises(NotAllowedNow, match="not one that a person"):
        resolve(store, flow_id, "a")
    with pytest.raises(NotAllowedNow, match="not one that a person"):
        resolve(store, flow_id, "c")
    with pytest.raises(NotAllowedNow, match="not one whose undo"):
        undo_again(store, flow_id, "b")
    resolve(store, flow_id, "b")
    assert states(store, flow_id) == {"a": "undoing", "b": "undone", "c": "nothing_to_undo"}
    with pytest.raises(NotAllowedNow, match="nothing of it waits"):
        resolve(store, flow_id, "b")
    fail(store, flow_id, "a", undo=True)
    with pytest.raises(NotAllowedNow, match="not one that a person"):
        resolve(store, flow_id, "b")
    undo_again(store, flow_id, "a")
    with pytest.raises(NotAllowedNow):
        undo_again(store, flow_id, "a")
    with pytest.raises(NotAllowedNow, match="nothing of it waits"):
        resolve(store, flow_id, "a")
    undo(store, flow_id, "a")
    assert row(store, flow_id).status == "compensated"
    assert [event["status"] for event in events(store, flow_id)] == [
        "needs_attention", "needs_attention", "compensated",
    ]  # fmt: skip


def test_a_step_that_was_resolved_meanwhile_is_not_undone_again(store: Store) -> None:
    flow_id = needing_attention(store)
    found = job_of(store, flow_id, "a", undo=True)
    resolve(store, flow_id, "a", "nothing_to_undo")
    with pytest.raises(NotAllowedNow):
        undo_again(store, flow_id, "a")
    assert say(store, "SELECT run FROM fanin.job WHERE id = :id", id=found) == [(1,)]


def test_a_job_of_a_flow_is_run_again_by_its_flow_alone(store: Store) -> None:
    flow_id = start(store, CHAIN)
    fail(store, flow_id, "a")
    job_id = job_of(store, flow_id, "a")
    with pytest.raises(NotAllowedNow, match="redrive flow"):
        store.run(lambda: redrive.redrive(0, job_id, 1, 1))
    assert again(store, flow_id) == 2
    assert again(store, flow_id) == 2
    assert states(store, flow_id) == {"a": "running", "b": "waiting", "c": "waiting"}
    with pytest.raises(NotAllowedNow, match="running"):
        again(store, flow_id, run=2)


def test_one_who_saw_an_earlier_run_opens_none_and_touches_no_job(store: Store) -> None:
    flow_id = start(store, CHAIN)
    fail(store, flow_id, "a")
    assert again(store, flow_id) == 2
    fail(store, flow_id, "a")
    assert again(store, flow_id, run=1) == 2
    assert row(store, flow_id).status == "failed"
    job_id = job_of(store, flow_id, "a")
    assert say(store, "SELECT run, status FROM fanin.job WHERE id = :id", id=job_id) == [(2, "failed")]


def test_a_cancelled_flow_goes_on_with_all_that_it_lacks(store: Store) -> None:
    flow_id = start(store, DIAMOND)
    end(store, flow_id, "top")
    end(store, flow_id, "left")
    cancel(store, flow_id)
    assert states(store, flow_id) == {"top": "done", "left": "done", "right": "failed", "bottom": "skipped"}
    sweep_all(store)
    assert again(store, flow_id) == 2
    end(store, flow_id, "right")
    end(store, flow_id, "bottom")
    assert row(store, flow_id).status == "completed"


def test_a_flow_that_was_stopped_between_two_steps_goes_on_with_the_next(store: Store) -> None:
    flow_id = start(store, CHAIN)
    one = held(store, flow_id, "a")
    store.run(lambda: flow.cancel(0, flow_id))
    settle(store, done(one))
    assert states(store, flow_id) == {"a": "done", "b": "skipped", "c": "skipped"}
    assert again(store, flow_id) == 2
    assert states(store, flow_id) == {"a": "done", "b": "running", "c": "waiting"}


def test_a_flow_that_was_stopped_in_its_last_step_completes_in_its_next_run(store: Store) -> None:
    flow_id = start(store, {"a": ""})
    one = held(store, flow_id, "a")
    store.run(lambda: flow.cancel(0, flow_id))
    settle(store, done(one))
    assert (row(store, flow_id).status, states(store, flow_id)) == ("cancelled", {"a": "done"})
    assert again(store, flow_id) == 2
    assert row(store, flow_id).status == "completed"
    assert [event["status"] for event in events(store, flow_id)] == ["cancelled", "completed"]


def test_what_nobody_has_called_is_cancelled_and_what_was_done_is_reversed(store: Store) -> None:
    flow_id = start(store, CHAIN, undo=["a", "b"])
    settle(store, wanting(held(store, flow_id, "a"), intent("mail")))
    (call,) = called(store, "mail")
    said(store, call, "mark")
    settle(store, wanting(held(store, flow_id, "b"), intent("sms")))
    jobs = job_of(store, flow_id, "a"), job_of(store, flow_id, "b")
    fail(store, flow_id, "c")
    assert effects_of(store, jobs[1]) == {"sms": "cancelled"}
    undo(store, flow_id, "b")
    undo(store, flow_id, "a")
    assert effects_of(store, jobs[0]) == {"mail": "reversed"}
    assert row(store, flow_id).status == "compensated"


def test_an_effect_that_may_have_been_done_is_no_nothing(store: Store) -> None:
    """One that was called, and waits to be called again, is undone although no part has succeeded."""
    flow_id = start(store, {"a": "", "b": "a"}, undo=["a"])
    settle(store, wanting(held(store, flow_id, "a"), intent("mail")))
    (call,) = called(store, "mail")
    said(store, call, "refuse", doubtful=True)
    job_id = job_of(store, flow_id, "a")
    fail(store, flow_id, "b")
    assert effects_of(store, job_id) == {"mail": "registered"}
    assert store.read(lambda: advance.unsettled(0, job_id)) == (f"effect {job_id}/0/mail", "registered")


def test_what_a_failed_part_has_done_waits_for_a_person(store: Store) -> None:
    flow_id = start(store, {"a": ""}, undo=["a"])
    one = held(store, flow_id, "a")
    said(store, begin(store, one, intent("mail")), "mark")
    settle(store, failed(one))
    job_id = job_of(store, flow_id, "a")
    undo(store, flow_id, "a")
    assert (row(store, flow_id).status, states(store, flow_id)) == ("needs_attention", {"a": "undo_failed"})
    assert "did not succeed" in note_of(store, flow_id, "a")
    assert effects_of(store, job_id) == {"mail": "done"}
    with pytest.raises(NotAllowedNow, match="by hand"):
        undo_again(store, flow_id, "a")
    resolve(store, flow_id, "a")
    assert effects_of(store, job_id) == {"mail": "reversed"}
    assert row(store, flow_id).status == "compensated"


def test_what_a_step_did_not_do_is_not_called_for_anybody_once_it_is_undone(store: Store) -> None:
    flow_id = start(store, {"a": "", "b": "a"}, undo=["a"])
    one = held(store, flow_id, "a")
    said(store, begin(store, one, intent("mail")), "refuse", final=True)
    settle(store, done(one))
    job_id = job_of(store, flow_id, "a")
    fail(store, flow_id, "b")
    assert effects_of(store, job_id) == {"mail": "cancelled"}
    assert store.run(lambda: effect.retry(0, [(job_id, 0, "mail")], 3)) == []
    undo(store, flow_id, "a")
    assert row(store, flow_id).status == "compensated"


def test_what_was_asked_for_again_while_it_was_undone_is_for_a_person(store: Store) -> None:
    """It was in doubt when the undoing began, has failed for good since, and somebody has it called once more."""
    flow_id = start(store, {"a": "", "b": "a"}, undo=["a"])
    settle(store, wanting(held(store, flow_id, "a"), intent("mail")))
    (call,) = called(store, "mail")
    said(store, call, "refuse", doubtful=True)
    fail(store, flow_id, "b")
    (call,) = called(store, "mail")
    said(store, call, "refuse", final=True)
    assert store.run(lambda: effect.retry(0, [call.where], 3)) == [call.where]
    (again_called,) = called(store, "mail")
    undo(store, flow_id, "a")
    assert (row(store, flow_id).status, states(store, flow_id)["a"]) == ("needs_attention", "undo_failed")
    assert "asked for again and is calling" in note_of(store, flow_id, "a")
    with pytest.raises(NotAllowedNow, match=f"effect {call.key} is calling"):
        resolve(store, flow_id, "a")
    said(store, again_called, "mark")
    resolve(store, flow_id, "a")
    assert effects_of(store, call.job_id) == {"mail": "reversed"}
    assert row(store, flow_id).status == "compensated"


@pytest.mark.parametrize("happened", [True, False])
def test_a_person_has_undone_a_step_when_it_is_known_what_it_did(store: Store, happened: bool) -> None:
    flow_id = start(store, {"a": "", "b": "a"}, undo=["a"])
    one = held(store, flow_id, "a")
    said(store, call := begin(store, one, intent("mail", "at_most_once")), "refuse", doubtful=True)
    settle(store, done(one))
    fail(store, flow_id, "b")
    fail(store, flow_id, "a", undo=True)
    with pytest.raises(NotAllowedNow, match=f"effect {call.key} is unknown"):
        resolve(store, flow_id, "a")
    assert states(store, flow_id)["a"] == "undo_failed"
    store.run(lambda: effect.by_hand(0, call.where, happened, None, "asked"))
    resolve(store, flow_id, "a")
    assert effects_of(store, call.job_id) == {"mail": "reversed" if happened else "cancelled"}
    assert row(store, flow_id).status == "compensated"


def test_a_part_that_has_not_been_swept_may_still_do_something(store: Store) -> None:
    flow_id = start(store, {"a": ""}, undo=["a"])
    held(store, flow_id, "a")
    job_id = job_of(store, flow_id, "a")
    store.run(lambda: flow.cancel(0, flow_id))
    store.run(lambda: close.cancel(0, job_id))
    assert states(store, flow_id) == {"a": "undoing"}
    assert store.read(lambda: advance.unsettled(0, job_id)) == (f"job {job_id}", "live")
    sweep_all(store)
    assert store.read(lambda: advance.unsettled(0, job_id)) is None
    undo(store, flow_id, "a")
    assert row(store, flow_id).status == "compensated"


def test_flows_are_found_by_state_and_by_the_beginning_of_an_id(store: Store) -> None:
    first = start(store, CHAIN, number=1)
    second = start(store, CHAIN, number=2)
    cancel(store, first)
    assert [one.id for one in store.read(lambda: flow.newest([0], "cancelled", 5))] == [first]
    assert {one.id for one in store.read(lambda: flow.newest([0], None, 5))} == {first, second}
    assert store.read(lambda: flow.like([0], second[-36:-1] + "2")) == [second]
    assert len(store.read(lambda: flow.like([0], second[:8]))) == 2
    assert store.read(lambda: flow.like([0], "%")) == []


@pytest.mark.parametrize("shape", ["chain", "wide"])
def test_the_end_of_a_step_costs_the_same_in_a_flow_of_a_thousand(store: Store, shape: str) -> None:
    def made(size: int, number: int) -> int:
        names = [f"s{n}" for n in range(size)]
        if shape == "chain":
            steps = {name: " ".join(names[max(n - 1, 0) : n]) for n, name in enumerate(names)}
        else:
            steps = dict.fromkeys(names, "") | {"last": " ".join(names)}
        flow_id = start(store, steps, number=number)
        if shape == "wide":  # the others have ended: the last one starts what waits for all
            say(store, "UPDATE fanin.flow_step SET needs = 2 WHERE flow_id = :id AND name = 'last'", id=flow_id)
        one = held(store, flow_id, "s0")
        return len(statements(store, lambda: finish.settle(0, [done(one)], "w")))

    small, large = made(5, 1), made(1_000, 2)
    assert small == large
    record("flows", statements={f"{shape}/{store.dialect}": large})
    say(store, "DELETE FROM fanin.flow")


def test_what_is_given_up_stays_and_what_stands_before_it_is_undone(store: Store) -> None:
    flow_id = start(store, {"a": "", "b": "a", "c": "b"}, undo=["a", "b"])
    end(store, flow_id, "a")
    end(store, flow_id, "b")
    fail(store, flow_id, "c")
    fail(store, flow_id, "b", undo=True)
    assert row(store, flow_id).status == "needs_attention"
    with pytest.raises(NotAllowedNow, match="'a'"):
        resolve(store, flow_id, "a", "not_undone")
    resolve(store, flow_id, "b", "not_undone")
    assert states(store, flow_id) == {"a": "undoing", "b": "not_undone", "c": "nothing_to_undo"}
    undo(store, flow_id, "a")
    assert row(store, flow_id).status == "compensated"
    assert states(store, flow_id) == {"a": "undone", "b": "not_undone", "c": "nothing_to_undo"}
    for name in "ab":
        with pytest.raises(NotAllowedNow):
            resolve(store, flow_id, name, "not_undone")
    with pytest.raises(NotAllowedNow):
        undo_again(store, flow_id, "b")
    with pytest.raises(NotAllowedNow):
        again(store, flow_id)


def note_of(store: Store, flow_id: str, name: str) -> str:
    (note,) = [step.note for step in store.read(lambda: flow.steps(0, flow_id)) if step.name == name]
    return note or ""


def test_a_failed_undo_leaves_why_the_flow_failed(store: Store) -> None:
    flow_id = start(store, CHAIN, undo=["a"], manual=["b"])
    end(store, flow_id, "a")
    end(store, flow_id, "b")
    fail(store, flow_id, "c")
    why = row(store, flow_id).reason
    assert str(why).startswith(f"step 'c': job {job_of(store, flow_id, 'c')} failed")
    resolve(store, flow_id, "b")
    fail(store, flow_id, "a", undo=True)
    undo_job = job_of(store, flow_id, "a", undo=True)
    said_first = note_of(store, flow_id, "a")
    assert undo_job in said_first
    assert (row(store, flow_id).status, row(store, flow_id).reason) == ("needs_attention", why)
    assert events(store, flow_id)[-1]["reason"] == f"{why}; the undo of step 'a' failed: {said_first}"
    undo_again(store, flow_id, "a")
    assert note_of(store, flow_id, "a") == ""
    fail(store, flow_id, "a", undo=True)
    assert note_of(store, flow_id, "a") == said_first
    resolve(store, flow_id, "a", "not_undone")
    assert note_of(store, flow_id, "a") == "by hand"
    assert row(store, flow_id).reason == f"{why}; given up, so not undone: a"


def deeds_of(store: Store, of_id: str) -> list[tuple[Any, ...]]:
    text = "SELECT what, idx, who, reason, run FROM fanin.job_log WHERE job_id = :id ORDER BY at, what"
    return [tuple(line) for line in say(store, text, id=of_id)]


def test_a_line_says_who_stopped_a_flow_and_ran_it_again(store: Store) -> None:
    flow_id = start(store, CHAIN)
    assert cancel(store, flow_id, "enough")
    assert not cancel(store, flow_id, "again")
    assert deeds_of(store, flow_id) == [("cancelled", None, "kim", "enough", 1)]
    assert again(store, flow_id) == 2
    assert again(store, flow_id) == 2
    redriven = ("redriven", None, "kim", "all is well now", 2)
    assert deeds_of(store, flow_id) == [("cancelled", None, "kim", "enough", 1), redriven]
    assert deeds_of(store, job_of(store, flow_id, "a"))[-1] == redriven  # of its step's job too


def test_a_line_says_who_set_an_undo_right(store: Store) -> None:
    flow_id = needing_attention(store)
    undo_again(store, flow_id, "a")
    fail(store, flow_id, "a", undo=True)
    with pytest.raises(NotAllowedNow):
        resolve(store, flow_id, "c")
    resolve(store, flow_id, "a", "not_undone")
    assert sorted(deeds_of(store, flow_id)) == [
        ("not_undone", 0, "kim", "by hand", 1),
        ("undo_again", 0, "kim", None, 1),
        ("undone", 1, "kim", "by hand", 1),
    ]
    assert deeds_of(store, job_of(store, flow_id, "a", undo=True)) == [("redriven", None, "kim", None, 2)]
