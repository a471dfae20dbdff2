"""The end of a flow, and its want of a person, make an event and the jobs of the listeners in one transaction."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fanin.domain.events import FlowFinished
from fanin.domain.model import Spec
from fanin.domain.states import FLOW_LIVE
from fanin.protocol import flow, outbox
from fanin.stores.base import Store
from tests.protocol import flows
from tests.protocol.helpers import claim_all, say, sweep_all, take

HEARD = {
    "flow.finished": [Spec(task="one", step="on/one", queue="joins")],
    "flow.needs_attention": [
        Spec(task="two", step="on/two", queue="joins"),
        Spec(task="one", step="on/t", queue="joins"),
    ],
}
LISTENERS = msgspec.json.encode(HEARD).decode()


def heard(store: Store) -> list[tuple[str, FlowFinished]]:
    """(task, event) of what the listeners get, in the order of the events."""
    claims = claim_all(store, queue="joins", tasks=("one", "two"))
    found = [(one.task, msgspec.json.decode(one.payload, type=list[FlowFinished])[0]) for one in claims]
    return sorted(found, key=lambda pair: (pair[1].status, pair[0]))


def completes(store: Store) -> str:
    flow_id = flows.start(store, {"a": "", "b": "a"}, listeners=LISTENERS, key="k")
    flows.end(store, flow_id, "a")
    flows.end(store, flow_id, "b")
    return flow_id


def fails(store: Store) -> str:
    flow_id = flows.start(store, {"a": "", "b": "a"}, listeners=LISTENERS, key="k")
    flows.fail(store, flow_id, "a")
    return flow_id


def is_cancelled(store: Store) -> str:
    flow_id = flows.start(store, {"a": ""}, listeners=LISTENERS, key="k")
    flows.cancel(store, flow_id, "enough")
    sweep_all(store)
    return flow_id


def is_undone(store: Store) -> str:
    flow_id = flows.start(store, {"a": "", "b": "a"}, listeners=LISTENERS, key="k", undo=["a"])
    flows.end(store, flow_id, "a")
    flows.fail(store, flow_id, "b")
    flows.undo(store, flow_id, "a")
    return flow_id


def waits_and_ends(store: Store) -> str:
    """A person is asked for, and says that nothing is to be done."""
    flow_id = flows.start(store, {"a": "", "b": "a"}, listeners=LISTENERS, key="k", manual=["a"])
    flows.end(store, flow_id, "a")
    flows.fail(store, flow_id, "b")
    flows.resolve(store, flow_id, "a", "nothing_to_undo")
    return flow_id


@pytest.mark.parametrize("ends", [completes, fails, is_cancelled, is_undone], ids=lambda one: one.__name__)
def test_each_end_is_told_once(store: Store, ends: Any) -> None:
    flow_id = ends(store)
    row = flows.row(store, flow_id)
    assert row.status not in FLOW_LIVE
    ((task, event),) = heard(store)
    assert (task, event.flow_id, event.name, event.key, event.run) == ("one", flow_id, "flow", "k", 1)
    assert (event.status, event.cause, event.reason) == (row.status, row.cause, row.reason)
    _, sent = take(store)
    (told,) = [one for one in sent if one.type == "flow.finished"]
    assert told.decoded() == event
    assert told.key == f"flow/{flow_id}/finished/1"


def test_a_person_is_asked_for_and_the_end_follows(store: Store) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a", "c": "b"}, listeners=LISTENERS, manual=["a"], undo=["b"])
    flows.end(store, flow_id, "a")
    flows.end(store, flow_id, "b")
    flows.fail(store, flow_id, "c")
    flows.fail(store, flow_id, "b", undo=True)
    assert [(task, event.status) for task, event in heard(store)] == [
        ("one", "needs_attention"), ("two", "needs_attention"),
    ]  # fmt: skip
    flows.resolve(store, flow_id, "b", "not_undone")
    (_, event), _ = heard(store)
    assert event.notable == {"a": "manual", "b": "not_undone"}
    flows.resolve(store, flow_id, "a")
    ((task, event),) = heard(store)
    assert (task, event.status, event.steps) == (
        "one",
        "compensated",
        {"nothing_to_undo": 1, "not_undone": 1, "undone": 1},
    )
    assert event.notable == {"b": "not_undone"}
    assert (event.reason or "").endswith("; given up, so not undone: b")
    assert flows.row(store, flow_id).reason == event.reason


def test_the_next_run_has_an_event_and_a_listener_of_its_own(store: Store) -> None:
    flow_id = fails(store)
    assert [event.run for _, event in heard(store)] == [1]
    assert flows.again(store, flow_id) == 2
    flows.end(store, flow_id, "a")
    flows.end(store, flow_id, "b")
    assert [(event.run, event.status) for _, event in heard(store)] == [(2, "completed")]


def test_a_flow_without_listeners_makes_no_job(store: Store) -> None:
    flow_id = flows.start(store, {"a": ""})
    flows.end(store, flow_id, "a")
    assert say(store, "SELECT count(*) FROM fanin.job") == [(1,)]
    claim_id, sent = take(store)
    assert store.run(lambda: outbox.settle(0, claim_id, [outbox.Said(one.key, "mark") for one in sent])) == []
    assert store.read(lambda: flow.row(0, flow_id)) is not None
