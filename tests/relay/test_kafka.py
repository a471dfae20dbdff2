"""Kafka, spoken to the mock cluster that its client library brings: the real protocol, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import confluent_kafka
import msgspec
import pytest
from confluent_kafka.admin import AdminClient

from fanin.domain.events import ENVELOPE_TYPE, structured
from fanin.domain.policy import Backoff
from fanin.runtime import relay as relay_module
from fanin.runtime.relay import Relay
from fanin.runtime.sinks import open_sink
from fanin.runtime.sinks.base import ACKED
from fanin.stores import open_store
from tests.relay.kafka_proxy import KafkaProxies
from tests.relay.receipts import Running, ends, event, judge, states
from tests.runtime.working import until

TOPIC = "events"


class Cluster:
    """Three brokers inside this process, and a topic of four partitions."""

    def __init__(self) -> None:
        self._owner = AdminClient({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
        brokers = self._owner.list_topics(TOPIC, timeout=30).brokers.values()  # asking for a topic makes it
        self.brokers = [(str(broker.host), int(broker.port)) for broker in brokers]
        self.servers = ",".join(f"{host}:{port}" for host, port in self.brokers)
        self.url = f"kafka://{self.servers}/{TOPIC}"

    def bodies(self) -> list[tuple[str, bytes]]:
        """(event key, body) of every message that is there."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.servers, "group.id": "judge"})
        parts = [confluent_kafka.TopicPartition(TOPIC, n) for n in range(4)]
        count = sum(consumer.get_watermark_offsets(part, timeout=30)[1] for part in parts)
        consumer.close()
        bodies = [message.value() or b"" for message in self.taken(count)]
        return [(str(msgspec.json.decode(body)["id"]), body) for body in bodies]

    def taken(self, count: int) -> list[confluent_kafka.Message]:
        """So many messages from the beginning."""
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.servers, "group.id": "judge"})
        parts = [confluent_kafka.TopicPartition(TOPIC, n, confluent_kafka.OFFSET_BEGINNING) for n in range(4)]
        consumer.assign(parts)
        found: list[confluent_kafka.Message] = []
        while len(found) < count:
            found += consumer.consume(count - len(found), timeout=1.0)
        consumer.close()
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    del made._owner


def test_every_event_arrives_under_the_key_of_its_job(cluster: Cluster, sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    expected = ends(store, 40)
    sink = open_sink(cluster.url)
    Relay(store, sink, batch=15).run(until_idle=True)
    sink.close()
    store.close()
    messages = cluster.taken(40)
    found = []
    for message in messages:
        headers = dict(message.headers() or [])
        assert headers["content-type"] == ENVELOPE_TYPE.encode()
        body = message.value() or b""
        (key,) = [key for key in expected if f'"{key}"'.encode() in body]
        assert message.key() == key.split("/")[1].encode()
        found.append((key, body))
    assert judge(expected, found) == 0
    assert len({message.partition() for message in messages}) > 1


def test_the_binary_form_has_the_attributes_as_headers(cluster: Cluster) -> None:
    sink = open_sink(cluster.url + "?fanin_format=binary")
    assert sink.send([event(1)]) == [ACKED]
    sink.close()
    (message,) = cluster.taken(1)
    headers = dict(message.headers() or [])
    assert (headers["ce_id"], headers["ce_type"]) == (event(1).key.encode(), b"fanin.job.finished.v1")
    assert message.value() == event(1).payload.encode()


def test_a_repetition_has_the_same_bytes(cluster: Cluster) -> None:
    sink = open_sink(cluster.url)
    assert sink.send([event(1)]) == sink.send([event(1)]) == [ACKED]
    sink.close()
    assert [message.value() for message in cluster.taken(2)] == [structured(event(1))] * 2


def test_an_event_that_is_too_large_never_will_be_taken_and_the_others_are(cluster: Cluster) -> None:
    sink = open_sink(cluster.url)
    large = event(2, reason="x" * 2_000_000)
    answers = sink.send([event(1), large, event(3)])
    sink.close()
    assert [answer.verb for answer in answers] == ["acked", "hopeless", "acked"]


def test_brokers_that_are_away_take_nothing() -> None:
    sink = open_sink("kafka://127.0.0.1:9/events?fanin_timeout=1s")
    (answer,) = sink.send([event(1)])
    sink.close()
    assert answer.verb == "unsent"


@pytest.fixture
def proxies(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaProxies]:
    monkeypatch.setattr(relay_module, "PAUSES", Backoff(first=0.05, cap=0.05))
    made = KafkaProxies(cluster.brokers)
    yield made
    made.close()


def test_brokers_that_go_away_and_come_back_have_every_event(
    cluster: Cluster, proxies: KafkaProxies, sqlite_url: str
) -> None:
    store = open_store(sqlite_url)
    expected = ends(store, 30)
    half = threading.Event()
    sink = open_sink(f"kafka://{proxies.servers}/{TOPIC}?fanin_timeout=1s")
    relay = Relay(store, sink, batch=10, poll=0.01, on_event=lambda *_: half.set() if relay.published >= 15 else None)
    running = Running(relay)
    assert half.wait(90)
    proxies.stop()
    expected += ends(store, 30)
    proxies.start()
    until(lambda: relay.published >= 60 or running.problem, "every event has left")
    running.stop()
    sink.close()
    store.close()
    assert running.problem is None
    assert proxies.connections > 0, "the client has found the way around"
    judge(expected, cluster.bodies())


def test_a_lost_acknowledgement_leaves_a_repetition_with_the_same_bytes(
    cluster: Cluster, proxies: KafkaProxies, sqlite_url: str
) -> None:
    """The cluster has the batch, and is away before it can say so: nobody but the consumer can tell."""
    store = open_store(sqlite_url)
    expected = ends(store, 10)
    sink = open_sink(f"kafka://{proxies.servers}/{TOPIC}?fanin_timeout=1s")
    proxies.lose_next = True
    relay = Relay(store, sink, batch=10, poll=0.01)
    running = Running(relay)
    assert proxies.lost.wait(90)
    until(lambda: relay._away > 0, "the relay has noticed")
    assert relay.published < 10
    assert set(states(store).values()) <= {"waiting", "claimed", "published"}
    there = len(cluster.bodies())
    assert there > 0, "the batch has arrived"
    proxies.start()
    until(lambda: relay.published >= 10 or running.problem, "every event has left")
    running.stop()
    sink.close()
    store.close()
    assert running.problem is None
    assert judge(expected, cluster.bodies()) > 0
