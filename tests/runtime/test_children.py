"""Processes for handlers import the program that started them, and do not run it a second time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fanin

SCRIPT = """
import sys
import fanin

app = fanin.App(sys.argv[1])

@app.task(mode="process", lease="60s")
def double(n: int) -> int:
    return 2 * n

def main():
    job = app.map(double, range(4))
    app.run_worker(until_idle=True)
    print(list(job.results()))
"""
CARELESS = "main()\n"
CAREFUL = 'if __name__ == "__main__":\n    main()\n'


def run(url: str, folder: Path, end: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT + end)
    return subprocess.run(
        [sys.executable, str(folder / "script.py"), url], capture_output=True, text=True, timeout=240, cwd=folder
    )


def test_a_script_with_a_main_guard_runs_its_handlers_in_processes(migrated_url: str, tmp_path: Path) -> None:
    done = run(migrated_url, tmp_path, CAREFUL)
    assert (done.returncode, done.stdout) == (0, "[0, 2, 4, 6]\n"), done.stderr


def test_a_script_without_a_main_guard_is_told_so_and_submits_nothing_twice(migrated_url: str, tmp_path: Path) -> None:
    done = run(migrated_url, tmp_path, CARELESS)
    assert done.returncode == 1
    assert 'put what the script does under  if __name__ == "__main__":' in done.stderr
    assert "mode='process': no process for handlers can be started" in done.stderr
    app = fanin.App(migrated_url)
    assert len(app.jobs()) == 1
    app.close()
