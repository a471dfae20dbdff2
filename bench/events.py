"""Events per second from the outbox to each receiver: ``python -m bench.events [--count N] [--url URL] [RECEIVER...]``.

Starts the receivers itself, on free ports. Without ``--url`` the events lie in an SQLite file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fanin
from fanin.protocol import outbox
from fanin.protocol.steps import Query, Txn
from fanin.runtime.relay import Relay
from fanin.runtime.sinks import open_sink
from fanin.runtime.sinks.plain import CallableSink
from fanin.stores.base import Store
from tests.relay.brokers import Broker, nats_server, redis_server
from tests.relay.receiver import WebhookReceiver

BATCHES = (1, 10, 50, 200)
PAYLOAD = (
    '{"version":1,"job_id":"01980000-0000-7000-8000-000000000001","run":1,"status":"completed","outcome":"all_ok",'
    '"reason":null,"succeeded":100,"failed":0,"abandoned":0,"key":"monthly-report-2026-11","task":"reports.render"}'
)


def fill(store: Store, count: int) -> None:
    """So many waiting events, each of a job of its own."""
    job = "('01980000-0000-7000-8000-' || substr('00000000000' || n, -12))"
    pg = job.replace("substr('00000000000' || n, -12)", "lpad(n::text, 12, '0')") + "::uuid"
    text = (
        "INSERT INTO fanin.outbox (bucket, event_key, job_id, seq, type, payload, at, due_at) "
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count) "
        "SELECT 0, 'job/' || n || '/finished/1', {job}, 1, 'job.finished', :payload, n, 1 FROM numbers"
    )
    query = Query("bench", "fill", (), {"pg": text.format(job=pg), "lite": text.format(job=job)})
    clear = Query("bench", "clear", (), dict.fromkeys(("pg", "lite"), "DELETE FROM fanin.outbox"))

    def txn() -> Txn[None]:
        yield clear()
        yield query(count=count, payload=PAYLOAD)

    store.run(txn)


def measure(store: Store, url: str | None, batch: int, count: int) -> float:
    """Events per second."""
    fill(store, count)
    sink = open_sink(url) if url else CallableSink(lambda _: None)
    sink.batch = max(sink.batch, batch) if url is None else sink.batch
    relay = Relay(store, sink, batch=batch)
    began = time.perf_counter()
    relay.run(until_idle=True)
    took = time.perf_counter() - began
    assert relay.published == count
    assert store.read(lambda: outbox.due_in(0)) is None
    sink.close()
    return count / took


@contextmanager
def running(make: Callable[[Path], Broker], url: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        broker = make(Path(directory))
        broker.start()
        try:
            yield url.format(port=broker.port)
        finally:
            broker.kill()


async def _stream(url: str) -> None:
    import nats

    client = await nats.connect(url)
    await client.jetstream().add_stream(name="FANIN", subjects=["fanin.>"])
    await client.close()


@contextmanager
def receiver(name: str) -> Iterator[str | None]:
    if name == "function":
        yield None
    elif name == "redis":
        with running(redis_server, "redis://127.0.0.1:{port}/0") as url:
            yield url
    elif name == "nats":
        with running(nats_server, "nats://127.0.0.1:{port}") as url:
            asyncio.run(_stream(url))
            yield url
    elif name == "kafka":
        from confluent_kafka.admin import AdminClient

        owner = AdminClient({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0})
        brokers = owner.list_topics("events", timeout=30).brokers.values()
        yield f"kafka://{','.join(f'{b.host}:{b.port}' for b in brokers)}/events"
    elif name == "webhook":
        os.environ["FANIN_WEBHOOK_SECRET"] = "whsec_" + "A" * 43 + "="
        hook = WebhookReceiver()
        yield hook.url + "?fanin_private=yes"
        hook.close()
    else:
        raise SystemExit(f"{name!r}: there are {', '.join(RECEIVERS)}")


RECEIVERS = ("function", "redis", "nats", "kafka", "webhook")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("receivers", nargs="*", default=list(RECEIVERS), metavar="RECEIVER")
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--url")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        store = fanin.App(options.url or f"sqlite:///{directory}/bench.db").store
        print(f"{'events/s':<10}" + "".join(f"{f'batch {batch}':>11}" for batch in BATCHES))
        for name in options.receivers or RECEIVERS:
            with receiver(name) as url:
                rates = [measure(store, url, batch, min(options.count, batch * 100)) for batch in BATCHES]
            print(f"{name:<10}" + "".join(f"{rate:>11,.0f}" for rate in rates), flush=True)
        store.close()


if __name__ == "__main__":
    main()
