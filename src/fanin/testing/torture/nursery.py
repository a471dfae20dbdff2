"""Holds the processes of a torture: forks them from one that has everything imported, and signals them.

It is their parent, so it alone can signal a process without ever meeting a stranger that was given the same number.
When the torture itself dies, its pipe closes, and the nursery kills everybody.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from typing import Any

import msgspec

POLL_SECONDS = 0.02


class Nursery:
    """The torture's side. ``environment`` is added to that of the children."""

    def __init__(self, folder: str, environment: dict[str, str]) -> None:
        self._errors = open(os.path.join(folder, "stderr"), "ab")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fanin.testing.torture.nursery"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=os.environ | environment,
            start_new_session=True,
        )  # fmt: skip
        self._news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="nursery-reader", daemon=True)
        self._reader.start()
        self._tag = 0

    def spawn(self, kind: str, spec: msgspec.Struct) -> int:
        """Start a ``worker`` or ``driver``. Returns its tag."""
        self._tag += 1
        self._send({"do": "spawn", "tag": self._tag, "kind": kind, "spec": spec})
        return self._tag

    def signal(self, tag: int, number: int) -> None:
        """Send a signal, if the process still lives."""
        self._send({"do": "signal", "tag": tag, "number": number})

    def news(self) -> list[dict[str, Any]]:
        """What has happened: a process is ``ready`` or ``frozen``, or has ``died`` by a signal or with a code."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._news.get_nowait())
        return found

    def close(self) -> None:
        """Kill everybody and wait for the nursery."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        self._errors.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._news.put(msgspec.json.decode(line))


class _Keeper:
    """The nursery's side: one thread, no database, so that it may fork."""

    def __init__(self) -> None:
        self._tags: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._buffer = b""

    def run(self) -> None:
        while self._listen():
            self._reap()
        for pid in self._tags:
            os.kill(pid, signal.SIGKILL)
        while self._tags:
            pid, _ = os.waitpid(-1, 0)
            self._tags.pop(pid, None)

    def _listen(self) -> bool:
        readable, _, _ = select.select([0], [], [], POLL_SECONDS)
        if not readable:
            return True
        data = os.read(0, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = msgspec.json.decode(line)
            if message["do"] == "spawn":
                self._spawn(message)
            elif (pid := self._pids.get(message["tag"])) is not None:
                os.kill(pid, message["number"])
        return bool(data)

    def _spawn(self, message: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            _child(message["kind"], message["spec"], message["tag"])
        self._tags[pid], self._pids[message["tag"]] = message["tag"], pid

    def _reap(self) -> None:
        while self._tags:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            tag = self._tags[pid]
            if os.WIFSTOPPED(status):
                self._say(what="frozen", tag=tag)
                continue
            del self._tags[pid], self._pids[tag]
            killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
            self._say(what="died", tag=tag, signal=killed, code=code)

    @staticmethod
    def _say(**facts: Any) -> None:
        os.write(1, msgspec.json.encode(facts) + b"\n")


def _child(kind: str, spec: dict[str, Any], tag: int) -> None:
    """Never returns. Its output goes to the torture's error file."""
    code = 1
    news = os.dup(1)

    def ready() -> None:
        os.write(news, msgspec.json.encode({"what": "ready", "tag": tag}) + b"\n")
        os.close(news)

    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        from fanin.testing.torture import driver, worker

        if kind == "worker":
            worker.work(msgspec.convert(spec, worker.WorkerSpec), ready)
        else:
            driver.drive(msgspec.convert(spec, driver.DriverSpec), ready)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    from fanin.testing.torture import breaks

    # Imported before the forks, which share them; the driver of a database that is not used may be missing.
    for module in ("stores.sqlite", "stores.postgres", "testing.torture.worker", "testing.torture.driver"):
        with contextlib.suppress(ImportError):
            importlib.import_module(f"fanin.{module}")
    breaks.patch_statements()
    _Keeper().run()


if __name__ == "__main__":
    main()
