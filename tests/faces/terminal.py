"""A folder and a database in which a test runs ``fanin`` as a person would: by its command line."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from fanin.cli import main
from fanin.stores import open_store
from tests.runtime.rows import end_leases
from tests.support.freezing import freeze

PATIENCE_SECONDS = 90.0


class Terminal:
    """``run`` says a command and waits, ``start`` leaves it running in a session of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.running: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "FANIN_URL": url, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}

    def run(
        self, *words: str | bytes, code: int = 0, stdin: bytes = b"", **extra: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Raises AssertionError with all that was printed when the exit code is another."""
        done = subprocess.run(
            [sys.executable, "-m", "fanin", *words],
            cwd=self.folder,
            env=self.environment | extra,
            input=stdin,
            capture_output=True,
            timeout=PATIENCE_SECONDS,
        )
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        assert done.returncode == code, f"exit {done.returncode}, expected {code}:\n{said}"
        assert b"Traceback" not in done.stderr, said
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        """What a command answers to ``--json``. Called in this process: tests ask often, and a start is dear."""
        answer = io.TextIOWrapper(io.BytesIO(), "utf-8")
        with (
            contextlib.chdir(self.folder),
            mock.patch.dict(os.environ, {"FANIN_URL": self.environment["FANIN_URL"]}),
            contextlib.redirect_stdout(answer),
        ):
            found = main([*words, "--json"])
            answer.flush()
        assert isinstance(answer.buffer, io.BytesIO)
        said = answer.buffer.getvalue()
        assert found == code, f"exit {found}, expected {code}:\n{said.decode()}"
        return msgspec.json.decode(said)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fanin", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """kill -9 to the whole process group."""
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE_SECONDS)

    def freeze(self, process: subprocess.Popen[bytes]) -> None:
        """SIGSTOP; SIGCONT lets it go on."""
        store = open_store(self.url)
        freeze(process.pid, store)
        store.close()

    def expire(self, where: str = "true") -> None:
        """Let every lease that is held now (``where``: of these parts) end, as if its time had passed."""
        store = open_store(self.url)
        end_leases(store, where)
        store.close()

    def end(self, process: subprocess.Popen[bytes], code: int = 0) -> tuple[str, str]:
        """Wait for a started command. (what it printed, what it said on standard error)."""
        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        said = (stdout + stderr).decode("utf-8", "replace")
        assert process.returncode == code, f"exit {process.returncode}, expected {code}:\n{said}"
        assert b"Traceback" not in stderr, said
        return stdout.decode(), stderr.decode()

    def lines(self, name: str) -> list[str]:
        """The lines of a file in the folder; none if it is not there yet."""
        file = self.folder / name
        return file.read_text("utf-8").splitlines() if file.exists() else []

    def names(self) -> list[str]:
        """What the user sees in the folder, without the database and the test's own files."""
        return sorted(
            name for name in os.listdir(self.folder) if not name.startswith("fanin.db") and not name.endswith(".log")
        )

    def scratch(self) -> list[str]:
        """What is left below the scratch folder."""
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(".fanin/**/*") if path.is_file())

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must happen. The order of a test never depends on how long that takes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"did not happen: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
