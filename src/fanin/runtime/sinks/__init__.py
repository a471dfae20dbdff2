"""Receivers of events, one small class each, chosen by the scheme of a URL."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from fanin.domain.errors import BadOption
from fanin.domain.events import Event
from fanin.runtime.sinks.base import ACKED, Answer, Sink, SinkClosed, Target

SCHEMES = {
    "stdout": ("plain", "StdoutSink"),
    "python": ("plain", "CallableSink"),
    "http": ("webhook", "WebhookSink"),
    "https": ("webhook", "WebhookSink"),
    "redis": ("redis", "RedisSink"),
    "rediss": ("redis", "RedisSink"),
    "nats": ("nats", "NatsSink"),
    "amqp": ("rabbitmq", "RabbitSink"),
    "amqps": ("rabbitmq", "RabbitSink"),
    "kafka": ("kafka", "KafkaSink"),
}
"""Scheme to module and class."""


def open_sink(*urls: str) -> Sink:
    """The sink of one URL, or one that sends to all of several. Nothing is connected yet. Raises `BadOption`."""
    sinks = [_open(url) for url in urls]
    if not sinks:
        raise BadOption("name at least one receiver")
    return sinks[0] if len(sinks) == 1 else Several(sinks)


def _open(url: str) -> Sink:
    target = Target("stdout:" if url == "stdout" else url)
    if target.parts.scheme not in SCHEMES:
        known = ", ".join(f"{scheme}:" for scheme in SCHEMES)
        raise BadOption(f"{target} is no receiver that fanin knows; their URLs begin with {known}")
    module, name = SCHEMES[target.parts.scheme]
    made: Sink = getattr(import_module(f"fanin.runtime.sinks.{module}"), name)(target)
    target.done()
    return made


class Several(Sink):
    """An event is acknowledged when all receivers have; one that has refused it gets it again, and so do the others."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self.batch = min(sink.batch for sink in sinks)

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        rows = zip(*(sink.send(batch) for sink in self._sinks), strict=True)
        return [next((answer for answer in row if answer != ACKED), ACKED) for row in rows]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


__all__ = ["Answer", "Sink", "SinkClosed", "open_sink"]
