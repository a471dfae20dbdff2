"""Stand-ins for the world outside: an HTTP server in a thread that writes down what it was sent, and misbehaves on
request.

`FakeSink` takes events as a webhook does. `EffectReceiver` also keeps the promise of an idempotency key, or does not,
and can be asked whether it has seen one.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

KEY_HEADERS = ("Idempotency-Key", "webhook-id", "ce-id")


class Call(NamedTuple):
    key: str
    body: bytes
    accepted: bool
    """Whether it had an effect: false for a repeated key, a refused call, and after `EffectReceiver.no_keys`: never."""


class FakeSink:
    """A receiver of POST requests on 127.0.0.1. A context manager.

    The key of a call is its ``Idempotency-Key``, ``webhook-id`` or ``ce-id`` header, else its path. log: a file that
    gets a JSON line per call, written before the answer goes out, so that it outlives this process.
    """

    def __init__(self, log: str | None = None) -> None:
        self.calls: list[Call] = []
        self._applied: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._refusals: list[int] = []
        self._lost = 0
        self._stalled = threading.Event()
        self._stalled.set()
        self._log = None if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.02], name="fake-sink", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    @property
    def keys(self) -> list[str]:
        """The key of every call, in order of arrival."""
        with self._lock:
            return [call.key for call in self.calls]

    @property
    def applied(self) -> Counter[str]:
        """How often each key had an effect."""
        with self._lock:
            return Counter(self._applied)

    def refuse(self, times: int, status: int = 503) -> None:
        """Answer the next calls with an error; they have no effect."""
        with self._lock:
            self._refusals += [status] * times

    def lose_answers(self, times: int) -> None:
        """Do what the next calls ask, and drop the connection instead of answering."""
        with self._lock:
            self._lost += times

    def stall(self) -> None:
        """Let calls wait before they have their effect, until `go_on`."""
        self._stalled.clear()

    def go_on(self) -> None:
        self._stalled.set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        self._server.shutdown()
        self._server.server_close()
        if self._log is not None:
            os.close(self._log)

    def _is_new(self, key: str) -> bool:
        """Whether a call has an effect. A plain sink takes everything."""
        return True

    def _take(self, key: str, body: bytes) -> int | None:
        """Returns the status to answer with, None for no answer at all."""
        self._stalled.wait()
        with self._lock:
            status = self._refusals.pop(0) if self._refusals else 200
            accepted = status == 200 and self._is_new(key)
            self._applied[key] += int(accepted)
            self.calls.append(Call(key, body, accepted))
            if self._log is not None:
                line = {"key": key, "accepted": accepted, "status": status, "body": body.decode("utf-8", "replace")}
                os.write(self._log, json.dumps(line).encode() + b"\n")
            if status == 200 and self._lost:
                self._lost -= 1
                return None
            return status


class EffectReceiver(FakeSink):
    """A receiver of effects. honours_keys: whether a repeated key is recognised. ``GET /KEY`` says 200 or 404."""

    def __init__(self, log: str | None = None, *, honours_keys: bool = True) -> None:
        super().__init__(log)
        self._honours_keys = honours_keys

    def _is_new(self, key: str) -> bool:
        return not self._honours_keys or self._applied[key] == 0


def _handler(sink: FakeSink) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = next((found for name in KEY_HEADERS if (found := self.headers.get(name))), self.path.lstrip("/"))
            status = sink._take(key, body)
            if status is None:
                self.close_connection = True
                return
            self._answer(status)

        def do_GET(self) -> None:
            self._answer(200 if sink.applied[self.path.lstrip("/")] else 404)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass  # the calls are in `calls`

    return Handler
