"""Told by the kernel when a file is written to (Linux's inotify), which Python's library does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import os

_MODIFIED = 0x2
_EVENTS_BYTES = 4096


class FileWatch:
    """``fd`` becomes readable when the file was written to; None where the kernel cannot tell."""

    def __init__(self, path: str) -> None:
        self.fd: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # another system, no such file, or no watch left
            libc = ctypes.CDLL(None)
            fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _MODIFIED) < 0:
                os.close(fd)
            elif fd >= 0:
                self.fd = fd

    def told(self) -> bool:
        """Whether the file was written to since the last call."""
        found = False
        if self.fd is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.fd, _EVENTS_BYTES):
                    found = True
        return found

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
