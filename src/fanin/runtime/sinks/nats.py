"""NATS JetStream: the server keeps an event before it answers, and drops one whose key it has seen lately."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from fanin.domain.events import TYPE_PREFIX, Event
from fanin.runtime.sinks.aio import LoopThread
from fanin.runtime.sinks.base import ACKED, Answer, Sink, Target, hopeless, missing, refused, unsent

try:
    import nats
    from nats.aio.client import Client
    from nats.errors import MaxPayloadError
    from nats.js import JetStreamContext
    from nats.js.errors import APIError, NoStreamResponseError
except ImportError as problem:
    raise missing("nats", problem) from problem


class NatsSink(Sink):
    """Published under ``fanin.job.finished``; ``Nats-Msg-Id`` is the event key. A stream must listen to the subject."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._prefix = target.take("subject", TYPE_PREFIX.rstrip("."))
        self._client: Client | None = None
        self._loop: LoopThread | None = None

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        if self._loop is None:
            self._loop = LoopThread("fanin-nats")
        try:
            return self._loop.run(self._send(batch), 2 * self._target.timeout)
        except Exception as problem:
            return [unsent(problem) for _ in batch]

    async def _send(self, batch: Sequence[Event]) -> list[Answer]:
        stream = await self._connect()
        sending = [asyncio.ensure_future(self._one(stream, event)) for event in batch]
        lost = asyncio.ensure_future(self._lost.wait())
        everything = asyncio.gather(*sending)
        first: list[asyncio.Future[Any]] = [everything, lost]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        if not everything.done():  # no answer will come on a connection that is gone
            everything.cancel()
            await asyncio.wait(sending)
        return [unsent("the connection was lost") if one.cancelled() else one.result() for one in sending]

    async def _connect(self) -> JetStreamContext:
        if self._client is None or not self._client.is_connected:
            if self._client is not None:
                with contextlib.suppress(Exception):
                    await self._client.close()
            self._lost = asyncio.Event()
            # Coming back is the relay's business, which then knows what was not sent.
            self._client = await nats.connect(
                self._target.url, allow_reconnect=False, max_reconnect_attempts=1,
                reconnect_time_wait=0, connect_timeout=max(1, int(self._target.timeout)),
                error_cb=_quiet, closed_cb=self._note,
            )  # fmt: skip
        return self._client.jetstream(timeout=self._target.timeout)

    async def _note(self) -> None:
        self._lost.set()

    async def _one(self, stream: JetStreamContext, event: Event) -> Answer:
        headers, body = self._target.content(event)
        named = {"Nats-Msg-Id": event.key, **headers}
        try:
            await stream.publish(f"{self._prefix}.{event.type}", body, headers=named)
        except NoStreamResponseError:
            return unsent(f"no stream listens to {self._prefix}.{event.type}")
        except MaxPayloadError as problem:
            return hopeless(problem)
        except APIError as problem:
            return refused(problem)
        except Exception as problem:
            return unsent(problem)
        return ACKED

    def close(self) -> None:
        if self._loop is not None:
            if self._client is not None:
                with contextlib.suppress(Exception):
                    self._loop.run(self._client.close(), self._target.timeout)
            self._loop.close()


async def _quiet(problem: Exception) -> None:
    """The client would print it; it is told with the answers."""
