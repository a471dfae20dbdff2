"""The command line as a whole: help, errors, exit codes, and what is imported for it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fanin.cli import COMMANDS, exits, main, overview
from tests.faces.terminal import Terminal

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def imported(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running ``code``."""
    said = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted(sys.modules), file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(said.stderr.split())


@pytest.mark.parametrize(
    "code", ["import fanin", "from fanin.cli import main; main(['--help'])", "from fanin.cli import main; main([])"]
)
def test_heavy_libraries_are_not_imported_for_fanin_itself_and_its_help(code: str) -> None:
    heavy = {"rich", "cyclopts", "apsw", "psycopg", "psycopg_pool", "pydantic", "pebble", "multiprocessing", "attrs"}
    assert imported(code) & heavy == set()


def test_a_command_imports_the_driver_of_its_database_alone(sqlite_url: str) -> None:
    found = imported(f"from fanin.cli import main; main(['jobs', '--json', '--url', {sqlite_url!r}])")
    assert found & {"apsw", "psycopg"} == {"apsw"}


def test_without_arguments_the_help_is_short_and_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == exits.OK
    said = capsys.readouterr().out
    assert said == overview() + "\n"
    assert "fanin map --then" in said
    assert len(said.splitlines()) <= 40
    assert all(f"  {name} " in said for name in COMMANDS)


def test_version(sqlite_terminal: Terminal) -> None:
    assert re.fullmatch(rb"fanin \d+\.\d+\.\d+\n", sqlite_terminal.run("--version").stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == exits.OK
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: fanin {name}")
    for option in ("--url", "--json", "--no-color", "--debug"):
        assert option in said


def options_of(name: str) -> set[str]:
    """The long options of a command, from its signature."""
    command = COMMANDS[name]
    function = getattr(import_module(f"fanin.cli.{command.module}"), command.function)
    found = set()
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.name == "common":
            continue
        meta = next((m for m in parameter.annotation.__metadata__ if type(m).__name__ == "Parameter"), None)
        if meta is not None and (meta.parse is False or meta.show is False):
            continue
        names = [meta.name] if meta is not None and isinstance(meta.name, str) else list((meta and meta.name) or [])
        found |= {n for n in names if n.startswith("--")} or {"--" + parameter.name.replace("_", "-")}
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_the_documentation_lists_exactly_the_options_that_exist(name: str) -> None:
    text = DOCUMENT.read_text("utf-8")
    section = re.search(rf"^## fanin {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/cli.md has no section on fanin {name}"
    first_cells = re.findall(r"^\| ([^|]*)\|", section[1], re.MULTILINE)
    documented = {option for cell in first_cells for option in re.findall(r"--[a-z][a-z-]*", cell)}
    assert documented == options_of(name)


def test_the_documentation_lists_every_exit_code() -> None:
    text = DOCUMENT.read_text("utf-8")
    codes = {value for name, value in vars(exits).items() if name.isupper()}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == codes


def test_an_error_is_one_line_that_names_the_value_and_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FANIN_URL", "sqlite:///fanin.db")
    for words, expected in [
        (["frob"], "'frob' is not a command"),
        (["jobs", "--limit", "0"], "--limit 0: give 1 to 10000"),
        (["jobs", "--limit", "many"], '"many"'),
        (["jobs", "--status", "odd"], "--status 'odd': there are open, running"),
        (["show", "none"], "there is no job 'none': `fanin jobs` lists them"),
        (["jobs", "--url", "mysql://x"], "'mysql://x' is not a database that fanin knows"),
        (["jobs", "--url", "sqlite://:memory:"], "name a file"),
        (["watch"], "requires an argument"),
        (["check", "--rows", "0"], "--rows 0: give 1 or more"),
        (["migrate", "--check", "--sql"], "choose one"),
        (["migrate", "--buckets", "8"], "an SQLite file is one shard"),
    ]:
        assert main(words) == exits.USAGE
        said = capsys.readouterr().err
        assert said.startswith("fanin: ")
        assert expected in said
        assert said.count("\n") == 1, said


def test_debug_shows_where_an_error_comes_from(sqlite_terminal: Terminal) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fanin", "show", "none", "--debug"], cwd=sqlite_terminal.folder,
        env=sqlite_terminal.environment, capture_output=True,
    )  # fmt: skip
    assert done.returncode != 0
    assert b"Traceback" in done.stderr
    assert b"UnknownJob" in done.stderr


def test_common_options_may_stand_before_the_command(sqlite_terminal: Terminal) -> None:
    assert sqlite_terminal.run("--url", "sqlite:///other.db", "--json", "jobs").stdout == b"[]\n"
    assert (sqlite_terminal.folder / "other.db").exists()
    assert not (sqlite_terminal.folder / "fanin.db").exists()


def test_a_reader_that_has_seen_enough_is_no_error(sqlite_terminal: Terminal) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m fanin migrate --sql | head -n 1; exit 0"], cwd=sqlite_terminal.folder,
        env=sqlite_terminal.environment, capture_output=True,
    )  # fmt: skip
    assert done.stderr == b""
