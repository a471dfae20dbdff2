"""What happened to a job, as a list of moments that a person can read."""

from __future__ import annotations

import msgspec


class Moment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a timeline. ``at`` is in seconds since the epoch, ``text`` is for people.

    ``what`` is ``created``, ``first``, ``last`` (part that ended), ``retried``, ``failed``, ``released``,
    ``lease_lost``, ``refused``, ``stopped``, ``paused``, ``resumed``, ``skipped``, ``finished``, ``cancelled``,
    ``redriven``, ``repaired``, ``damaged``, ``ended``, ``published``, ``successor``, ``child``, ``now``, or ``more``:
    ``count`` lines like the one before were left out. Of a flow also ``undone``, ``nothing_to_undo``, ``not_undone``
    and ``undo_again``: what a person did to a step. ``worker`` is who did it. ``holder`` is the attempt that held the
    part when a report of ``attempt`` was refused.
    """

    at: float
    what: str
    text: str
    part: int | None = None
    attempt: int | None = None
    holder: int | None = None
    worker: str | None = None
    run: int | None = None
    job: str | None = None
    count: int | None = None


class Hand(msgspec.Struct, frozen=True):
    """What one worker did for a job: parts that ended under it, their attempts, and the first and last end."""

    worker: str
    parts: int
    attempts: int
    first_at: float
    last_at: float


class Trouble(msgspec.Struct, frozen=True):
    """A part with more than one line in the history: how many, and its latest attempt there."""

    part: int
    lines: int
    attempt: int


class Explanation(msgspec.Struct, frozen=True):
    """How a job came to be what it is. Bounded, however wide the job is: ``more`` moments say what was left out."""

    job: str
    status: str
    outcome: str | None
    reason: str | None
    timeline: list[Moment]
    workers: list[Hand]
    troubled: list[Trouble]
