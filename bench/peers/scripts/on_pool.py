"""concurrent.futures.ProcessPoolExecutor.map, in chunks: nothing is durable."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

import harness


def part(n: int) -> int:
    return n


if __name__ == "__main__":
    chunk = int(os.environ.get("FANIN_PEER_CHUNK", "1"))
    pools: list[ProcessPoolExecutor] = []

    def submit(parts: int) -> None:
        if not pools:
            pools.append(ProcessPoolExecutor(int(os.environ["FANIN_PEER_WORKERS"])))
        harness.joined(pools[0].map(part, range(parts), chunksize=chunk))

    harness.measure(submit)
