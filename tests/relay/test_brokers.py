"""Each broker for real: it has what it acknowledged, a restart loses nothing, a repetition has the same bytes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import aio_pika
import nats
import nats.js.api
import nats.js.errors
import pytest
import redis

from fanin.domain.events import structured
from fanin.domain.policy import Backoff
from fanin.runtime import relay as relay_module
from fanin.runtime.relay import Relay
from fanin.runtime.sinks import open_sink
from fanin.runtime.sinks.base import ACKED
from fanin.stores import open_store
from fanin.stores.base import Store
from tests.relay.brokers import Broker, nats_server, rabbitmq_server, redis_server
from tests.relay.receipts import Running, ends, event, judge

Taken = list[tuple[str, bytes]]


class Place(Protocol):
    """A broker, the URL of the sink, and what the broker holds."""

    broker: Broker
    url: str
    nowhere: tuple[str, str, str]
    """A parameter that leads nowhere, and the answer with a word of it."""

    def ready(self) -> bool: ...
    def empty(self) -> None: ...
    def taken(self) -> Taken: ...


class RedisPlace:
    nowhere = ("fanin_stream=text", "refused", "WRONGTYPE")

    def __init__(self, directory: Path) -> None:
        self.broker = redis_server(directory)
        self.broker.start(self.ready)
        self.url = f"redis://127.0.0.1:{self.broker.port}/0"

    def ready(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.exceptions.RedisError:
            return False

    def empty(self) -> None:
        self.client().flushall()
        self.client().set("text", "no stream")

    def client(self) -> Any:
        return redis.Redis(port=self.broker.port)

    def taken(self) -> Taken:
        return [(fields[b"id"].decode(), fields[b"data"]) for _, fields in self.client().xrange("fanin.events")]


class NatsPlace:
    nowhere = ("fanin_subject=elsewhere", "unsent", "no stream listens to elsewhere.job.finished")

    def __init__(self, directory: Path) -> None:
        self.broker = nats_server(directory)
        self.url = f"nats://127.0.0.1:{self.broker.port}"
        self.broker.start(self.ready)

    def ready(self) -> bool:
        return self.broker.listens()

    def empty(self) -> None:
        asyncio.run(self._empty())

    async def _empty(self) -> None:
        client = await nats.connect(self.url)
        stream = client.jetstream()
        with contextlib.suppress(nats.js.errors.NotFoundError):
            await stream.delete_stream("FANIN")
        config = nats.js.api.StreamConfig(name="FANIN", subjects=["fanin.>"], duplicate_window=60)
        await stream.add_stream(config)
        await client.close()

    async def _taken(self) -> Taken:
        client = await nats.connect(self.url)
        stream = client.jetstream()
        last = (await stream.stream_info("FANIN")).state.last_seq
        found = [await stream.get_msg("FANIN", n) for n in range(1, last + 1)]
        await client.close()
        return [((m.headers or {})["Nats-Msg-Id"], m.data or b"") for m in found]

    def taken(self) -> Taken:
        return asyncio.run(self._taken())


class RabbitPlace:
    nowhere = ("fanin_routing_key=nobody", "refused", "no queue takes the routing key nobody")

    def __init__(self, directory: Path) -> None:
        self.broker = rabbitmq_server(directory)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.broker.port}/"
        self.broker.start(self.ready)
        self._seen: Taken = []

    def empty(self) -> None:
        self.taken()
        self._seen = []

    def ready(self) -> bool:
        """Whether it takes the queue and the binding, which a receiver declares each time: RabbitMQ says that a binding
        is made before it is on its disk, and was seen to come back with the queue and without it."""
        if not self.broker.listens():
            return False
        try:
            asyncio.run(self._declare())
        except (OSError, aio_pika.exceptions.AMQPError):
            return False
        return True

    async def _declare(self) -> None:
        async with await aio_pika.connect(self.url, timeout=2) as connection:
            queue = await (await connection.channel()).declare_queue("events", durable=True)
            await queue.bind("amq.topic", "fanin.#")

    async def _take(self) -> None:
        async with await aio_pika.connect(self.url) as connection:
            queue = await (await connection.channel()).get_queue("events")
            while (message := await queue.get(fail=False)) is not None:
                self._seen.append((message.message_id or "", message.body))
                await message.ack()

    def taken(self) -> Taken:
        asyncio.run(self._take())
        return self._seen


PLACES: dict[str, Callable[[Path], Place]] = {"redis": RedisPlace, "nats": NatsPlace, "rabbitmq": RabbitPlace}


@pytest.fixture(scope="module", params=PLACES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = PLACES[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.broker.kill()


@pytest.fixture
def place(running: Place) -> Place:
    """A broker that holds nothing yet."""
    if running.broker.process is None:
        running.broker.start(running.ready)
    running.empty()
    return running


@pytest.fixture
def outgoing(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'fanin.db'}")
    yield opened
    opened.close()


def test_a_broker_that_dies_and_comes_back_has_every_event(
    place: Place, outgoing: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test for each broker, because each costs the start of a server: send, be away, go on, and send twice."""
    monkeypatch.setattr(relay_module, "PAUSES", Backoff(first=0.05, cap=0.05))
    sink = open_sink(place.url + "?fanin_timeout=15s")
    assert sink.send([event(1), event(2)]) == [ACKED, ACKED]
    assert place.taken() == [(event(n).key, structured(event(n))) for n in (1, 2)]

    expected = ends(outgoing, 30)
    half = threading.Event()
    relay = Relay(
        outgoing, sink, batch=10, poll=0.01, on_event=lambda *_: half.set() if relay.published >= 15 else None
    )
    running = Running(relay)
    assert half.wait(60)
    place.broker.kill()
    expected += ends(outgoing, 30)
    place.broker.start(place.ready)
    running.wait_for(60)
    running.stop()
    judge([event(1).key, event(2).key, *expected], place.taken())

    answers = sink.send([event(1)])  # its acknowledgement was lost, say
    assert answers == [ACKED]
    repeated = judge([event(1).key, event(2).key, *expected], place.taken())
    assert repeated >= (0 if place.url.startswith("nats") else 1)

    place.broker.kill()
    (answer,) = sink.send([event(3)])
    assert answer.verb == "unsent"
    sink.close()


def test_a_broker_without_a_place_for_an_event_says_so(place: Place) -> None:
    option, verb, word = place.nowhere
    sink = open_sink(f"{place.url}?{option}")
    (answer,) = sink.send([event(1)])
    sink.close()
    assert (answer.verb, word in answer.error) == (verb, True)
    assert place.taken() == []


def test_the_binary_form_carries_the_attributes_beside_the_payload(place: Place) -> None:
    sink = open_sink(place.url + "?fanin_format=binary&fanin_source=/here")
    assert sink.send([event(7)]) == [ACKED]
    sink.close()
    assert place.taken() == [(event(7).key, event(7).payload.encode())]


@pytest.mark.parametrize("running", ["rabbitmq"], indirect=True)
def test_an_event_can_go_straight_to_a_queue_of_rabbitmq(place: Place) -> None:
    sink = open_sink(place.url + "?fanin_exchange=&fanin_routing_key=events")
    assert sink.send([event(7)]) == [ACKED]
    sink.close()
    assert place.taken() == [(event(7).key, structured(event(7)))]
