"""A barrier that processes can share: through one file, without a server, also across `fork` and `exec`."""

from __future__ import annotations

import fcntl
import os
import time

POLL_SECONDS = 0.002


class FileBarrier:
    """Everybody waits until ``parties`` have come; then it can be used again.

    path: a file that need not exist; the same path is the same barrier, in threads and in processes.
    """

    def __init__(self, path: str, parties: int) -> None:
        if parties < 1:
            raise ValueError(f"parties={parties}: at least 1")
        self.path = path
        self.parties = parties

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the others, at most ``timeout`` seconds. Returns the place of arrival, from 0.

        Raises TimeoutError; the place stays taken then, so give up the barrier as a whole.
        """
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # number and arrival are one step
            arrived = os.fstat(file).st_size
            os.write(file, b".")
            fcntl.flock(file, fcntl.LOCK_UN)
            full = (arrived // self.parties + 1) * self.parties
            deadline = time.monotonic() + timeout
            while os.fstat(file).st_size < full:
                if time.monotonic() > deadline:
                    missing = full - os.fstat(file).st_size
                    raise TimeoutError(f"{self.path}: {missing} of {self.parties} did not come within {timeout:g} s")
                time.sleep(POLL_SECONDS)
            return arrived % self.parties
        finally:
            os.close(file)
