"""Redis Streams: one XADD per event, all of a batch in one round trip."""

from __future__ import annotations

from collections.abc import Sequence

from fanin.domain.errors import BadOption
from fanin.domain.events import Event
from fanin.runtime.sinks.base import ACKED, Answer, Sink, Target, missing, refused, unsent

try:
    import redis
except ImportError as problem:
    raise missing("redis", problem) from problem

AWAY = (
    redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError, redis.exceptions.TryAgainError, redis.exceptions.ClusterDownError,
)  # fmt: skip
AWAY_WORDS = ("MISCONF", "LOADING", "MASTERDOWN", "NOREPLICAS", "OOM", "READONLY")


class RedisSink(Sink):
    """Entries have the fields ``id`` (the event key), ``type``, ``content-type`` and ``data``."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._stream = target.take("stream", "fanin.events")
        self._maxlen = target.number("maxlen", 0, 10**12) or None
        if not self._stream:
            raise BadOption("fanin_stream: name the stream")
        self._client = redis.Redis.from_url(
            target.url, socket_timeout=target.timeout, socket_connect_timeout=target.timeout, retry=None,
            health_check_interval=0,
        )  # fmt: skip

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        pipeline = self._client.pipeline(transaction=False)
        for event in batch:
            headers, body = self._target.content(event)
            fields = {"id": event.key, "type": event.type, **headers, "data": body}
            pipeline.xadd(self._stream, fields, maxlen=self._maxlen, approximate=True)  # type: ignore[arg-type]
        try:
            replies = pipeline.execute(raise_on_error=False)
        except redis.exceptions.RedisError as problem:
            return [unsent(problem) for _ in batch]
        return [_judge(reply) for reply in replies]

    def close(self) -> None:
        self._client.close()


def _judge(reply: object) -> Answer:
    if not isinstance(reply, Exception):
        return ACKED
    if isinstance(reply, AWAY) or str(reply).startswith(AWAY_WORDS):
        return unsent(reply)
    return refused(reply)
