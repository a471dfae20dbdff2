"""What an operator watches: how often work was overtaken, and what waits outside the tables."""

from __future__ import annotations

import msgspec


class Signals(msgspec.Struct, frozen=True):
    """Counts over all buckets. The first four are of the last ``since`` seconds, the others of this moment.

    ``stale_commits`` are reports that were refused because another attempt held the part; `fanin show` names both
    attempts. ``closed_commits`` came when their job was closed. ``leases_lost`` ran out without a report.
    ``work_stopped`` counts attempts whose heartbeat or checkpoint found the part lost, so that the handler was stopped.

    ``outputs_orphaned`` lie there and can never count; ``outputs_swept`` were removed within ``since`` (the rows that
    say so are kept for a day). ``…_seconds`` is the age of the oldest, None where there is none.

    ``effects_pending`` wait for their call or are being called, ``effects_stuck`` are failed or unknown: for a person.
    """

    at: float
    since: float
    stale_commits: int = 0
    closed_commits: int = 0
    leases_lost: int = 0
    work_stopped: int = 0
    outputs_undecided: int = 0
    outputs_orphaned: int = 0
    outputs_orphaned_seconds: float | None = None
    outputs_swept: int = 0
    events_pending: int = 0
    events_pending_seconds: float | None = None
    events_parked: int = 0
    events_parked_seconds: float | None = None
    effects_pending: int = 0
    effects_pending_seconds: float | None = None
    effects_failed: int = 0
    effects_unknown: int = 0
    effects_stuck_seconds: float | None = None
