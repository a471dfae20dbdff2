"""Chapters to one book: title page, contents with page numbers, bookmarks, and a number at each foot.

Nothing in this file knows about fanin either: it is what happens once, when all the parts are in.
"""

from __future__ import annotations

import io
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fpdf import FPDF
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link
from pypdf.generic import (
    ArrayObject,
    DecodedStreamObject,
    DictionaryObject,
    Fit,
    IndirectObject,
    NameObject,
)

from examples.book.render import MARGIN_PT, PAGE_SIZE_PT, printable

ENTRIES_PER_PAGE = 46
ENTRY_PT = 13
FOLIO_PT = 8
DIGIT_PT = 0.556 * FOLIO_PT  # each digit of Helvetica is 0.556 em wide
WIDTH_PT, HEIGHT_PT = PAGE_SIZE_PT


@dataclass(frozen=True)
class Chapter:
    """A printed module: `path` is its PDF file, of `pages` pages; it took `seconds` of processor time."""

    title: str
    path: str
    pages: int
    lines: int
    seconds: float = 0.0


def bind(chapters: Sequence[Chapter], target: Path) -> int:
    """Write `chapters`, in the order given, as the book `target`, and return its number of pages.

    The book appears whole or not at all: it is written beside its final name, then renamed.
    """
    starts = first_pages(chapters)
    book = PdfWriter()
    book.append(PdfReader(front_matter(chapters, starts)), import_outline=False)
    bookmarks: dict[str, IndirectObject] = {}
    for chapter, start in zip(chapters, starts, strict=True):
        book.append(chapter.path, import_outline=False)
        if len(book.pages) != start + chapter.pages - 1:
            raise ValueError(f"{chapter.path} has not the {chapter.pages} pages reported for {chapter.title}")
        package = bookmarks.get(chapter.title.rpartition(".")[0])
        bookmarks[chapter.title] = book.add_outline_item(
            title=chapter.title, page_number=start - 1, parent=package, is_open=False
        )
    number_pages(book, starts[0])
    link_contents(book, starts)
    book.add_metadata({"/Title": book_title()})
    book.page_mode = "/UseOutlines"
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    book.write(draft)
    os.replace(draft, target)
    return starts[-1] + chapters[-1].pages - 1


def book_title() -> str:
    return f"The Python {platform.python_version()} Standard Library"


def contents_pages(entries: int) -> int:
    return -(-entries // ENTRIES_PER_PAGE)


def first_pages(chapters: Sequence[Chapter]) -> list[int]:
    """The page, counted from 1, on which each chapter begins."""
    starts, page = [], 2 + contents_pages(len(chapters))
    for chapter in chapters:
        starts.append(page)
        page += chapter.pages
    return starts


def front_matter(chapters: Sequence[Chapter], starts: Sequence[int]) -> io.BytesIO:
    """The title page and the table of contents."""
    pdf = FPDF(unit="pt", format=PAGE_SIZE_PT)
    pdf.set_auto_page_break(False)
    pdf.add_page()
    centred(pdf, 260, book_title(), "B", 22)
    centred(pdf, 290, "Its source, printed", "", 12)
    lines, pages = sum(c.lines for c in chapters), starts[-1] + chapters[-1].pages - 1
    centred(pdf, 620, f"{len(chapters):,} modules, {lines:,} lines, {pages:,} pages", "I", 9)
    for at in range(0, len(chapters), ENTRIES_PER_PAGE):
        pdf.add_page()
        pdf.set_font("Helvetica", "B", 16)
        pdf.text(MARGIN_PT, 64, "" if at else "Contents")
        pdf.set_font("Helvetica", "", 9)
        for row, chapter in enumerate(chapters[at : at + ENTRIES_PER_PAGE]):
            contents_entry(pdf, entry_baseline(row), printable(chapter.title), str(starts[at + row]))
    return io.BytesIO(pdf.output())


def centred(pdf: FPDF, y: float, text: str, emphasis: str, size: float) -> None:
    pdf.set_font("Helvetica", emphasis, size)
    pdf.text((WIDTH_PT - pdf.get_string_width(text)) / 2, y, text)


def entry_baseline(row: int) -> float:
    return 84 + row * ENTRY_PT


def contents_entry(pdf: FPDF, y: float, title: str, page: str) -> None:
    right = WIDTH_PT - MARGIN_PT
    pdf.text(MARGIN_PT, y, title)
    # The dots end at the same place in each row, so they stand in columns.
    dot, end = pdf.get_string_width(". "), right - 30
    dots = max(0, int((end - MARGIN_PT - pdf.get_string_width(title) - 6) / dot))
    pdf.text(end - dots * dot, y, ". " * dots)
    pdf.text(right - pdf.get_string_width(page), y, page)


def link_contents(book: PdfWriter, starts: Sequence[int]) -> None:
    for entry, start in enumerate(starts):
        page, row = divmod(entry, ENTRIES_PER_PAGE)
        y = HEIGHT_PT - entry_baseline(row)  # PDF counts from the foot of the page, fpdf2 from its head
        area = (MARGIN_PT, y - 3, WIDTH_PT - MARGIN_PT, y + 9)
        link = Link(rect=area, target_page_index=start - 1, fit=Fit.fit(), border=[0, 0, 0])
        book.add_annotation(1 + page, link)


def number_pages(book: PdfWriter, first: int) -> None:
    """Print the page number at the foot of each page from page `first` on.

    Its few bytes become one more content stream of the page; `merge_page` would parse the whole page first.
    """
    font = book._add_object(
        DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
    )
    for number, page in enumerate(book.pages, 1):
        if number < first:
            continue
        text = str(number)
        left = (WIDTH_PT - len(text) * DIGIT_PT) / 2
        stream = DecodedStreamObject()
        stream.set_data(f"BT /Folio {FOLIO_PT} Tf 0 g 1 0 0 1 {left:.2f} 28 Tm ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = ArrayObject([page.raw_get("/Contents"), book._add_object(stream)])
        resources = cast(DictionaryObject, page["/Resources"])
        fonts = resources.setdefault(NameObject("/Font"), DictionaryObject()).get_object()
        fonts[NameObject("/Folio")] = font
