"""What is waited for, live: of a job one line, with done of total, a bar, the rate and the failures."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

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


def bar(fraction: float, width: int) -> str:
    full = int(fraction * width)
    return "█" * full + "░" * (width - full)


def line(found: Progress, rate: float, width: int = 24) -> str:
    """``1 200/1 200  ███████  100 %  412/s  failed 0``; a leading part of the bar per ended part."""
    ended = found.total - found.remaining
    tail = f"  abandoned {found.abandoned}" if found.abandoned else ""
    return (
        f"{ended:,}/{found.total:,}".replace(",", " ")
        + f"  {bar(found.fraction, width)}  {int(found.fraction * 100)} %  {rate:,.0f}/s  failed {found.failed}{tail}"
    )


def watch(polls: Iterable[Progress]) -> None:
    """Show each poll of a job."""
    rate = Rate()
    show(([line(found, rate.add(found.total - found.remaining))], found.ended) for found in polls)


def show(looks: Iterable[tuple[Sequence[str], bool]]) -> None:
    """Show each look (its lines, and whether it is the last) on standard error: in place on a terminal, else the last
    of the lines every few seconds and at the end."""
    live = sys.stderr.isatty()
    shown = time.monotonic()
    lines: Sequence[str] = ()
    try:
        for found, ended in looks:
            up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
            lines = found
            if live:
                print(f"{up}\r\x1b[J" + "\n".join(lines), end="", file=sys.stderr, flush=True)
            elif time.monotonic() - shown >= PLAIN_SECONDS and not ended:
                shown = time.monotonic()
                print(lines[-1], file=sys.stderr, flush=True)
    finally:  # what is said next, of a time-out or of Ctrl-C too, has a line of its own
        if lines:
            print("" if live else lines[-1], file=sys.stderr, flush=True)
