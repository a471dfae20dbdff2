"""Celery: a chord on Redis as broker and result backend, prefork."""

from __future__ import annotations

import sys

import harness
from celery import Celery, chord

app = Celery("on_celery", broker=harness.url(), backend=harness.url())
app.conf.worker_prefetch_multiplier = 32
app.conf.broker_connection_retry_on_startup = True


@app.task(name="part")
def part(n: int) -> int:
    return n


@app.task(name="join")
def join(values: list[int]) -> None:
    harness.joined(values)


def submit(parts: int) -> None:
    chord([part.s(n) for n in range(parts)])(join.s())


def commands(workers: int) -> list[list[str]]:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    return [[sys.executable, "-m", "celery", "-A", "on_celery", "worker", "--concurrency", str(workers), *quiet]]


if __name__ == "__main__":
    harness.measure(submit, commands)
