"""Mutants that no test can tell from the protocol, and why: the reason must be one that can be checked by reading."""

from __future__ import annotations

_SAME_VERSION = (
    "The rows are found by their place, which the list has locked in this same statement: it is the version of which "
    "the list has asked the same, and while it is locked nobody makes another."
)
_ONE_WRITER = "The list has asked the same of the same row, in this same statement of the only writer."
_DUE_FIRST = (
    "The list is sorted by the moment, so those that are due come first whatever the limit; the write asks each again."
)
_ALL_STRIPES = (
    "Only seal_job, count_stripes, end_job and reopen_job write a job's row, each in a transaction that holds a stripe "
    "of the job; all of its stripes are locked by an earlier statement here, so nobody else can write the row."
)
_NO_OUTCOME = (
    "A job that has not ended has no outcome, by the CHECKs of its table, and NULL <> 'refused' is not true: the other "
    "guard of this statement refuses it."
)


EQUIVALENT: dict[str, str] = {
    "close.standing: FOR NO KEY UPDATE (PostgreSQL)": _ALL_STRIPES,
    "redrive.standing: FOR NO KEY UPDATE (PostgreSQL)": _ALL_STRIPES,
    "close.sweep_parts: p.status IN ('pending', 'running') (PostgreSQL)": _SAME_VERSION,
    "close.sweep_parts: p.status IN ('pending', 'running') (SQLite)": _ONE_WRITER,
    "lease.claim_parts: p.ready (PostgreSQL)": _SAME_VERSION,
    "lease.claim_parts: p.attempt < p.attempts_allowed (PostgreSQL)": (
        "A row that is ready has an attempt left: the table's own CHECK (NOT ready OR attempt < attempts_allowed)."
    ),
    "lease.claim_parts: p.attempt < p.attempts_allowed (SQLite)": (
        "A row that is ready has an attempt left: the table's own CHECK (NOT ready OR attempt < attempts_allowed)."
    ),
    "lease.wake_parts: due_at <= fanin.clock() (SQLite)": _DUE_FIRST,
    "redrive.reopen_job: status IN ('completed', 'failed', 'cancelled') (PostgreSQL)": _NO_OUTCOME,
    "redrive.reopen_job: status IN ('completed', 'failed', 'cancelled') (SQLite)": _NO_OUTCOME,
    **{
        f"lease.wake_parts: {guard} ({database})": why
        for guard in (
            "p.status IN ('pending', 'running')",
            "NOT p.ready",
            "p.due_at <= fanin.clock()",
            "p.attempt < p.attempts_allowed",
        )
        for database, why in (("PostgreSQL", _SAME_VERSION), ("SQLite", _ONE_WRITER))
    },
}
"""Name of the mutant (`tools.mutants`) to the reason."""
