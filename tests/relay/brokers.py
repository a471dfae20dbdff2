"""Real servers, each started by the test that wants it, on a free port, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(*names: str) -> str:
    """The path of the first program that is here. Debian keeps servers where an ordinary PATH does not look."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    raise FileNotFoundError(f"none of {', '.join(names)} is installed; these tests start it themselves")


class Broker:
    """A server process. ``restart`` keeps its port and its data."""

    def __init__(self, command: list[str], port: int, env: dict[str, str] | None = None) -> None:
        self.command = command
        self.port = port
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        self.process = subprocess.Popen(
            self.command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (ready or self.listens)():
            assert self.process.poll() is None, f"{self.command[0]} ended with {self.process.returncode}"
            assert time.monotonic() < deadline, f"{self.command[0]} did not come up"
            time.sleep(0.02)

    def listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None
            if "ERL_EPMD_PORT" in self.env:
                self._kill_directory()

    def _kill_directory(self) -> None:
        """Erlang's directory of nodes outlives them, and refuses to end until it has noticed that they are gone."""
        said = b"living nodes"
        while b"living nodes" in said:
            said = subprocess.run([program("epmd"), "-kill"], env=self.env, capture_output=True, check=False).stdout
            time.sleep(0.02)


def redis_server(directory: Path) -> Broker:
    port = free_port()
    words = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--appendonly", "yes"]
    return Broker([program("redis-server"), *words, "--appendfsync", "always", "--save", ""], port)


def nats_server(directory: Path) -> Broker:
    port = free_port()
    return Broker([program("nats-server"), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)], port)


def rabbitmq_server(directory: Path) -> Broker:
    """Debian's start script wants root or its own user; the server itself runs as anybody."""
    (directory / "rabbitmq.conf").write_text("loopback_users = none\n")
    (directory / "enabled_plugins").write_text("[].\n")
    port = free_port()
    scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    command = str(scripts[-1]) if scripts else program("rabbitmq-server")
    env = {
        "HOME": str(directory), "RABBITMQ_NODENAME": f"fanin{port}@localhost", "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "data"), "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_PID_FILE": str(directory / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq"), "RABBITMQ_FEATURE_FLAGS_FILE": str(directory / "flags"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "config"),
        "RABBITMQ_SERVER_START_ARGS": "-setcookie fanin -kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(free_port()), "RABBITMQ_LOGS": "-",
    }  # fmt: skip
    return Broker([command], port, env)
