"""What a suite counted, for whoever wants to see it: one line of JSON for each test, in a file for each suite.

``FANIN_FIGURES=folder`` asks for the files; without it a line is only printed, and pytest shows it where a test fails.
A line is one write at the end of its file, so the processes of pytest-xdist can write side by side.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import apsw

from fanin import __version__

VARIABLE = "FANIN_FIGURES"


def record(suite: str, **counts: Any) -> None:
    """Note what the running test counted, beside the seed and the version of the server it was given.

    suite: the name of the file, such as ``network``. counts: numbers, texts, or dicts and lists of them.
    """
    entry = {
        "suite": suite,
        "test": os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)"),
        "counts": counts,
        "long": os.environ.get("FANIN_LONG") == "1",
        "versions": {"fanin": __version__, "python": platform.python_version(), "sqlite": apsw.sqlite_lib_version()},
    }
    line = json.dumps(entry, sort_keys=True) + "\n"
    print(line, end="")
    if folder := os.environ.get(VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        file = os.open(Path(folder) / f"{suite}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)


def recorded(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All lines in a folder, by suite."""
    return {
        path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }
