"""The book of `examples/book`, rendered and bound in one process: what a reader would complain about."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("fpdf")
pypdf = pytest.importorskip("pypdf")

from examples.book.binding import Chapter, bind, contents_pages  # noqa: E402
from examples.book.render import COLUMNS, ROWS, ROWS_FIRST_PAGE, render  # noqa: E402

STDLIB = Path(sysconfig.get_paths()["stdlib"])


def printed(tmp_path: Path, source: str | bytes, title: str = "a_module") -> Chapter:
    file = tmp_path / f"{title}.py"
    file.write_bytes(source if isinstance(source, bytes) else source.encode())
    target = tmp_path / f"{title}.pdf"
    size = render(file, title, target)
    return Chapter(title=title, path=str(target), pages=size.pages, lines=size.lines)


def text_of(path: str | Path) -> list[str]:
    return [page.extract_text() for page in pypdf.PdfReader(path).pages]


def test_every_line_is_printed_once_in_order_with_its_number(tmp_path: Path) -> None:
    chapter = printed(tmp_path, "".join(f"marker_{n} = {n}\n" for n in range(1, 301)))
    rows = [row.split() for page in text_of(chapter.path) for row in page.splitlines() if "marker_" in row]
    assert rows == [[str(n), f"marker_{n}", "=", str(n)] for n in range(1, 301)]
    assert chapter.lines == 300


@pytest.mark.parametrize(
    ("lines", "pages"),
    [
        (0, 1),
        (1, 1),
        (ROWS_FIRST_PAGE, 1),
        (ROWS_FIRST_PAGE + 1, 2),
        (ROWS_FIRST_PAGE + ROWS, 2),
        (ROWS_FIRST_PAGE + ROWS + 1, 3),
    ],
)
def test_the_page_count_is_that_of_the_file_and_no_page_is_empty(tmp_path: Path, lines: int, pages: int) -> None:
    chapter = printed(tmp_path, "pass\n" * lines)
    assert chapter.pages == pages == len(pypdf.PdfReader(chapter.path).pages)
    assert all(page.strip() for page in text_of(chapter.path))


def test_a_long_line_goes_on_in_the_next_row_and_loses_nothing(tmp_path: Path) -> None:
    value = "x" * (2 * COLUMNS + 10)
    text = "".join(text_of(printed(tmp_path, f"{value}\n").path))
    assert text.count("x") == len(value)
    assert text.count("+") == 2


def test_a_character_that_the_font_lacks_is_printed_as_its_escape(tmp_path: Path) -> None:
    text = "".join(text_of(printed(tmp_path, 's = "caf\u00e9 \u03b1 \u4e2d \U0001f40d"\n').path))
    assert '"caf\u00e9 \\u03b1 \\u4e2d \\U0001f40d"' in text


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"\n",
        b"no newline at the end",
        b"# -*- coding: no-such-codec -*-\nx = 1\n",
        b"\xff\xfe\x00broken utf-8",
        bytes(range(256)),
        b"def f(:\n    '''never closed\n",
        b"x = 1\r\ny = 2\r\rz = 3\n",
        b"\x0cclass Page:\n\tx = '\x00\x1b\x7f'\n",
        "\ufeffx = '\u2028\u2029\x85'\n".encode(),
        b"x = '" + bytes(c for c in range(128, 256)) + b"'\n",
        b"(" * 5000,
    ],
    ids=repr,
)
def test_no_source_is_refused(tmp_path: Path, source: bytes) -> None:
    chapter = printed(tmp_path, source)
    assert len(text_of(chapter.path)) == chapter.pages >= 1


@pytest.mark.parametrize("module", ["encodings/cp037.py", "unittest/mock.py", "this.py", "html/entities.py"])
def test_real_modules_give_the_same_bytes_each_time(tmp_path: Path, module: str) -> None:
    digests = set()
    for copy in ("first.pdf", "second.pdf"):
        render(STDLIB / module, module, tmp_path / copy)
        digests.add(hashlib.sha256((tmp_path / copy).read_bytes()).hexdigest())
    assert len(digests) == 1


def bound(tmp_path: Path, lengths: dict[str, int]) -> tuple[list[Chapter], Path, int]:
    chapters = [
        printed(tmp_path, f"here_is_{title.replace('.', '_')} = 1\n" * n, title) for title, n in lengths.items()
    ]
    target = tmp_path / "book.pdf"
    return chapters, target, bind(chapters, target)


def test_chapters_follow_in_the_order_given_and_the_contents_name_their_pages(tmp_path: Path) -> None:
    chapters, target, pages = bound(tmp_path, {"zebra": 150, "ant": 3, "bee": 400})
    reader = pypdf.PdfReader(target)
    assert len(reader.pages) == pages == 1 + contents_pages(3) + sum(c.pages for c in chapters)
    text = text_of(target)
    listed = [(title, int(page)) for title, page in re.findall(r"^(\w+)\s[ .]+\s(\d+)$", text[1], re.MULTILINE)]
    assert [title for title, _ in listed] == ["zebra", "ant", "bee"]
    for title, page in listed:
        assert f"1  here_is_{title}" in text[page - 1]
        assert text[page - 1].rstrip().endswith(str(page)), "the number at the foot"


def test_bookmarks_and_links_of_the_contents_go_to_the_same_pages(tmp_path: Path) -> None:
    _, target, _ = bound(tmp_path, {"pack": 100, "pack.inner": 1, "other": 1})
    reader = pypdf.PdfReader(target)
    first, nested, second = reader.outline
    assert [first["/Title"], nested[0]["/Title"], second["/Title"]] == ["pack", "pack.inner", "other"]
    bookmarks = [reader.get_destination_page_number(d) for d in (first, nested[0], second)]
    links = [reader.get_page_number(a.get_object()["/Dest"][0].get_object()) for a in reader.pages[1]["/Annots"]]
    assert links == bookmarks == [2, 4, 5]


def test_a_chapter_that_is_not_as_reported_stops_the_binding_and_leaves_the_old_book(tmp_path: Path) -> None:
    chapters, target, _ = bound(tmp_path, {"one": 10, "two": 10})
    before = target.read_bytes()
    wrong = Chapter(title="two", path=chapters[1].path, pages=7, lines=10)
    with pytest.raises(ValueError, match="has not the 7 pages"):
        bind([chapters[0], wrong], target)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
