"""The account at the end of the demo: what the database says about the job, and whether the book is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from pypdf import PdfReader
from rich.table import Table

import fanin
from examples.book.binding import first_pages


def take(job: fanin.Job, wall_seconds: float) -> dict[str, Any]:
    """The numbers, from the database."""
    row, successor = job.row(), job.successor
    assert successor is not None, "taken after the book is bound"
    book = successor.result()
    chapters = list(job.results())
    checked = subprocess.run([sys.executable, "-m", "fanin", "check", "--json"], stdout=subprocess.PIPE, check=False)
    rules = json.loads(checked.stdout)["checks"]
    return job.account() | {
        "results": len(chapters),
        "rules": len(rules),
        "rules_broken": [rule["sentence"] for rule in rules if rule["violations"]],
        "pages": book.pages,
        "book": book.path,
        "wall_seconds": round(wall_seconds, 2),
        "printing_seconds": round((row.finished_at or 0) - row.created_at, 2),
        "cpu_seconds": round(sum(chapter.seconds for chapter in chapters) + book.seconds, 2),
    }


def table(account: dict[str, Any], workers: int, one_worker_seconds: float | None) -> Table:
    wall, parts = account["wall_seconds"], account["printing_seconds"]
    rows = {
        "parts": f"{account['parts']:,}, with {account['results']:,} results",
        "attempts": f"{account['attempts']:,}",
        "leases lost": account["leases_lost"],
        "stale commits refused": account["stale_refused"],
        "ends": account["ends"],
        "events": account["events"],
        "successors": account["successors"],
        "fanin check": f"{account['rules'] - len(account['rules_broken'])} of {account['rules']} rules hold",
        "pages of the book": f"{account['pages']:,}",
        f"with {workers} workers": f"{wall:.1f} s; the parts {parts:.1f} s, the binding {wall - parts:.1f} s",
    }
    if one_worker_seconds is None:
        rows["with one worker"] = f"over {account['cpu_seconds']:.1f} s (processor time of all parts and the binding)"
    else:
        rows["with one worker"] = f"{one_worker_seconds:.1f} s, measured, undisturbed"
    grid = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        grid.add_row(f"[dim]{name}", str(value))
    return grid


def broken_promises(job: fanin.Job, account: dict[str, Any], faults: bool) -> Iterator[str]:
    """Everything that is not as it should be, a sentence each."""
    for name in ("ends", "events", "successors"):
        if account[name] != 1:
            yield f"the job has {account[name]} {name}, not 1"
    yield from (f"broken: {rule}" for rule in account["rules_broken"])
    if account["results"] != account["parts"]:
        yield f"{account['results']} of {account['parts']} parts have a result"
    if faults and account["leases_lost"] < 2:
        yield f"a worker was killed and one paused, yet only {account['leases_lost']} leases were lost"
    if faults and account["stale_refused"] < 1:
        yield "the paused worker's late commit was not refused"
    chapters = list(job.results())
    starts = first_pages(chapters)
    reader = PdfReader(account["book"])
    if not len(reader.pages) == account["pages"] == starts[-1] + chapters[-1].pages - 1:
        yield f"the book has {len(reader.pages)} pages, not {account['pages']}"
        return
    for chapter, start in zip(chapters, starts, strict=True):
        contents = reader.pages[start - 1].get_contents()
        if contents is None or f"({chapter.title}) Tj".encode() not in contents.get_data():
            yield f"page {start} is not the first of {chapter.title}"
