"""Kafka: an idempotent producer, all replicas in sync. The key of a message is the job's id: a job keeps its order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fanin.domain.errors import BadOption
from fanin.domain.events import Event
from fanin.runtime.sinks.base import ACKED, Answer, Sink, Target, hopeless, missing, refused, unsent

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError as problem:
    raise missing("kafka", problem) from problem

AWAY = (
    KafkaError._MSG_TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT,
    KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)  # fmt: skip


class KafkaSink(Sink):
    """``kafka://host:9092,host2:9092/topic``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._topic = target.path
        if not self._topic:
            raise BadOption(f"{target}: name the topic, as in kafka://host:9092/events")
        self._settings: dict[str, Any] = {
            "bootstrap.servers": target.parts.netloc,
            "client.id": "fanin",
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "delivery.timeout.ms": int(target.timeout * 1000),
            "request.timeout.ms": int(target.timeout * 1000),
            "logger": _Quiet(),
        }
        self._producer: Producer | None = None

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        if self._producer is None:
            self._producer = Producer(self._settings)
        answers: dict[str, Answer] = {}
        for event in batch:
            headers, body = self._target.content(event, "ce_")
            try:
                self._producer.produce(
                    self._topic, body, key=event.job_id, headers=[(k, v.encode()) for k, v in headers.items()],
                    on_delivery=partial(_note, answers, event.key),
                )  # fmt: skip
            except (BufferError, KafkaException) as problem:
                answers[event.key] = _judge(problem.args[0]) if isinstance(problem, KafkaException) else unsent(problem)
        if self._producer.flush(2 * self._target.timeout):
            self._producer.purge()
            self._producer.flush(1.0)
        fatal = any(a.verb == "unsent" and "fatal" in a.error for a in answers.values())
        if fatal:
            self._producer = None
        return [answers.get(event.key, unsent("no answer")) for event in batch]

    def close(self) -> None:
        self._producer = None


def _note(answers: dict[str, Answer], key: str, error: KafkaError | None, _: object) -> None:
    answers[key] = _judge(error)


def _judge(error: KafkaError | None) -> Answer:
    if error is None:
        return ACKED
    if error.fatal():
        return unsent(f"fatal: {error}")
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return hopeless(error.str())
    return unsent(error.str()) if error.retriable() or error.code() in AWAY else refused(error.str())


class _Quiet:
    """librdkafka would print; what matters is in the answers."""

    def log(self, *_: object) -> None: ...
