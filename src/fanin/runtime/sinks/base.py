"""What a sink is: a batch of events in, one answer per event out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import msgspec

from fanin.domain import events
from fanin.domain.durations import seconds
from fanin.domain.errors import BadOption
from fanin.domain.events import Event

PREFIX = "fanin_"
"""Parameters of a sink's URL that are ours begin with this; the receiver does not see them."""
TIMEOUT_SECONDS = 10.0
TIMEOUT_SECONDS_MAX = 15.0
"""Connecting and sending together stay within half of a relay's claim."""


class Answer(msgspec.Struct, frozen=True):
    """What became of one event: ``acked``, ``refused`` (this event was not taken; counts as a try), ``hopeless`` (it
    never will be) or ``unsent`` (the receiver is away, for every event). ``after``: when to try again, in seconds."""

    verb: str
    error: str = ""
    after: float | None = None


ACKED = Answer("acked")


def refused(error: object, after: float | None = None) -> Answer:
    return Answer("refused", said(error), after)


def hopeless(error: object) -> Answer:
    return Answer("hopeless", said(error))


def unsent(error: object, after: float | None = None) -> Answer:
    return Answer("unsent", said(error), after)


def said(error: object) -> str:
    """One line, also of an exception that says nothing."""
    words = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {words}".rstrip(": ") if isinstance(error, BaseException) else words


class SinkClosed(Exception):
    """The receiver will take nothing more, ever: the relay ends."""


class Sink(ABC):
    """A receiver of events. It is used by one thread.

    ``batch``: most events of one call. A call must come back within half a relay's claim, whatever the receiver does.
    """

    batch: int = 200

    @abstractmethod
    def send(self, batch: Sequence[Event]) -> list[Answer]:
        """Send events and wait for what the receiver says. The answers stand in the order of the events.

        An event is ``acked`` only if the receiver has said that it keeps it. Raises `SinkClosed`; anything else that is
        raised counts as a refusal of each event.
        """

    def close(self) -> None:  # noqa: B027  (most have something to let go of, not all)
        """Let go of connections."""


class Target:
    """The URL of a sink: its parts, and the parameters that are ours."""

    def __init__(self, url: str) -> None:
        self.whole = url
        self.parts = urlsplit(url)
        pairs = parse_qsl(self.parts.query, keep_blank_values=True)
        self._ours = {name.removeprefix(PREFIX): value for name, value in pairs if name.startswith(PREFIX)}
        rest = urlencode([(name, value) for name, value in pairs if not name.startswith(PREFIX)])
        self.url = urlunsplit(self.parts._replace(query=rest))
        self.path = unquote(self.parts.path).strip("/")
        self.source = self.take("source", events.DEFAULT_SOURCE)
        if not self.source.isascii() or not self.source.isprintable() or not self.source:
            raise BadOption(f"{PREFIX}source={self.source!r}: give a URI reference of ASCII characters")
        self.binary = self.choice("format", "structured", "binary") == "binary"
        self.timeout = seconds(self.take("timeout", f"{TIMEOUT_SECONDS}s"), f"{PREFIX}timeout")
        if not 0 < self.timeout <= TIMEOUT_SECONDS_MAX:
            raise BadOption(f"{PREFIX}timeout={self.timeout:g}s: give a time up to {TIMEOUT_SECONDS_MAX:g}s")

    def __str__(self) -> str:
        """Without password and parameters."""
        host = self.parts.netloc.rpartition("@")[2]
        return urlunsplit(self.parts._replace(netloc=host, query="", fragment="")) if host else self.whole

    def take(self, name: str, default: str) -> str:
        return self._ours.pop(name, default)

    def choice(self, name: str, *choices: str) -> str:
        """One of ``choices``; the first is the default."""
        value = self.take(name, choices[0])
        if value not in choices:
            raise BadOption(f"{PREFIX}{name}={value!r}: one of {', '.join(choices)}")
        return value

    def number(self, name: str, default: int, most: int) -> int:
        value = self.take(name, str(default))
        if not value.isdigit() or int(value) > most:
            raise BadOption(f"{PREFIX}{name}={value!r}: give a whole number up to {most}")
        return int(value)

    def done(self) -> None:
        """Refuse parameters that nobody has taken."""
        if self._ours:
            unknown = ", ".join(PREFIX + name for name in sorted(self._ours))
            raise BadOption(f"{self}: this sink has no parameter {unknown}")

    def content(self, event: Event, prefix: str = "ce-") -> tuple[dict[str, str], bytes]:
        """Headers and body, in the format that was asked for."""
        if self.binary:
            return events.binary(event, self.source, prefix)
        return {"content-type": events.ENVELOPE_TYPE}, events.structured(event, self.source)


def missing(extra: str, problem: ImportError) -> BadOption:
    return BadOption(f"the client library of this sink is not installed ({problem}): pip install 'fanin[{extra}]'")
