"""A private Redis server that appends every write to a file, synced every second: what its documentation advises."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

START_SECONDS = 10.0


@contextmanager
def redis() -> Iterator[str | None]:
    """Its URL, on a free port of 127.0.0.1; None if this machine has no ``redis-server``."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="fanin-redis-") as folder:
        process = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
             "--appendonly", "yes", "--appendfsync", "everysec"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _await(port, process)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait()


def empty(url: str) -> None:
    """Remove everything."""
    answer = _ask(int(url.rpartition(":")[2].partition("/")[0]), b"FLUSHALL\r\n")
    if not answer.startswith(b"+OK"):
        raise RuntimeError(f"Redis answered FLUSHALL with {answer!r}")


def version() -> str | None:
    """As the program says it, or None without one."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return next((word.removeprefix("v=") for word in said.split() if word.startswith("v=")), None)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if _ask(port, b"PING\r\n").startswith(b"+PONG"):
                return
        except OSError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"redis-server did not start on port {port}")
        time.sleep(0.05)


def _ask(port: int, command: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=START_SECONDS) as connection:
        connection.sendall(command)
        return connection.recv(1024)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
