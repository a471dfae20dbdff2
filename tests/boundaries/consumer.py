"""A consumer as a program of its own: python -m tests.boundaries.consumer KIND ADDRESS KEY BARRIER PARTIES [dies].

It waits for the others at the barrier, takes one delivery and prints whether its change was made. With ``dies`` it is
killed between its change and its commit.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from fanin import inbox
from fanin.testing.barrier import FileBarrier
from tests.boundaries.clerks import CLERKS


def main() -> None:
    kind, address, key, barrier, parties, *dies = sys.argv[1:]
    clerk = next(known for known in CLERKS if known.__name__ == kind)(address)

    def change(connection: Any) -> bool:
        fresh = inbox.once(connection, "billing", key)
        if fresh:
            clerk.put(connection, f"billing {key}")
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return fresh

    FileBarrier(barrier, int(parties)).wait(120)
    print(clerk.within(change))


if __name__ == "__main__":
    main()
