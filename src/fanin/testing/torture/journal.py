"""The history that each process writes: one JSON object a line, appended before the next thing happens.

A line that the kernel has taken outlives a kill -9 of its writer; only the last line of a file can be torn.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import msgspec


class Journal:
    """Appends to ``folder/NAME.jsonl``. Safe from several threads: a line is one write."""

    def __init__(self, folder: str, name: str) -> None:
        path = os.path.join(folder, f"{name}.jsonl")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def write(self, **facts: Any) -> None:
        os.write(self._file, msgspec.json.encode(facts) + b"\n")


def digest(text: str | None) -> str | None:
    """A short fingerprint of a result."""
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:20]


class Reader:
    """Reads what has been added to all journals of a folder since it was last asked."""

    def __init__(self, folder: str, prefix: str = "") -> None:
        self._folder = folder
        self._prefix = prefix
        self._offsets: dict[str, int] = {}

    def news(self) -> Iterator[dict[str, Any]]:
        for name in sorted(os.listdir(self._folder)):
            if not name.endswith(".jsonl") or not name.startswith(self._prefix):
                continue
            with open(os.path.join(self._folder, name), "rb") as file:
                file.seek(self._offsets.get(name, 0))
                data = file.read()
            whole = data.rfind(b"\n") + 1
            self._offsets[name] = self._offsets.get(name, 0) + whole
            for line in data[:whole].splitlines():
                yield msgspec.json.decode(line)
