"""The first program of the README, on both databases, as a newcomer runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fanin
from tests.stories.documents import ROOT, Block, Shell, blocks

README = (ROOT / "README.md").read_text("utf-8")
SQLITE_URL = "sqlite:///fanin.db"


def first_program() -> Block:
    return next(block for block in blocks(README) if block.language == "python")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "new"
    folder.mkdir()
    opened = Shell(folder)
    yield opened
    opened.close()


def test_the_first_program_has_at_most_fifteen_lines_of_code() -> None:
    lines = [line for line in first_program().text.splitlines() if line.strip()]
    assert len(lines) <= 15


def test_the_first_program_runs_on_each_database_with_only_the_url_changed(shell: Shell, migrated_url: str) -> None:
    block = first_program()
    assert block.text.count(SQLITE_URL) == 1
    shell.run("README.md", block._replace(text=block.text.replace(SQLITE_URL, migrated_url)))

    app = fanin.App(migrated_url)
    (successor, job) = app.jobs()
    app.close()
    assert (job.status, job.outcome) == ("completed", "all_ok")
    assert (successor.status, successor.parent_id) == ("completed", job.id)


def test_the_first_program_can_be_run_twice(shell: Shell) -> None:
    shell.run("README.md", first_program())
    shell.run("README.md", first_program())
