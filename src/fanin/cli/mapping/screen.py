"""What a map writes: the parts' output to standard output, everything else to standard error, one live line below."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from typing import Any

import msgspec

PLAIN_SECONDS = 5.0
"""Without a terminal, so often a line of progress."""
ERASE = "\r\x1b[2K"


class Screen:
    """Safe to use from several threads. ``broken`` is set when nobody reads standard output any more."""

    def __init__(self, *, quiet: bool, json: bool) -> None:
        self.json = json
        self.quiet = quiet
        self.broken = threading.Event()
        self._live = sys.stderr.isatty() and not quiet and not json
        self._plain = not self._live and not quiet and not json
        self._colour = self._live and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._on_terminal = sys.stdout.isatty()
        self._lock = threading.Lock()
        self._line = ""
        self._shown = time.monotonic()

    def output(self, *pieces: bytes, error: bool = False) -> None:
        """What a command has written, byte by byte, to the stream that it wrote to."""
        stream = sys.stderr.buffer if error else sys.stdout.buffer
        with self._lock:
            self._erase()
            try:
                for piece in pieces:
                    if piece:
                        stream.write(piece)
                        if self._on_terminal and not piece.endswith(b"\n"):
                            stream.write(b"\n")  # else the live line would erase its end
                stream.flush()
            except BrokenPipeError:
                self._forget_stdout()
            self._draw()

    def event(self, **fields: Any) -> None:
        """A JSON line, with ``--json``."""
        if self.json:
            self.output(msgspec.json.encode(fields) + b"\n")

    def note(self, text: str) -> None:
        """A line for people, not shown with ``--quiet``."""
        if not self.quiet:
            self.problem(text)

    def problem(self, text: str) -> None:
        """A line that is always shown."""
        with self._lock:
            self._erase()
            print(f"fanin: {text}", file=sys.stderr, flush=True)
            self._draw()

    def progress(self, line: str, failed: int, *, last: bool = False) -> None:
        """Show the state: in place on a terminal, else a line every few seconds and at the end."""
        with self._lock:
            if self._live:
                width = shutil.get_terminal_size().columns
                text = line if len(line) < width else line[: max(width - 2, 1)] + "…"
                if self._colour:
                    text = _coloured(text, failed)
                self._line = text
                self._erase()
                self._draw()
                if last:
                    print(file=sys.stderr, flush=True)
                    self._line = ""
            elif self._plain and (last or time.monotonic() - self._shown >= PLAIN_SECONDS):
                self._shown = time.monotonic()
                print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal clean."""
        with self._lock:
            self._erase()
            self._line = ""

    def _erase(self) -> None:
        if self._line:
            print(ERASE, end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._line:
            print(self._line, end="", file=sys.stderr, flush=True)

    def _forget_stdout(self) -> None:
        """The reader is gone. What is still buffered must not raise again when the interpreter ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.broken.set()


def _coloured(line: str, failed: int) -> str:
    start, end = line.find("█"), line.rfind("█")
    if failed:
        line = line.replace(f"failed {failed}", f"\x1b[31mfailed {failed}\x1b[0m")
    if start >= 0:
        line = f"{line[:start]}\x1b[32m{line[start : end + 1]}\x1b[0m{line[end + 1 :]}"
    return line
