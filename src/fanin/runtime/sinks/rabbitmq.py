"""RabbitMQ: persistent, mandatory messages with publisher confirms."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from fanin.domain.events import TYPE_PREFIX, Event
from fanin.runtime.sinks.aio import LoopThread
from fanin.runtime.sinks.base import ACKED, Answer, Sink, Target, missing, refused, unsent

try:
    import aio_pika
    from aio_pika.abc import AbstractConnection, AbstractExchange
    from aio_pika.exceptions import DeliveryError, PublishError
except ImportError as problem:
    raise missing("rabbitmq", problem) from problem


class RabbitSink(Sink):
    """Published to an exchange (default: ``amq.topic``) with the routing key ``fanin.job.finished``; the message id is
    the event key. A message that no queue takes is returned by the broker, and counts as refused."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._exchange_name = target.take("exchange", "amq.topic")
        self._key = target.take("routing_key", "")
        self._connection: AbstractConnection | None = None
        self._exchange: AbstractExchange | None = None
        self._loop: LoopThread | None = None

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        if self._loop is None:
            self._loop = LoopThread("fanin-rabbitmq")
        try:
            return self._loop.run(self._send(batch), 2 * self._target.timeout)
        except Exception as problem:
            return [unsent(problem) for _ in batch]

    async def _send(self, batch: Sequence[Event]) -> list[Answer]:
        exchange = await self._connect()
        answers = list(await asyncio.gather(*(self._one(exchange, event) for event in batch)))
        if any(answer.verb == "unsent" for answer in answers):
            await self._disconnect()
        return answers

    async def _connect(self) -> AbstractExchange:
        if self._exchange is None or self._connection is None or self._connection.is_closed:
            await self._disconnect()
            self._connection = await aio_pika.connect(self._target.url, timeout=self._target.timeout)
            channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            if self._exchange_name:
                self._exchange = await channel.get_exchange(self._exchange_name)
            else:
                self._exchange = channel.default_exchange
        return self._exchange

    async def _one(self, exchange: AbstractExchange, event: Event) -> Answer:
        headers, body = self._target.content(event, "cloudEvents:")
        kind = headers.pop("content-type")
        message = aio_pika.Message(
            body, content_type=kind, headers=dict(headers), message_id=event.key, type=event.type,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )  # fmt: skip
        key = self._key or TYPE_PREFIX + event.type
        try:
            await exchange.publish(message, key, mandatory=True, timeout=self._target.timeout)
        except PublishError:
            return refused(f"no queue takes the routing key {key} of exchange {self._exchange_name!r}")
        except DeliveryError as problem:
            return refused(problem)
        except Exception as problem:
            return unsent(problem)
        return ACKED

    async def _disconnect(self) -> None:
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):
                await connection.close()

    def close(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(Exception):
                self._loop.run(self._disconnect(), self._target.timeout)
            self._loop.close()
