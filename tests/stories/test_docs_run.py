"""Every block of code in the documents is run as it stands, one document to a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stories.documents import DOCUMENTS, POSTGRES_URL, ROOT, Block, Shell, blocks, commands, matches

TEXTS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in DOCUMENTS}
RUNNABLE = {name: [block for block in blocks(text) if block.runs] for name, text in TEXTS.items()}


def needs_postgres(found: list[Block]) -> bool:
    return any(POSTGRES_URL in block.text for block in found)


ON_A_FILE = [name for name, found in RUNNABLE.items() if found and not needs_postgres(found)]
ON_POSTGRES = [name for name, found in RUNNABLE.items() if needs_postgres(found)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "reader"
    made.mkdir()
    return made


def read_along(document: str, shell: Shell) -> None:
    try:
        for block in RUNNABLE[document]:
            shell.run(document, block)
    finally:
        shell.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", ON_A_FILE)
def test_the_code_of_a_document_runs(document: str, folder: Path) -> None:
    read_along(document, Shell(folder))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("document", ON_POSTGRES)
def test_the_code_of_a_document_runs_with_its_server(document: str, folder: Path, pg_url: str) -> None:
    read_along(document, Shell(folder, pg_url))


def test_few_blocks_are_only_shown() -> None:
    shown = [
        f"{name}:{block.line}"
        for name, text in TEXTS.items()
        for block in blocks(text)
        if block.language in ("python", "console") and not block.runs
    ]
    assert len(shown) <= 8, shown


def test_a_console_block_is_its_commands_each_with_its_output() -> None:
    one, two = commands("$ echo a \\\n    b\na b\n$ true\n")
    assert one == ("echo a \\\n    b", ("a b",))
    assert two == ("true", ())


def test_an_output_matches_only_what_is_shown() -> None:
    assert matches(("job …", "3 parts"), "job 0198\n 3   parts\n")
    assert matches(("first", "…"), "first\nsecond\nthird\n")
    assert not matches(("job …", "3 parts"), "job 0198\n4 parts\n")
    assert not matches(("3 parts",), "13 parts\n")


def test_a_block_that_fails_or_says_something_else_fails_its_test(folder: Path) -> None:
    shell = Shell(folder)
    with pytest.raises(AssertionError, match="status 3"):
        shell.run("a.md", Block(1, "console", (), "$ exit 3\n"))
    with pytest.raises(AssertionError, match="status 0"):
        shell.run("a.md", Block(1, "console", ("fails",), "$ true\n"))
    with pytest.raises(AssertionError, match="shown"):
        shell.run("a.md", Block(1, "console", (), "$ echo 4\n5\n"))
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        shell.run("a.md", Block(1, "python", (), "1 / 0\n"))
