"""The book as a fanin app: one part prints one module, the successor binds the pages.

Workers find this app as `examples.book.tasks:app`. Two settings come from the environment, the same for all
processes: FANIN_URL, the database, and BOOK_DIR, the folder for the pages and the book.
"""

from __future__ import annotations

import os
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import fanin
from examples.book.binding import Chapter, bind
from examples.book.render import render

BOOK_DIR = Path(os.environ.get("BOOK_DIR", "book-demo"))
NOT_LIBRARY = {"__pycache__", "dist-packages", "idlelib", "site-packages", "test", "tests"}

app = fanin.App(os.environ.get("FANIN_URL", f"sqlite:///{BOOK_DIR}/fanin.db"))


@dataclass(frozen=True)
class Module:
    """A source file of the standard library, and the name by which it is imported."""

    title: str
    source: str


@dataclass(frozen=True)
class Book:
    """The bound book; it took `seconds` of processor time."""

    path: str
    pages: int
    seconds: float


@app.task(attempts=5, lease="2s", timeout="2m")
def print_module(module: Module) -> Chapter:
    """A part. It may run more than once, also at the same time, so each attempt writes to a file of its own."""
    started = time.thread_time()
    part = fanin.current()
    pages = BOOK_DIR / "pages" / f"{part.idx:04}-{part.attempt}.pdf"
    pages.parent.mkdir(parents=True, exist_ok=True)
    draft = pages.with_name(f".{pages.name}.{os.getpid()}")
    size = render(Path(module.source), module.title, draft)
    draft.replace(pages)
    return Chapter(module.title, str(pages), size.pages, size.lines, seconds=time.thread_time() - started)


@app.task(attempts=3, lease="20s")
def bind_book(chapters: fanin.Joined[Chapter]) -> Book:
    """The successor. It is started once, when every part is in, with the results in the order of the parts."""
    started = time.thread_time()
    book = BOOK_DIR / "book.pdf"
    pages = bind(list(chapters), book)
    return Book(str(book), pages, seconds=time.thread_time() - started)


def library(count: int | None = None) -> list[Module]:
    """The modules of this Python's standard library by name, or `count` of them, evenly spread."""
    root = Path(sysconfig.get_paths()["stdlib"])
    modules = []
    for file in root.rglob("*.py"):
        inside = file.relative_to(root)
        if not NOT_LIBRARY & set(inside.parts):
            title = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
            modules.append(Module(title, str(file)))
    modules.sort(key=lambda module: module.title)
    if count is None or count >= len(modules):
        return modules
    return [modules[at * len(modules) // count] for at in range(count)]
