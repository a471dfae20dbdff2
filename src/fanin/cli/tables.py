"""How jobs and times look to people."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from fanin.domain.identity import SCHEDULED
from fanin.domain.model import Finding, JobRow, Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LEAST_CHARS = 12
"""So much of a name stands on any terminal."""
ROOM_CHARS = 20
"""So much of it before a column that may be left out."""
STATUS_COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "open": "cyan"}


def short(job_id: str) -> str:
    """As much of an id as a person needs to name the job."""
    return job_id[:13]


def number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def moment(at: float | None) -> str:
    """A time as an ISO text in UTC, to the second."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(at))


def status(row: JobRow) -> str:
    """The state, and the outcome where it says more."""
    more = {"with_failures": ", with failures", "partial": ", partial", "gave_up": ", gave up", "refused": ", refused"}
    return row.status + (", paused" if row.paused_at is not None else more.get(row.outcome or "", ""))


def name(row: JobRow) -> str:
    """What a person would call the job: the command of a map, else its key, its schedule, or its task."""
    meta = msgspec.json.decode(row.meta) if row.meta else None
    command = meta.get("command") if isinstance(meta, dict) and row.task == "fanin.map" else None
    return " ".join(command.split()) if command else row.key or _schedule(row) or row.task


def _schedule(row: JobRow) -> str | None:
    step = row.step or ""
    return step.removeprefix(SCHEDULED) if step.startswith(SCHEDULED) else None


def job_facts(row: JobRow, progress: Progress) -> dict[str, Any]:
    """A job for ``--json``: the fields that docs/cli.md lists."""
    return {
        "id": row.id, "key": row.key, "task": row.task, "queue": row.queue, "status": row.status,
        "outcome": row.outcome, "reason": row.reason, "run": row.run, "parts": progress.total,
        "remaining": progress.remaining, "succeeded": progress.succeeded, "failed": progress.failed,
        "abandoned": progress.abandoned, "attempts": row.attempts, "priority": row.priority,
        "parent": row.parent_id, "step": row.step, "created_at": row.created_at, "give_up_at": row.give_up_at,
        "finished_at": row.finished_at, "paused_at": row.paused_at,
    }  # fmt: skip


def finding_line(finding: Finding) -> str:
    return ", ".join(f"{key}={value}" for key, value in finding.row.items())


def text(value: str, style: str | None = None) -> Text:
    """A cell of `print_lines`."""
    from rich.text import Text

    return Text(value, style or "")


def print_lines(
    screen: Console,
    headings: Sequence[str],
    lines: Sequence[Sequence[Text]],
    *,
    cut: int,
    leave: Sequence[int] = (),
    right: Collection[int] = (),
    fold: Collection[int] = (),
    said: int | None = None,
) -> None:
    """A table in which a cut id, count or state would be wrong.

    Where it is too wide for the terminal, the free text of the column ``said`` goes below the table, the columns
    ``fold`` go on in a second line, and the column ``cut`` gives way; before it becomes too narrow, the columns
    ``leave`` are left out, one by one. ``right``: columns of numbers."""
    from rich.markup import escape
    from rich.table import Table

    widths = {n: max(len(heading), *(line[n].cell_len for line in lines)) for n, heading in enumerate(headings)}

    def over() -> int:
        return sum(widths.values()) + 2 * (len(widths) - 1) - screen.width

    below: list[tuple[str, str]] = []
    if said is not None and (over() > 0 or not any(line[said].plain for line in lines)):
        below = [(line[0].plain, line[said].plain) for line in lines if line[said].plain]
        del widths[said]
    for n in fold:
        if n != cut and n in widths and over() > 0:
            widths[n] = max(_halves(text) for text in (headings[n], *(line[n].plain for line in lines)))
    kept = min(widths[cut], ROOM_CHARS)
    for n in leave:
        if over() - widths[cut] + kept > 0:
            del widths[n]
    widths[cut] = max(widths[cut] - max(over(), 0), min(widths[cut], LEAST_CHARS))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for n, width in widths.items():
        table.add_column(
            headings[n], justify="right" if n in right else "left", width=width, no_wrap=n not in fold, overflow="fold"
        )
    for line in lines:
        if cut not in fold:
            line[cut].truncate(widths[cut], overflow="ellipsis")
        table.add_row(*(line[n] for n in widths))
    screen.print(table)
    for of, text in below:
        under(screen, "  ", escape(f"{of}: {text}"), "")


def _halves(text: str) -> int:
    """How wide a text is in two lines."""
    from rich.cells import cell_len

    words = text.split(" ")
    cuts = range(1, len(words) + 1)
    return min(max(cell_len(" ".join(words[:cut])), cell_len(" ".join(words[cut:]))) for cut in cuts)


def under(screen: Console, lead: str, markup: str, first: str | None = None) -> None:
    """A text of one or more lines. On a terminal those that are too long go on below; all are indented by ``lead``, but
    for the ``first``."""
    from rich.text import Text

    for line in Text.from_markup(markup).split("\n", allow_blank=True):
        start = lead if first is None else first
        fits = not screen.is_terminal or len(start) + line.cell_len <= screen.width
        for piece in [line] if fits else line.wrap(screen, max(screen.width - len(lead), LEAST_CHARS)):
            piece.rstrip()
            screen.print(Text(lead if first is None else first).append_text(piece), soft_wrap=True)
            first = None
