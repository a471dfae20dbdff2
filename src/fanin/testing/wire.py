"""What a proxy must know of PostgreSQL's protocol and of sockets, and nothing more."""

from __future__ import annotations

import contextlib
import socket
import struct

Address = tuple[str, int] | str
"""(host, port), or the path of a Unix socket."""

CHUNK = 65536
READY = b"Z\0\0\0\x05"
"""How the message begins that ends every answer of the server."""
_ENCRYPTION_REQUESTS = (80877103, 80877104)


def connect(target: Address) -> socket.socket:
    if isinstance(target, str):
        server = socket.socket(socket.AF_UNIX)
        server.connect(target)
        return server
    server = socket.create_connection(target, timeout=10)
    server.settimeout(None)
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server


def exactly(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            return None
        data += chunk
    return data


def message_size(buffer: bytes, at: int) -> int | None:
    """Type byte and length of the message that begins ``at``, if all of it is there."""
    if len(buffer) < at + 5:
        return None
    size = 1 + int.from_bytes(buffer[at + 1 : at + 5], "big")
    return size if len(buffer) >= at + size else None


def says_commit(body: bytes) -> bool:
    return body.split(b"\0", 1)[0].strip().rstrip(b";").upper() == b"COMMIT"


def is_whole(rest: bytes) -> bool:
    """Whether a request can be answered: a simple query, or a group that ends with Sync."""
    return rest[:1] == b"Q" or rest.endswith(b"S\0\0\0\x04")


def reset(connection: socket.socket) -> None:
    """Close with RST, so that the other side finds out at once; also wakes a thread that reads from it."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def startup(client: socket.socket) -> bytes | None:
    """The client's first message, after telling it that there is no encryption here. None if it went away."""
    while True:
        head = exactly(client, 8)
        if head is None:
            return None
        length, code = struct.unpack("!ii", head)
        if code not in _ENCRYPTION_REQUESTS:
            rest = exactly(client, length - 8)
            return None if rest is None else head + rest
        client.sendall(b"N")
