"""Three families, by what the caller does next: fix the call, stop quietly, or try the transaction again."""

from __future__ import annotations

from datetime import timedelta

SHOWN_CHARS = 80


def shown(value: object) -> str:
    """A value as it stands in a message: the beginning of a long one."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


class FaninError(Exception):
    """The root of everything that fanin raises on purpose."""


# Refused: the call is wrong; nothing was written; saying it again will not help.


class Refused(FaninError):
    """The call cannot be carried out as it stands. Nothing was written."""


class UnknownJob(Refused):
    """No job with this id or key."""


class UnknownPart(Refused):
    """The job has no part with this index."""


class UnknownTask(Refused):
    """No task of this name is registered with the application."""


class UnknownSchedule(Refused):
    """No schedule of this name is known to the database."""


class KeyConflict(Refused):
    """The same key was used before with another content."""


class LimitExceeded(Refused):
    """A bound of ``fanin.domain.limits`` or of the application would be broken."""


class BadPayload(Refused):
    """An argument or result that cannot be stored as JSON without loss, or has the wrong type."""


class BadOption(Refused):
    """An option has a value that can never work."""


class NotAllowedNow(Refused):
    """The job is in a state that does not allow this."""


class SchemaMismatch(Refused):
    """The database has no fanin schema, an older one, or a newer one than this program knows."""


class UnsafeStore(Refused):
    """The database, file or library cannot keep the promise; the message says why and what to use."""


class StaleToken(Refused):
    """A fence in another store has accepted a higher token: a newer attempt is at work. Roll back."""


class BrokenOutput(FaninError):
    """An output that counts is not where it was put, or has other bytes than its part wrote."""


class EffectFailed(FaninError):
    """An effect was surely not performed: the receiver refused it, or it was cancelled."""


class EffectUnknown(FaninError):
    """A call ended without a clear answer, so nobody knows whether the effect has happened."""


class JobFailed(FaninError):
    """Raised by ``Job.result()`` and friends when the job ended without the result that was asked for."""


# Lost: this attempt is not the holder any more; stop quietly.


class LeaseLost(BaseException):
    """Another attempt holds the part, or its job has been closed: stop the work; its commit would be refused.

    Not an ``Exception``, so a handler's broad ``except Exception`` lets it pass.
    """


# Unavailable: the same transaction may be said again, with the same ids.


class Unavailable(FaninError):
    """The database did not answer, or asked to be called again. Saying it again is always safe."""


class StoreBusy(Unavailable):
    """A lock, a serialisation failure or a deadlock, after all retries."""


class StoreUnreachable(Unavailable):
    """No connection to the database, after all retries."""


class WaitTimeout(FaninError):
    """``Job.wait(timeout=…)`` ran out; the job goes on."""


# Signals of a handler; not failures of the library.


class Permanent(Exception):
    """Raise this (or a subclass) in a handler to fail the part for good, without further attempts."""


class RetryLater(Exception):
    """Raise this in a handler to be tried again after ``seconds``; counts as an attempt.

    seconds: or a text such as ``"30s"``, or a timedelta. It is cut to a year; what is no time, or lies below zero,
    means at once.
    """

    def __init__(self, seconds: float | str | timedelta, reason: str = "asked to be retried") -> None:
        from fanin.domain.durations import wait_of

        super().__init__(reason)
        self.seconds = wait_of(seconds)
