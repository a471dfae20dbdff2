"""A mail server that is not to be relied on: it loses the answer to every third mail, and every fifth mail itself.

    python mailserver.py DIRECTORY      prints its port; mails become files in the directory, one more for each delivery

A real one loses answers when a connection breaks at the wrong moment; this one breaks it on purpose.
"""

from __future__ import annotations

import re
import socketserver
import sys
import threading
from pathlib import Path


class Conversation(socketserver.StreamRequestHandler):
    """One SMTP session, as far as smtplib needs it."""

    server: MailServer

    def handle(self) -> None:
        self.say("220 mail.example.org")
        while line := self.rfile.readline():
            verb = line[:4].upper().strip()
            if verb == b"DATA":
                self.say("354 go on")
                if not self.take(self.read_mail()):
                    return  # the connection breaks, without a word
            elif verb == b"QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 ok")

    def read_mail(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()) not in (b".\r\n", b""):
            lines.append(line)
        return b"".join(lines)

    def take(self, mail: bytes) -> bool:
        """Deliver a mail, or lose it, or deliver it and say nothing. False: say nothing."""
        number = self.server.next_number()
        if number % 5 == 0:
            return False
        self.server.deliver(mail)
        if number % 3 == 0:
            return False
        self.say("250 delivered")
        return True

    def say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


class MailServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.directory = directory
        self._mails = 0
        self._lock = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def next_number(self) -> int:
        with self._lock:
            self._mails += 1
            return self._mails

    def deliver(self, mail: bytes) -> None:
        """Like a real one it does not look whether it has the mail already: a second delivery is a second copy."""
        found = re.search(rb"^Message-ID: <(.+)@", mail, re.MULTILINE | re.IGNORECASE)
        name = found[1].decode() if found else "without-an-id"
        with self._lock:
            copies = len(list(self.directory.glob(f"{name}.*eml")))
            (self.directory / (f"{name}.eml" if not copies else f"{name}.{copies + 1}.eml")).write_bytes(mail)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed in the middle of a session."""


if __name__ == "__main__":
    with MailServer(Path(sys.argv[1])) as server:
        print(server.port, flush=True)
        server.serve_forever()
