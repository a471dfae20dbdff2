"""CI forbids skips, shown by runs of pytest inside the test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, text: str, **environment: str) -> tuple[int, str]:
    (tmp_path / "test_it.py").write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.support.no_skips",
            "-c",
            os.devnull,
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "CI"} | environment,
    )
    return done.returncode, done.stdout.splitlines()[-1]


SKIPS = "import pytest\ndef test_it():\n    pytest.skip('no such server')\n"
SKIPS_THE_FILE = "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n"
FAILS_AS_EXPECTED = "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_it(): assert False\n"


def test_a_skip_fails_in_ci(tmp_path: Path) -> None:
    status, said = run(tmp_path, SKIPS, CI="true")
    assert (status, said.split(" in ")[0]) == (1, "1 failed")


def test_a_skipped_file_fails_in_ci(tmp_path: Path) -> None:
    status, said = run(tmp_path, SKIPS_THE_FILE, CI="true")
    assert status != 0
    assert "1 error" in said


def test_a_skip_is_a_skip_elsewhere(tmp_path: Path) -> None:
    status, said = run(tmp_path, SKIPS)
    assert (status, said.split(" in ")[0]) == (0, "1 skipped")


def test_an_expected_failure_is_no_skip(tmp_path: Path) -> None:
    status, said = run(tmp_path, FAILS_AS_EXPECTED, CI="true")
    assert (status, said.split(" in ")[0]) == (0, "1 xfailed")
