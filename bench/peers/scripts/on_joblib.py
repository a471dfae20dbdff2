"""joblib.Parallel with its own processes and automatic batches: nothing is durable."""

from __future__ import annotations

import os

import harness
from joblib import Parallel, delayed


def part(n: int) -> int:
    return n


if __name__ == "__main__":

    def submit(parts: int) -> None:
        run = Parallel(n_jobs=int(os.environ["FANIN_PEER_WORKERS"]))
        harness.joined(run(delayed(part)(n) for n in range(parts)))

    harness.measure(submit)
