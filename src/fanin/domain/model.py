"""The records that travel between the floors. All are frozen; times are seconds since the epoch, UTC."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from fanin.domain.effects import Intent

NESTED = "@"
"""Stands before a job's id in the result of a part that ended with that job. No JSON text begins with it."""
NESTED_FAILED = "NestedFailed"
"""The type of the error of a part that failed because its nested job did."""


class Verdict(Enum):
    """What became of one report about one part."""

    OK = "ok"
    """Accepted and counted (or, for a retry or release, recorded)."""
    LAST = "last"
    """Accepted, and this very transaction ended the job's run."""
    REPLAY = "replay"
    """Said before by the same attempt with the same content; nothing was written."""
    CONFLICT = "conflict"
    """Said before by the same attempt with another content; nothing was written."""
    LOST = "lost"
    """Another attempt holds or held the part; nothing was written."""
    CLOSED = "closed"
    """The job was closed first; nothing was written."""
    UNKNOWN = "unknown"
    """There is no such part; nothing was written."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The right to run one part until the lease ends: what a worker holds.

    ``attempt`` is the fencing number (grows by one per claim, never falls); ``claim_id`` is random per claim and
    makes the token unique even where the database itself goes back in time. ``alone``: an earlier attempt lost its
    worker and this is the last one, so it should be run with no other beside it, in case the part kills its workers.
    ``stripe`` is the counter that the part is counted on.
    """

    bucket: int
    job_id: str
    idx: int
    task: str
    attempt: int
    claim_id: str
    attempts_allowed: int
    payload: str
    checkpoint: str | None = None
    alone: bool = False
    stripe: int = 0

    @property
    def key(self) -> tuple[str, int]:
        return (self.job_id, self.idx)


class Report(msgspec.Struct, frozen=True, gc=False):
    """What a worker says about a part that it holds.

    ``verb`` is ``succeed``, ``fail`` (for good), ``retry`` (failed for good when no attempt is left) or
    ``release`` (given back; costs no attempt). ``delay`` in seconds is for ``retry`` and ``release``, ``effects`` are
    what a success wants done, ``spawns`` the (key, payload) of parts that it adds to its job.
    """

    claim: Claim
    verb: str
    result: str | None = None
    error: str | None = None
    delay: float = 0.0
    effects: tuple[Intent, ...] = ()
    spawns: tuple[tuple[str, str], ...] = ()


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The answer to one report: the verdict, the part's state now, and the attempt that holds it now."""

    verdict: Verdict
    status: str | None = None
    attempt: int | None = None


class Spec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The successor of a job: one part of ``task``, created by the finish of the job and by nothing else.

    ``stale_after``: seconds from its creation within which it has to start, else it is ended by ``stale`` (``skip`` or
    ``fail``).
    """

    task: str
    step: str = "then"
    queue: str = "default"
    attempts: int = 3
    priority: int = 10
    extra: str | None = None
    give_up_after: float | None = None
    batch: int | None = None
    """How many items there are in each part of the job before, if that was split."""
    stale_after: float | None = None
    stale: str | None = None


class NewJob(msgspec.Struct, frozen=True):
    """Everything about a job but its parts, as the creator says it."""

    id: str
    bucket: int
    task: str
    queue: str
    key: str | None = None
    request_hash: str | None = None
    priority: int = 0
    attempts: int = 3
    stripes: int = 1
    policy: str = "{}"
    successor: str | None = None
    planned: int | None = None
    give_up_after: float | None = None
    give_up_at: float | None = None
    """A moment, where it is not so long after the creation."""
    delay: float = 0.0
    parent_id: str | None = None
    parent_bucket: int | None = None
    """Where the parent is looked for, if it may have been purged meanwhile: its handler asks for this job."""
    root_id: str | None = None
    step: str | None = None
    depth: int = 0
    meta: str | None = None
    listeners: str | None = None
    waiter_id: str | None = None
    waiter_idx: int | None = None
    flow_id: str | None = None
    flow_step: int | None = None
    width: int | None = None
    """The most parts of a job that grows; None for one that does not."""
    failure_events: bool = False
    """Whether each part that fails for good has an event."""
    progress_every: float | None = None
    """Seconds between two events that tell how far the job is; None for none."""
    batch: int | None = None
    """The job is to be split into batches of so many parts; None for one that is not."""
    stale_after: float | None = None
    """Of a job of one part: seconds within which it has to start, else it is ended by ``stale``."""
    stale: str | None = None


class JobRow(msgspec.Struct, frozen=True):
    """A job as it stands in the database."""

    id: str
    bucket: int
    task: str
    queue: str
    key: str | None
    request_hash: str | None
    status: str
    outcome: str | None
    reason: str | None
    run: int
    planned_parts: int | None
    sealed_parts: int | None
    open_stripes: int
    stripes: int
    turn: int
    priority: int
    attempts: int
    policy: str
    successor: str | None
    parent_id: str | None
    root_id: str | None
    step: str | None
    depth: int
    meta: str | None
    created_at: float
    give_up_at: float | None
    finished_at: float | None
    succeeded_parts: int | None
    failed_parts: int | None
    abandoned_parts: int | None
    width: int | None
    """The most parts of a job that grows; None for one that does not."""
    paused_at: float | None
    batch: int | None = None
    """The job was split: each of its parts is a job of so many items. None for one that was not."""

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")


class Progress(msgspec.Struct, frozen=True):
    """Counts of one job, read from its stripes in constant time. ``remaining`` counts pending and running parts.

    ``jobs``: how many jobs are counted, more than one in a tree of jobs below it."""

    status: str
    outcome: str | None
    run: int
    total: int
    remaining: int
    succeeded: int
    failed: int
    abandoned: int
    jobs: int = 1

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed", "cancelled")

    @property
    def fraction(self) -> float:
        """The share of parts that have ended, 0 to 1; an ended job without parts counts as 1."""
        if self.total == 0:
            return 1.0 if self.ended else 0.0
        return (self.total - self.remaining) / self.total


class Failure(msgspec.Struct, frozen=True):
    """Why a part has no result. ``status`` is ``failed`` or ``abandoned``."""

    idx: int
    status: str
    attempt: int
    type: str
    message: str
    traceback: str = ""
    payload: Any = None

    def __str__(self) -> str:
        return f"part {self.idx} {self.status} at attempt {self.attempt}: {self.type}: {self.message}"


class Below(msgspec.Struct, frozen=True):
    """The first failed part at the bottom of the nested jobs below a part that failed with one (`NESTED_FAILED`)."""

    job_id: str
    part: int
    type: str
    message: str

    def __str__(self) -> str:
        return f"below it, job {self.job_id} part {self.part}: {self.type}: {self.message.partition(chr(10))[0]}"


class ScheduleRow(msgspec.Struct, frozen=True):
    """A schedule as it stands in the database.

    ``timing`` and ``spec`` are what the code last said, as JSON. All slots up to ``mark`` are decided; ``job_id`` is
    the job of the latest firing. ``asked_at``: somebody wants it fired now. ``error``: why a slot that has come is not
    fired.
    """

    name: str
    timing: str
    spec: str
    mark: float
    job_id: str | None
    paused_at: float | None
    note: str | None
    asked_at: float | None
    error: str | None


class Firing(msgspec.Struct, frozen=True):
    """What became of one slot: ``fired``, ``skipped`` (the job before was live: ``job_id``) or ``missed``.

    ``missed``: slots that were passed over with or before it. ``by_hand``: an operator asked for it. ``at``: when it
    was decided.
    """

    slot: float
    what: str
    job_id: str | None
    missed: int
    by_hand: bool
    at: float


class Fired(msgspec.Struct, frozen=True):
    """The answer to a try to fire: ``fired``, ``skipped``, ``waiting`` or ``passed``, and the job that it is about."""

    what: str
    job_id: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """One row that breaks an invariant: the invariant's name, its sentence, and the row."""

    check: str
    sentence: str
    row: dict[str, Any]
