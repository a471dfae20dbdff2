"""What all sinks share: their URLs, their format, and what is said when something is missing."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from fanin.domain import events
from fanin.domain.errors import BadOption, Permanent, RetryLater
from fanin.domain.events import Event
from fanin.runtime.sinks import SCHEMES, Several, open_sink
from fanin.runtime.sinks.base import ACKED, refused
from fanin.runtime.sinks.plain import CallableSink
from tests.relay.receipts import Receiver, event

CALLED: list[Event] = []


def receive(sent: Event) -> None:
    CALLED.append(sent)


def test_an_envelope_is_a_cloudevent_and_the_same_bytes_each_time() -> None:
    body = events.structured(event(3))
    assert body == events.structured(event(3))
    found = msgspec.json.decode(body)
    payload = found.pop("data")
    assert found == {
        "specversion": "1.0", "id": event(3).key, "source": "/fanin", "type": "fanin.job.finished.v1",
        "subject": event(3).job_id, "time": "2023-11-14T22:13:23.250000Z", "datacontenttype": "application/json",
        "partitionkey": event(3).job_id, "sequence": "0000000001",
    }  # fmt: skip
    assert msgspec.json.decode(event(3).payload) == payload


def test_the_binary_form_says_the_same_beside_the_payload() -> None:
    headers, body = events.binary(event(3), "/here", "ce_")
    assert body == event(3).payload.encode()
    assert headers.pop("content-type") == "application/json"
    assert headers.pop("ce_source") == "/here"
    whole = msgspec.json.decode(events.structured(event(3)))
    assert headers == {f"ce_{k}": v for k, v in whole.items() if k not in ("data", "datacontenttype", "source")}


def test_the_version_of_the_payload_stands_in_the_type() -> None:
    assert events.attributes(msgspec.structs.replace(event(1), payload='{"version":2}'))["type"].endswith(".v2")
    assert events.attributes(msgspec.structs.replace(event(1), payload="{}"))["type"].endswith(".v1")


def test_standard_output_gets_a_line_for_each_event(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", screen)
    assert open_sink("stdout").send([event(1), event(2)]) == [ACKED, ACKED]
    lines = screen.buffer.getvalue().splitlines()
    assert lines == [events.structured(event(1)), events.structured(event(2))]


def test_standard_output_that_nobody_reads_is_closed_for_good() -> None:
    program = (
        "import sys\nfrom fanin.runtime.sinks import open_sink, SinkClosed\nfrom tests.relay.receipts import event\n"
        "sys.stdin.readline()\n"
        "try:\n    open_sink('stdout').send([event(1)])\nexcept SinkClosed as closed:\n    sys.exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.communicate(b"\n")
    assert process.returncode == 7


def test_a_function_is_called_for_each_event_and_may_refuse_it() -> None:
    def choosy(sent: Event) -> None:
        problems: dict[str, Exception] = {"2": RetryLater(30), "3": Permanent("never"), "4": ValueError("no")}
        if problem := problems.get(sent.job_id[-1]):
            raise problem

    answers = CallableSink(choosy).send([event(n) for n in range(1, 5)])
    assert [(a.verb, a.after) for a in answers] == [
        ("acked", None), ("refused", 30), ("hopeless", None), ("refused", None),
    ]  # fmt: skip
    assert "ValueError: no" in answers[3].error


def test_a_function_is_named_by_its_module() -> None:
    CALLED.clear()
    assert open_sink(f"python:{__name__}:receive").send([event(1)]) == [ACKED]
    assert [event(1)] == sys.modules[__name__].CALLED


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("carrier-pigeon://x", "is no receiver that fanin knows; their URLs begin with stdout:, python:, http:"),
        ("redis://h/0?fanin_strem=x", "no parameter fanin_strem"),
        ("redis://h/0?fanin_format=xml", "one of structured, binary"),
        ("redis://h/0?fanin_timeout=1h", "up to 15s"),
        ("redis://h/0?fanin_source=%C3%A9", "ASCII"),
        ("redis://h/0?fanin_maxlen=many", "a whole number"),
        ("redis://h/0?fanin_stream=", "name the stream"),
        ("kafka://h:9092", "name the topic"),
        ("python:nowhere:f", "python:MODULE:FUNCTION"),
        ("python:math:pi", "not a function"),
        ("https://h/?fanin_redirects=9&fanin_unsigned=yes", "up to 5"),
    ],
)
def test_a_url_that_cannot_work_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        open_sink(url)
    assert said in str(caught.value)


def test_no_receiver_is_refused() -> None:
    with pytest.raises(BadOption, match="at least one"):
        open_sink()


@pytest.mark.parametrize(
    ("scheme", "library", "extra"),
    [("redis", "redis", "redis"), ("nats", "nats", "nats"), ("amqp", "aio_pika", "rabbitmq"),
     ("kafka", "confluent_kafka", "kafka")],
)  # fmt: skip
def test_a_library_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, scheme: str, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"fanin.runtime.sinks.{SCHEMES[scheme][0]}", raising=False)
    with pytest.raises(BadOption, match=rf"pip install 'fanin\[{extra}\]'"):
        open_sink(f"{scheme}://h/t")


def test_an_event_is_acknowledged_when_all_receivers_have() -> None:
    one, two = Receiver(batch=9), Receiver(batch=4)
    both: Any = Several([one, two])
    assert both.batch == 4
    assert both.send([event(1)]) == [ACKED]
    two.answer = lambda _: refused("no")
    assert both.send([event(2)]) == [refused("no")]
    assert (len(one.taken), len(two.taken)) == (2, 1)
