"""One Python module to PDF pages: a title, numbered lines, coloured by the tokenizer.

Nothing in this file knows about fanin: it is the work that the demo fans out.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from fpdf import FPDF

PAGE_SIZE_PT = (504, 720)
MARGIN_PT = 50
FONT_SIZE_PT, LEADING_PT = 7.4, 9.6
CHARACTER_PT = 0.6 * FONT_SIZE_PT  # each character of Courier is 0.6 em wide
COLUMNS = 84
ROWS_FIRST_PAGE, ROWS = 56, 63

Run = tuple[str, str]  # style, text

STYLES = {  # emphasis of Courier, colour
    "plain": ("", (0, 0, 0)),
    "keyword": ("B", (31, 78, 158)),
    "name": ("B", (0, 0, 0)),
    "string": ("", (46, 107, 52)),
    "comment": ("I", (110, 110, 110)),
    "number": ("", (154, 74, 0)),
    "gutter": ("", (168, 168, 168)),
}
STYLE_OF_TOKEN = {tokenize.COMMENT: "comment", tokenize.NUMBER: "number", tokenize.STRING: "string"} | {
    getattr(tokenize, name): "string"
    for name in (
        "FSTRING_START",
        "FSTRING_MIDDLE",
        "FSTRING_END",
        "TSTRING_START",
        "TSTRING_MIDDLE",
        "TSTRING_END",
    )
    if hasattr(tokenize, name)
}
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


@dataclass(frozen=True)
class Size:
    """How much was printed."""

    pages: int
    lines: int


def render(source: Path, title: str, target: Path) -> Size:
    """Print the file `source` to the PDF file `target`. Any file can be printed, also one that is not Python.

    `target` exists, empty, from the start. The same source gives the same bytes, whoever prints it and how often.
    """
    with target.open("wb") as file:
        return write_pages(read(source), title, file)


def write_pages(text: str, title: str, file: BinaryIO) -> Size:
    lines = coloured(text)
    rows = numbered_rows(lines)
    pdf = FPDF(unit="pt", format=PAGE_SIZE_PT)
    pdf.set_creation_date(datetime(2000, 1, 1, tzinfo=UTC))
    pdf.set_title(printable(title))
    page = list(islice(rows, ROWS_FIRST_PAGE))
    while page or not pdf.pages:
        pdf.add_page()
        top = running_head(pdf, title) if pdf.page > 1 else opening(pdf, title, summary(text, len(lines)))
        for at, row in enumerate(page):
            print_row(pdf, top + at * LEADING_PT, row)
        page = list(islice(rows, ROWS))
    pdf.output(file)
    return Size(pdf.page, len(lines))


def read(source: Path) -> str:
    """The text of a source file in its declared encoding, or in Latin-1, which reads any bytes."""
    data = source.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        text = data.decode("latin-1")
    # A form feed means "new page" to a printer and nothing to Python.
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", "").expandtabs()


def coloured(text: str) -> list[list[Run]]:
    """The lines of `text`, each as runs of one style. What cannot be tokenized stays plain."""
    lines = text.removesuffix("\n").split("\n") if text else []
    spans: list[list[tuple[int, int, str]]] = [[] for _ in lines]
    try:
        for style, (first, start), (last, end) in styled_tokens(text):
            for row in range(first, min(last, len(lines)) + 1):
                left = start if row == first else 0
                right = end if row == last else len(lines[row - 1])
                spans[row - 1].append((left, right, style))
    except (SyntaxError, tokenize.TokenError):
        pass  # Some files of the library are wrong on purpose; the tokens so far are coloured.
    return [list(runs(line, marks)) for line, marks in zip(lines, spans, strict=True)]


def styled_tokens(text: str) -> Iterator[tuple[str, tuple[int, int], tuple[int, int]]]:
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        style = STYLE_OF_TOKEN.get(token.type)
        if token.type == tokenize.NAME:
            if keyword.iskeyword(token.string):
                style = "keyword"
            elif before in ("def", "class"):
                style = "name"
        before = token.string
        if style:
            yield style, token.start, token.end


def runs(line: str, marks: list[tuple[int, int, str]]) -> Iterator[Run]:
    at = 0
    for left, right, style in marks:
        if left > at:
            yield "plain", printable(line[at:left])
        if right > left:
            yield style, printable(line[left:right])
        at = right
    if at < len(line):
        yield "plain", printable(line[at:])


def printable(text: str) -> str:
    """`text` with only characters that the PDF core fonts have; others as Python would escape them."""
    if text.isascii() and text.isprintable():
        return text
    composed = unicodedata.normalize("NFC", text).translate(CONTROLS)
    return composed.encode("latin-1", "backslashreplace").decode("latin-1")


def numbered_rows(lines: list[list[Run]]) -> Iterator[list[Run]]:
    """Rows of at most COLUMNS characters; a line that is longer goes on in a row without a number."""
    for number, line in enumerate(lines, 1):
        row, room = [("gutter", f"{number:5}  ")], COLUMNS
        for style, text in line:
            while len(text) > room:
                row.append((style, text[:room]))
                yield row
                text = text[room:]
                row, room = [("gutter", "    +  ")], COLUMNS
            row.append((style, text))
            room -= len(text)
        yield row


def print_row(pdf: FPDF, y: float, row: list[Run]) -> None:
    x = float(MARGIN_PT)
    for style, text in row:
        emphasis, colour = STYLES[style]
        pdf.set_font("Courier", emphasis, FONT_SIZE_PT)
        pdf.set_text_color(*colour)
        pdf.text(x, y, text)
        x += CHARACTER_PT * len(text)


def summary(text: str, lines: int) -> str:
    """The first line of the module's docstring, if it has one, and its length."""
    try:
        with warnings.catch_warnings(action="ignore"):
            doc = ast.get_docstring(ast.parse(text)) or ""
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        doc = ""
    first = printable(doc.partition("\n")[0].strip())[:90]
    return " ".join(filter(None, [first, f"({lines:,} lines)"]))


def opening(pdf: FPDF, title: str, line: str) -> float:
    pdf.set_text_color(0)
    pdf.set_font("Helvetica", "B", 20 if len(title) < 34 else 13)
    pdf.text(MARGIN_PT, 72, printable(title))
    pdf.set_font("Helvetica", "I", 9)
    pdf.text(MARGIN_PT, 92, line)
    pdf.set_line_width(0.8)
    pdf.line(MARGIN_PT, 102, PAGE_SIZE_PT[0] - MARGIN_PT, 102)
    return 124


def running_head(pdf: FPDF, title: str) -> float:
    pdf.set_text_color(0)
    pdf.set_font("Helvetica", "", 8)
    pdf.text(MARGIN_PT, 36, printable(title))
    pdf.set_line_width(0.3)
    pdf.line(MARGIN_PT, 41, PAGE_SIZE_PT[0] - MARGIN_PT, 41)
    return 58
