"""Huey: a chord, on Redis or in an SQLite file, with process workers."""

from __future__ import annotations

import sys
from pathlib import Path

import harness
from huey import RedisHuey, SqliteHuey, chord

where = harness.url()
huey = RedisHuey("peer", url=where) if where.startswith("redis:") else SqliteHuey("peer", filename=where)


@huey.task(name="part")
def part(n: int) -> int:
    return n


@huey.task(name="join")
def join(values: list[int]) -> None:
    harness.joined(values)


def submit(parts: int) -> None:
    tasks = harness.itself(__file__)
    tasks.huey.enqueue(chord([tasks.part.s(n) for n in range(parts)], tasks.join.s()))


def commands(workers: int) -> list[list[str]]:
    consumer = Path(sys.executable).parent / "huey_consumer"
    return [[str(consumer), "on_huey.huey", "-k", "process", "-w", str(workers), "-d", "0.01", "-m", "0.1", "-n", "-q"]]


if __name__ == "__main__":
    harness.measure(submit, commands)
