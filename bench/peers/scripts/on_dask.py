"""dask.distributed on one host: map, and one task over all the futures. Nothing is durable."""

from __future__ import annotations

import os

import harness
from distributed import Client, LocalCluster


def part(n: int) -> int:
    return n


def join(values: list[int]) -> None:
    harness.joined(values)


if __name__ == "__main__":
    itself = harness.itself(__file__)
    clients: list[Client] = []

    def submit(parts: int) -> None:
        if not clients:
            workers = int(os.environ["FANIN_PEER_WORKERS"])
            cluster = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            clients.append(Client(cluster))
        futures = clients[0].map(itself.part, range(parts), pure=False)
        clients[0].submit(itself.join, futures, pure=False).result()

    harness.measure(submit)
    for client in clients:
        client.shutdown()
