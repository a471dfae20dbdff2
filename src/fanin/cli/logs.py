"""What workers say while they work: lines for people, or JSON lines, on standard error."""

from __future__ import annotations

import logging
import os
import sys
import time

import msgspec

FIELDS = ("job", "part", "attempt", "verdict", "status")
"""What a record may carry besides its message."""


class JsonLines(logging.Formatter):
    """One JSON object per record; the fields are listed in docs/cli.md."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": record.created, "level": record.levelname.lower(), "pid": os.getpid(), "message": record.getMessage(),
        }  # fmt: skip
        said |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(said).decode()


class Plain(logging.Formatter):
    """``12:30:05 warning message``, in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(lowlevel)s%(message)s", "%H:%M:%S")
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        record.lowlevel = "" if record.levelno == logging.INFO else f"{record.levelname.lower()} "
        return super().format(record)


def configure(*, json: bool) -> logging.Logger:
    """Send what ``fanin`` logs to standard error, and nothing twice."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else Plain())
    log = logging.getLogger("fanin")
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
    return log
