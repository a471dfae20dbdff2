"""Dramatiq: a group with a completion callback, on Redis. The callback is given no results: it fetches them."""

from __future__ import annotations

import sys
import uuid

import dramatiq
import harness
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as Barriers
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend as Values

THREADS = 8
FETCH_MILLISECONDS = 60_000

broker = RedisBroker(url=harness.url())
broker.add_middleware(GroupCallbacks(Barriers(url=harness.url())))
broker.add_middleware(Results(backend=Values(url=harness.url())))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="part", store_results=True)
def part(n: int) -> int:
    return n


@dramatiq.actor(actor_name="join", time_limit=600_000)
def join(name: str, parts: int) -> None:
    harness.joined(fan(name, parts).get_results(block=True, timeout=FETCH_MILLISECONDS))


def fan(name: str, parts: int) -> dramatiq.group:
    """The group with ids that can be said again, so that the callback can ask for the results."""
    return dramatiq.group([part.message(n).copy(message_id=f"{name}-{n}") for n in range(parts)])


def submit(parts: int) -> None:
    name = uuid.uuid4().hex
    group = fan(name, parts)
    group.add_completion_callback(join.message(name, parts))
    group.run()


def commands(workers: int) -> list[list[str]]:
    return [[sys.executable, "-m", "dramatiq", "on_dramatiq", "-p", str(workers), "-t", str(THREADS)]]


if __name__ == "__main__":
    harness.measure(submit, commands)
