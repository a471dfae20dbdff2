"""A receiver of webhooks that does what the test says, and writes down what it was sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Received = tuple[dict[str, str], bytes]
Reply = tuple[int, dict[str, str]]


class WebhookReceiver:
    """``reply(headers, body)`` gives the status and headers of an answer; None: the connection is cut without one."""

    def __init__(self, reply: Callable[[dict[str, str], bytes], Reply | None] = lambda *_: (204, {})) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.reply = reply
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                receiver.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                headers[":path"] = self.path
                receiver.received.append((headers, body))
                answer = receiver.reply(headers, body)
                if answer is None:
                    self.close_connection = True
                    return
                status, more = answer
                self.send_response(status)
                for name, value in {"content-length": "0", **more}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def drips(seconds: float) -> Callable[[dict[str, str], bytes], Reply | None]:
    """An answer that does not come."""

    def reply(*_: Any) -> Reply | None:
        time.sleep(seconds)
        return 204, {}

    return reply
