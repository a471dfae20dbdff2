"""One live line for a job that is waited for: done of total, a bar, the rate, the failures."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from fanin.domain.model import Progress

PLAIN_SECONDS = 5.0
WINDOW_SECONDS = 5.0


class Rate:
    """Parts ended per second over the last few seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def add(self, ended: int) -> float:
        now = time.monotonic()
        self._seen.append((now, ended))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.pop(0)
        (since, first), (until, last) = self._seen[0], self._seen[-1]
        return (last - first) / (until - since) if until > since else 0.0


def line(found: Progress, rate: float, width: int = 24) -> str:
    """``1 200/1 200  ███████  100 %  412/s  failed 0``; a leading part of the bar per ended part."""
    ended = found.total - found.remaining
    full = int(found.fraction * width)
    bar = "█" * full + "░" * (width - full)
    tail = f"  abandoned {found.abandoned}" if found.abandoned else ""
    return (
        f"{ended:,}/{found.total:,}".replace(",", " ")
        + f"  {bar}  {int(found.fraction * 100)} %  {rate:,.0f}/s  failed {found.failed}{tail}"
    )


def watch(polls: Iterable[Progress]) -> None:
    """Show each poll on standard error: in place on a terminal, else a line every few seconds and at the end."""
    live = sys.stderr.isatty()
    rate = Rate()
    shown = time.monotonic()
    text = ""
    for found in polls:
        text = line(found, rate.add(found.total - found.remaining))
        if live:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - shown >= PLAIN_SECONDS and not found.ended:
            shown = time.monotonic()
            print(text, file=sys.stderr, flush=True)
    if text:
        print("" if live else text, file=sys.stderr, flush=True)
