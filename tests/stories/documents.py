"""The code in the documents, found and run.

A fenced block whose info string begins with ``python`` is run as a script, one that begins with ``console`` line by
line: what follows ``$ `` is given to bash, and the lines under it are the output that is expected (none: any).
``…`` stands for any text in a line, a line of it for any lines. More words in the info string: a file name saves the
block under it before it is run, ``no-run`` shows it only, ``fails`` expects a status other than 0. The blocks of one
document share a folder.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/coming-from").glob("*.md")),
]
POSTGRES_URL = "postgresql://fanin@db.example/app"
"""The database of the documents; a test puts a real one in its place."""
WORDS = {"no-run", "fails"}
LONGEST_SECONDS = 120


class Block(NamedTuple):
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file(self) -> str | None:
        return next((word for word in self.words if word not in WORDS), None)

    @property
    def runs(self) -> bool:
        return self.language in ("python", "console") and "no-run" not in self.words


class Command(NamedTuple):
    line: str
    expected: tuple[str, ...]


def blocks(text: str) -> Iterator[Block]:
    """All fenced blocks. An unclosed one is a ValueError."""
    opened: tuple[int, str, list[str]] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        fence = re.match(r"```(.*)$", line)
        if fence is None:
            if opened is not None:
                opened[2].append(line)
        elif opened is None:
            opened = (number, fence[1].strip(), [])
        else:
            language, *words = opened[1].split() or [""]
            yield Block(opened[0], language, tuple(words), "\n".join(opened[2]) + "\n")
            opened = None
    if opened is not None:
        raise ValueError(f"the block that begins in line {opened[0]} is not closed")


def commands(text: str) -> Iterator[Command]:
    """The commands of a console block, continuation lines joined, each with the output shown under it."""
    lines = text.splitlines()
    starts = [n for n, line in enumerate(lines) if line.startswith("$ ")]
    if not starts or starts[0] != 0:
        raise ValueError("a console block begins with '$ '")
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        last = start
        while lines[last].endswith("\\"):
            last += 1
        yield Command("\n".join(lines[start : last + 1])[2:], tuple(lines[last + 1 : end]))


def matches(expected: tuple[str, ...], said: str) -> bool:
    """Whether the output is as shown, spaces squeezed. ``…`` is any text in a line, a line of it any lines or none."""
    found = "".join(" ".join(line.split()) + "\n" for line in said.splitlines() if line.strip())
    pattern = "".join(_line_pattern(" ".join(line.split())) for line in expected if line.strip())
    return re.fullmatch(pattern, found) is not None


def _line_pattern(shown: str) -> str:
    if shown == "…":
        return r"(?:[^\n]*\n)*"
    return r"[^\n]*".join(re.escape(piece) for piece in re.split(r" ?… ?", shown)) + r"\n"


@dataclass
class Shell:
    """A folder in which the blocks of one document are run. ``url`` takes the place of `POSTGRES_URL`."""

    folder: Path
    url: str | None = None

    def __post_init__(self) -> None:
        self._groups: list[int] = []

    def run(self, document: str, block: Block) -> None:
        """Run one block. Raises AssertionError with its output if it is not as the document says."""
        where = f"{document}:{block.line}"
        text = block.text
        if self.url is not None:
            # A connection of the reader's own is opened by psycopg, which does not know our part of the URL.
            own = f'psycopg.connect("{POSTGRES_URL}")'
            text = text.replace(own, f'psycopg.connect("{self.url.partition("?")[0]}")').replace(POSTGRES_URL, self.url)
        if block.language == "python":
            file = self.folder / (block.file or f"block_{block.line}.py")
            file.write_text(text, "utf-8")
            self._run(where, [sys.executable, file.name], (), fails="fails" in block.words)
            return
        for command in commands(text):
            line = ["bash", "-c", command.line]
            self._run(where, line, command.expected, fails="fails" in block.words)

    def _run(self, where: str, line: list[str], expected: tuple[str, ...], *, fails: bool) -> None:
        log = self.folder.parent / f"{self.folder.name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                line, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._groups.append(process.pid)
            try:
                status = process.wait(LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{where}: {line[-1]}: not over after {LONGEST_SECONDS} s") from None
        said = log.read_text("utf-8", errors="replace")
        assert (status != 0) is fails, f"{where}: {line[-1]}: status {status}\n{said}"
        assert not expected or matches(expected, said), (
            f"{where}: {line[-1]}\nshown:\n" + "\n".join(expected) + f"\nsaid:\n{said}"
        )

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FANIN_", "PYTEST_"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")])
        return {**inherited, "PATH": path, "PYTHONPATH": "", "TERM": "dumb", "COLUMNS": "120", "NO_COLOR": "1"}

    def close(self) -> None:
        """End what the blocks left running in the background."""
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
