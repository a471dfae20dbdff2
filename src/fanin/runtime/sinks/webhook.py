"""Webhooks: a signed POST per event, several at once. See ``docs/events.md`` for what is refused."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from urllib.parse import SplitResult, urljoin, urlsplit

from fanin.domain import signing
from fanin.domain.errors import BadOption
from fanin.domain.events import Event
from fanin.runtime.sinks.base import ACKED, Answer, Sink, Target, hopeless, refused, unsent

AT_ONCE = 8
ANSWER_BYTES = 16_000
"""So much of an answer is read, so that the connection can be used again; more closes it."""
REDIRECTS_MAX = 5
AWAY = (429, 502, 503, 504)
"""The receiver takes nothing at all for a while."""


class Forbidden(Exception):
    """An address that must not be called. It is about the receiver, not about an event."""


class WebhookSink(Sink):
    """Posts to one address. Secrets come from ``FANIN_WEBHOOK_SECRET``, all of them sign."""

    batch = AT_ONCE

    def __init__(self, target: Target) -> None:
        self._target = target
        self._secrets = signing.parse_secrets(os.environ.get("FANIN_WEBHOOK_SECRET", ""))
        unsigned = target.choice("unsigned", "no", "yes") == "yes"
        if not self._secrets and not unsigned:
            raise BadOption(
                f"{target}: set FANIN_WEBHOOK_SECRET, so that the receiver can tell who calls, "
                "or say fanin_unsigned=yes"
            )
        self._private = target.choice("private", "no", "yes") == "yes"
        self._redirects = target.number("redirects", 0, REDIRECTS_MAX)
        self._pool = ThreadPoolExecutor(AT_ONCE, "fanin-webhook")
        self._local = threading.local()
        self._open: set[_Connection] = set()

    def send(self, batch: Sequence[Event]) -> list[Answer]:
        return list(self._pool.map(self._one, batch))

    def close(self) -> None:
        self._pool.shutdown()
        for connection in self._open:
            connection.close()

    def _one(self, event: Event) -> Answer:
        content, body = self._target.content(event)
        headers = {**content, **signing.sign(self._secrets, event.key, int(time.time()), body)}
        if not self._secrets:
            del headers["webhook-signature"]
        url = self._target.url
        try:
            for _ in range(self._redirects + 1):
                status, answer = self._post(urlsplit(url), headers, body)
                if status not in (301, 302, 303, 307, 308):
                    return _judge(status, answer.get("retry-after"))
                url = self._follow(url, status, answer.get("location", ""))
            return refused(f"redirected to {url}; allowed are {self._redirects} redirects (fanin_redirects=N)")
        except Forbidden as problem:
            return refused(problem)
        except TimeoutError as problem:
            return refused(f"no answer within {self._target.timeout:g} s ({problem})")
        except (OSError, http.client.HTTPException) as problem:
            return unsent(problem)

    def _follow(self, url: str, status: int, location: str) -> str:
        there = urljoin(url, location)
        if status not in (307, 308):
            raise Forbidden(f"redirected with {status}: only 307 and 308 keep a POST a POST")
        if urlsplit(there).scheme != urlsplit(url).scheme:
            raise Forbidden(f"redirected from {urlsplit(url).scheme} to {urlsplit(there).scheme}")
        return there

    def _post(self, url: SplitResult, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """One request on this thread's connection. A connection that had been kept and is closed is made anew once."""
        connection, kept = self._connection(url)
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        try:
            return connection.post(path, headers, body)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            if not kept:
                raise
        connection, _ = self._connection(url)
        return connection.post(path, headers, body)

    def _connection(self, url: SplitResult) -> tuple[_Connection, bool]:
        found: _Connection | None = getattr(self._local, "connection", None)
        if found is not None and found.usable(url):
            return found, True
        if found is not None:
            self._open.discard(found)
            found.close()
        made = self._local.connection = _Connection(url, self._target.timeout, self._private)
        self._open.add(made)
        return made, False


class _Connection:
    """One connection to the address that was looked at: a name cannot come to mean another between look and call."""

    def __init__(self, url: SplitResult, timeout: float, private: bool) -> None:
        self._origin = (url.scheme, url.netloc)
        self._timeout = timeout
        host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        address = _look_up(host, port, private)
        plain = socket.create_connection((address, port), timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http = http.client.HTTPConnection(host, port, timeout=timeout)
        self._socket = plain
        if url.scheme == "https":
            self._socket = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        self._http.sock = self._socket
        self._http.auto_open = 0
        self._closed = False

    def usable(self, url: SplitResult) -> bool:
        return not self._closed and (url.scheme, url.netloc) == self._origin

    def post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer. However slowly it drips, it takes no longer than the time-out."""
        late = threading.Event()
        timer = threading.Timer(self._timeout, self._give_up, [late])
        timer.start()
        try:
            self._http.request("POST", path, body, headers)
            response = self._http.getresponse()
            response.read(ANSWER_BYTES)
            if not response.isclosed() or response.will_close:
                self.close()
            return response.status, {name.lower(): value for name, value in response.getheaders()}
        except BaseException as problem:
            self.close()
            if late.is_set() and not isinstance(problem, TimeoutError):
                raise TimeoutError("the answer came too slowly") from problem
            raise
        finally:
            timer.cancel()

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        with contextlib.suppress(OSError):  # it has just ended by itself
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        self._socket.close()
        self._http.close()


def _look_up(host: str, port: int, private: bool) -> str:
    """The first address of a name, if all of them may be called."""
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for text in found:
        address = ipaddress.ip_address(text)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        if not private and (not address.is_global or address.is_multicast):
            raise Forbidden(f"{host} is {text}, which is no public address: say fanin_private=yes if it is meant")
    return found[0]


def _judge(status: int, after: str | None) -> Answer:
    wait = _seconds(after)
    if 200 <= status < 300:
        return ACKED
    if status in AWAY:
        return unsent(f"HTTP {status}", wait)
    if status == 410:
        return hopeless("HTTP 410: the receiver is gone for good")
    return refused(f"HTTP {status}", wait)


def _seconds(after: str | None) -> float | None:
    """Of ``Retry-After``: a number of seconds or a date."""
    if after is None:
        return None
    if after.strip().isdigit():
        return float(after)
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except ValueError:
        return None
