"""What ``docs/events.md`` says of the format is what leaves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from fanin.domain import events, limits
from fanin.domain.events import FlowFinished, JobFinished
from fanin.domain.policy import Policy
from fanin.protocol import progress
from fanin.runtime import relay
from fanin.runtime.relay import Relay
from fanin.runtime.sinks import SCHEMES
from fanin.stores.base import Store
from tests.protocol import flows
from tests.protocol.helpers import cancel, claim, done, failed, make, settle
from tests.relay.receipts import Receiver

TEXT = (Path(__file__).resolve().parents[2] / "docs/events.md").read_text("utf-8")
EXAMPLE, SCHEMA, *MORE = (msgspec.json.decode(block) for block in re.findall(r"^```json\n(.*?)^```", TEXT, re.M | re.S))


def test_the_schema_in_the_document_is_that_of_the_code() -> None:
    assert [events.schema(kind) for kind in events.PAYLOADS] == [SCHEMA, *MORE]


def leave(store: Store) -> list[dict[str, Any]]:
    receiver = Receiver()
    Relay(store, receiver).run(until_idle=True)
    return [msgspec.json.decode(body) for _, body in receiver.taken]


def test_every_event_that_leaves_follows_the_schema_and_looks_like_the_example(store: Store) -> None:
    make(store, 0, key="report")
    make(store, 2)
    good, bad = claim(store)
    settle(store, done(good), failed(bad))
    cancel(store, make(store, 3), "no longer wanted")
    found = leave(store)
    assert len(found) == 3
    for event in [EXAMPLE, *found]:
        assert event.keys() == EXAMPLE.keys()
        jsonschema.validate(event["data"], SCHEMA)
        msgspec.convert(event["data"], JobFinished, strict=True)
        assert set(event["data"]) == set(JobFinished.__struct_fields__)
        assert event["type"] == SCHEMA["title"]
    assert {event["data"]["outcome"] for event in found} == {"all_ok", "too_many_failures", "cancelled"}


def test_what_is_told_beside_the_end_follows_its_schema(store: Store) -> None:
    job_id = make(store, 2, failure_events=True, progress_every=1e-9, policy=Policy(tolerate=2))
    settle(store, failed(claim(store)[0]))
    assert store.run(lambda: progress.tell(0, job_id))
    found = leave(store)
    assert [event["type"] for event in found] == [schema["title"] for schema in MORE[:2]]
    for event, schema in zip(found, MORE[:2], strict=True):
        jsonschema.validate(event["data"], schema)
        assert event["data"].keys() == schema["properties"].keys()


def test_the_example_has_its_own_key() -> None:
    data = EXAMPLE["data"]
    assert EXAMPLE["id"] == f"job/{data['job_id']}/finished/{data['run']}"
    assert EXAMPLE["subject"] == EXAMPLE["partitionkey"] == data["job_id"]


@pytest.mark.parametrize(
    "said",
    [
        f"{relay.RETRIES.first:g} s at first and {relay.RETRIES.cap / 60:g} minutes at most, and after",
        f"{limits.EVENT_TRIES} tries it is *parked*",
        f"up to {relay.PAUSES.cap:g} s between two looks",
        f"the claim has run out ({relay.LEASE_SECONDS:g} s)",
    ],
)
def test_a_number_in_the_document_is_that_of_the_code(said: str) -> None:
    assert said in " ".join(TEXT.split())


def test_every_receiver_has_its_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)", TEXT, re.MULTILINE))
    assert SCHEMES.keys() - {"http", "rediss", "amqps"} == rows


def test_every_parameter_is_named() -> None:
    code = " ".join(path.read_text() for path in (Path(relay.__file__).parent / "sinks").glob("*.py"))
    used = set(re.findall(r'target\.(?:take|choice|number)\("(\w+)"', code)) | {"format", "source", "timeout"}
    assert used == set(re.findall(r"fanin_(\w+)", TEXT))


def test_the_events_of_flows_follow_their_schemas(store: Store) -> None:
    flow_id = flows.start(store, {"a": "", "b": "a"}, manual=["a"], key="nightly")
    flows.end(store, flow_id, "a")
    flows.fail(store, flow_id, "b")
    flows.resolve(store, flow_id, "a", "not_undone")
    found = [event for event in leave(store) if event["type"].startswith("fanin.flow.")]
    needed, finished = found
    for event, schema in ((finished, MORE[2]), (needed, MORE[3])):
        assert event["type"] == schema["title"]
        jsonschema.validate(event["data"], schema)
        assert isinstance(msgspec.convert(event["data"], FlowFinished, strict=True), FlowFinished)
        assert set(event["data"]) == set(FlowFinished.__struct_fields__)
    assert finished["data"]["notable"] == {"a": "not_undone"}
    assert finished["data"]["steps"] == {"not_undone": 1, "nothing_to_undo": 1}
