"""A TCP proxy before PostgreSQL that reads the protocol, to cut connections where it hurts: around COMMIT, or anywhere.

    with PgProxy(("127.0.0.1", 5432)) as proxy:
        proxy.cut_next_commit("reply")          # the server commits, the client never hears of it
        store = open_store(f"postgresql://me@127.0.0.1:{proxy.port}/db")

The kinds of cut: ``request``: the server never gets the COMMIT, and both sides are cut. ``reply``: it commits, and the
client is cut. ``late``: the client is cut at once, the server gets the COMMIT after ``late_seconds``.
`PgProxy.cut_round` does the same to any request, at any message of it or of its answer.
TLS is refused on the client's behalf, since nothing could be read in it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import NamedTuple, Self

from fanin.testing import wire
from fanin.testing.wire import Address

CUTS = ("request", "reply", "late")


class _Round(NamedTuple):
    """A round trip that is to be cut: its number, how, and at which message."""

    number: int
    kind: str
    message: int


class PgProxy:
    """Listens on 127.0.0.1:``port``. A context manager; leaving it cuts what is still connected.

    seed: for the random cuts of `cut_commits`. late_seconds: how late a ``late`` COMMIT arrives.
    """

    def __init__(self, target: Address, *, seed: int | None = None, late_seconds: float = 0.3) -> None:
        self.target = target
        self.late_seconds = late_seconds
        self.counts: Counter[str] = Counter()
        """connections, messages (of clients), rounds, commits (seen), cut_request, cut_reply, cut_late, resets."""
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._next: deque[str] = deque()
        self._share = 0.0
        self._kinds: Sequence[str] = CUTS
        self._delay = 0.0
        self._round: _Round | None = None
        self._open = threading.Event()
        self._open.set()
        self._links: set[_Link] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="pg-proxy", daemon=True)

    # What a test asks for.

    def cut_next_commit(self, *kinds: str) -> None:
        """Cut the next COMMITs that come by, one for each kind."""
        _check(kinds)
        with self._lock:
            self._next.extend(kinds)

    def cut_commits(self, share: float, kinds: Sequence[str] = CUTS) -> None:
        """From now on cut this share of all COMMITs (0 to 1), in ways drawn at random."""
        _check(kinds)
        with self._lock:
            self._share, self._kinds = share, tuple(kinds)

    def cut_round(self, number: int, kind: str, message: int = 1) -> None:
        """Cut the ``number``-th round trip from now on, from 1; once. One is a simple query, or messages up to a Sync.

        message: ``request``: its first message that the server does not get, the last one if there are not so many.
        ``reply``: the first one of the answer that the client does not get, its end if there are not so many.
        """
        _check([kind])
        with self._lock:
            self._round = _Round(self.counts["rounds"] + number, kind, message)

    def delay(self, seconds: float) -> None:
        """Hold everything back for so long, in both directions; 0 ends it."""
        self._delay = seconds

    def black_hole(self, on: bool = True) -> None:
        """Keep connections open and let nothing through, until turned off."""
        if on:
            self._open.clear()
        else:
            self._open.set()

    def reset(self) -> int:
        """Cut every connection, with a reset. Returns how many there were."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()
        self.counts["resets"] += len(links)
        return len(links)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._open.set()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    # What the connections ask.

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.counts["connections"] += 1
            _Link(self, client).start()

    def _begun(self) -> int:
        """The number of the round trip that begins."""
        with self._lock:
            self.counts["rounds"] += 1
            return self.counts["rounds"]

    def _verdict(self, number: int, place: int, is_last: bool, is_commit: bool) -> tuple[str, int] | None:
        """How to cut at the client's message ``place`` of a round trip, and at which message of the answer."""
        with self._lock:
            self.counts["messages"] += 1
            due = self._round
            if due is not None and due.number == number:
                if due.kind == "request" and place < due.message and not is_last:
                    return None
                self._round = None
                self.counts[f"cut_{due.kind}"] += 1
                return due.kind, due.message
            if not is_commit:
                return None
            self.counts["commits"] += 1
            kind = None
            if self._next:
                kind = self._next.popleft()
            elif self._share and self._random.random() < self._share:
                kind = self._random.choice(self._kinds)
            if kind is not None:
                self.counts[f"cut_{kind}"] += 1
                return kind, 1
            return None


class _Link:
    """One client's connection and the one to the server behind it."""

    def __init__(self, proxy: PgProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server: socket.socket | None = None
        self._answered = threading.Event()
        self._left: int | None = None
        """How many messages the client shall still hear; None: all."""
        self._commits: set[bytes] = set()
        """Prepared statements that are a COMMIT."""

    def start(self) -> None:
        threading.Thread(target=self._serve, name="pg-proxy-link", daemon=True).start()

    def cut(self) -> None:
        wire.reset(self._client)
        if self._server is not None:
            wire.reset(self._server)

    def _serve(self) -> None:
        with self._proxy._lock:
            self._proxy._links.add(self)
        back: threading.Thread | None = None
        try:
            self._server = wire.connect(self._proxy.target)
            self._client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._replies, name="pg-proxy-replies", daemon=True)
            if (start := wire.startup(self._client)) is not None:
                self._server.sendall(start)
                back.start()
                self._requests()
        except OSError:
            pass
        finally:
            self.cut()
            if back is not None and back.ident is not None:
                back.join()
            with self._proxy._lock:
                self._proxy._links.discard(self)

    def _requests(self) -> None:
        assert self._server is not None
        buffer = b""
        number = place = 0
        while chunk := self._client.recv(wire.CHUNK):
            self._hold()
            buffer += chunk
            passed = 0
            while (size := wire.message_size(buffer, passed)) is not None:
                message = buffer[passed : passed + size]
                place += 1
                if place == 1:
                    number = self._proxy._begun()
                is_last = wire.is_whole(message)
                cut = self._proxy._verdict(number, place, is_last, self._is_commit(message))
                if cut is not None:
                    self._server.sendall(buffer[:passed])
                    self._cut(*cut, buffer[passed:])
                    return
                place = 0 if is_last else place
                passed += size
            if passed:
                self._server.sendall(buffer[:passed])
                buffer = buffer[passed:]

    def _is_commit(self, message: bytes) -> bool:
        """A simple query, or the execution of a statement prepared for it. libpq binds and executes in one go."""
        kind, body = message[:1], message[5:]
        if kind == b"Q":
            return wire.says_commit(body)
        if kind == b"P":
            name, _, rest = body.partition(b"\0")
            self._commits.discard(name)
            if wire.says_commit(rest):
                self._commits.add(name)
        if kind == b"B":
            return body.split(b"\0", 2)[1] in self._commits
        return False

    def _cut(self, kind: str, message: int, rest: bytes) -> None:
        """``rest`` begins with the message at which to cut. ``message``: the first of the answer to be lost."""
        assert self._server is not None
        if kind == "request":
            return
        # A Bind without its Execute and Sync does nothing: the whole request belongs together.
        while not wire.is_whole(rest):
            if not (more := self._client.recv(wire.CHUNK)):
                return
            rest += more
        self._left = message - 1
        if kind == "late":
            wire.reset(self._client)
            time.sleep(self._proxy.late_seconds)
        self._server.sendall(rest)
        self._answered.wait(10)

    def _replies(self) -> None:
        assert self._server is not None
        buffer = b""
        try:
            while chunk := self._server.recv(wire.CHUNK):
                if self._left is None:
                    self._hold()
                    self._client.sendall(chunk)
                    continue
                buffer += chunk
                while (size := wire.message_size(buffer, 0)) is not None:
                    self._last(buffer[:size])
                    buffer = buffer[size:]
        except OSError:
            pass
        self._answered.set()
        if self._left is None:
            wire.reset(self._client)

    def _last(self, message: bytes) -> None:
        """One message of the answer that the client does not hear to its end."""
        if message.startswith(wire.READY):
            self._answered.set()
        elif self._left:
            self._left -= 1
            self._client.sendall(message)

    def _hold(self) -> None:
        if self._proxy._delay:
            time.sleep(self._proxy._delay)
        self._proxy._open.wait()


def _check(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind not in CUTS:
            raise ValueError(f"{kind!r} is no kind of cut: {', '.join(CUTS)}")
