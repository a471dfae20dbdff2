"""Proxies before the brokers of a Kafka cluster: they can be away, and can lose the acknowledgement of a batch.

Brokers say their own addresses in their answers; these are replaced by those of the proxies, so that a client never
finds the way around.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence

PRODUCE = 0
"""The number of the request that brings messages."""
Address = tuple[str, int]


class KafkaProxies:
    """One proxy for each broker. ``away``: connections are cut and refused."""

    def __init__(self, brokers: Sequence[Address]) -> None:
        self.away = False
        self.lose_next = False
        """Let the next batch reach its broker, lose the answer, and be away from then on."""
        self.lost = threading.Event()
        self.connections = 0
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listeners = {broker: socket.create_server(("127.0.0.1", 0)) for broker in brokers}
        for broker, listener in self._listeners.items():
            threading.Thread(target=self._accept, args=(broker, listener), daemon=True).start()

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in self._listeners.values())

    def stop(self) -> None:
        """Be away, as brokers that have died."""
        self.away = True
        with self._lock:
            links = list(self._links)
        for link in links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        self.away = False

    def close(self) -> None:
        self.stop()
        for listener in self._listeners.values():
            listener.close()

    def _accept(self, broker: Address, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.away:
                client.close()
                continue
            self.connections += 1
            server = socket.create_connection(broker)
            doomed: set[int] = set()
            with self._lock:
                self._links |= {client, server}
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(client, server, doomed), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(client):
                kind, _, number = struct.unpack(">hhi", frame[:8])
                if self.lose_next and kind == PRODUCE:
                    self.lose_next = False
                    doomed.add(number)
                _send(server, frame)
        self._drop(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, doomed: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _frame(server):
                if struct.unpack(">i", frame[:4])[0] in doomed:
                    self.stop()
                    self.lost.set()
                    break
                _send(client, self._disguised(frame))
        self._drop(client, server)

    def _disguised(self, frame: bytes) -> bytes:
        for (host, port), listener in self._listeners.items():
            theirs = host.encode() + struct.pack(">i", port)
            frame = frame.replace(theirs, b"127.0.0.1" + struct.pack(">i", listener.getsockname()[1]))
        return frame

    def _drop(self, *ends: socket.socket) -> None:
        with self._lock:
            self._links -= set(ends)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _frame(source: socket.socket) -> bytes:
    """One message of the protocol; nothing at the end of the connection."""
    head = _exactly(source, 4)
    return _exactly(source, struct.unpack(">i", head)[0]) if head else b""


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = source.recv(size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def _send(target: socket.socket, frame: bytes) -> None:
    target.sendall(struct.pack(">i", len(frame)) + frame)
