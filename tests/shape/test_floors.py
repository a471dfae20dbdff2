"""The floors hold: imports go down, and the package contains what it needs when it is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import fanin

ROOT = Path(__file__).resolve().parents[2]


def lint_imports(directory: Path) -> tuple[int, str]:
    program = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as c; c()",
        "--no-cache",
    ]
    done = subprocess.run(program, cwd=directory, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_imports_go_down_the_floors_only() -> None:
    status, said = lint_imports(ROOT)
    assert status == 0, said


def test_an_import_that_goes_up_is_caught(tmp_path: Path) -> None:
    package = tmp_path / "fanin"
    for floor in ("domain", "protocol", "stores", "runtime", "cli", "testing"):
        (package / floor).mkdir(parents=True)
        (package / floor / "__init__.py").write_text("")
    for module in ("__init__", "app", "aio"):
        (package / f"{module}.py").write_text("")
    contracts = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(contracts[contracts.index("[tool.importlinter]") :])
    assert lint_imports(tmp_path)[0] == 0
    (package / "protocol" / "submit.py").write_text("import fanin.stores\n")
    status, said = lint_imports(tmp_path)
    assert status == 1
    assert "fanin.protocol.submit -> fanin.stores" in said


def test_one_version_is_written_down() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == fanin.__version__
