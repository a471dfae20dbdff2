"""A private PostgreSQL from the programs on this machine, for a torture that may crash it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fanin.domain.errors import BadOption

START_SECONDS = 60
PACKAGED = "/usr/lib/postgresql"
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
fsync = on
synchronous_commit = on
"""


class PrivateServer:
    """One server in a folder of its own; gone afterwards."""

    def __init__(self, programs: Path, folder: Path, account: dict[str, Any]) -> None:
        self._programs = programs
        self.folder = folder
        self._account = account
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def url(self) -> str:
        return f"postgresql://fanin@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        self._run("initdb", "-U", "fanin", "-A", "trust", "-E", "UTF8", "--locale=C")
        with open(self.folder / "data" / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write(f"{_SETTINGS}port = {self.port}\n")
        self.start()

    def start(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._run("pg_ctl", "-l", str(self.folder / "log"), "-w", "-t", str(START_SECONDS), "start")
                return
            except BadOption:  # the memory of backends that are just dying blocks the next start for a moment
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def crash(self) -> None:
        """Stop without a checkpoint, as a power cut would, and start again: the log is replayed."""
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")
        self.start()

    def stop(self) -> None:
        self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), "-D", str(self.folder / "data"), *words], cwd="/",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C"}, **self._account,
        )  # fmt: skip
        if done.returncode:
            raise BadOption(f"--own-server: {program} failed: {done.stderr.strip()[-500:]}")


@contextlib.contextmanager
def private_server() -> Iterator[PrivateServer]:
    """A running server. Raises `BadOption` if there are no programs, or nobody to run them as."""
    account = _account()
    folder = Path(tempfile.mkdtemp(prefix="fanin-torture-pg-"))
    try:
        if account:
            os.chown(folder, account["user"], account["group"])
        server = PrivateServer(find_programs(), folder, account)
        server.create()
        try:
            yield server
        finally:
            with contextlib.suppress(BadOption):
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_programs() -> Path:
    """The folder with the newest ``initdb``, ``pg_ctl`` and ``postgres``. Raises `BadOption`."""
    packaged = [path.parent for path in Path(PACKAGED).glob("[0-9]*/bin/postgres")]
    found = sorted(packaged, key=lambda path: int(path.parts[-2]), reverse=True)
    if on_path := shutil.which("postgres"):
        found.append(Path(on_path).resolve().parent)
    for folder in found:
        if all((folder / program).exists() for program in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise BadOption("--own-server: no PostgreSQL programs here; install the package postgresql, or use --url")


def _account() -> dict[str, Any]:
    """PostgreSQL refuses root: then it runs as the user that its package has made, or as nobody."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise BadOption("--own-server: root may not run PostgreSQL and there is no user postgres or nobody")
