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
    "What is read here of a job's row is written by seal_job, count_stripes, end_job and reopen_job alone, each in a "
    "transaction that holds a stripe of the job (a pause writes other columns); all of its stripes are locked by an "
    "earlier statement here, so nobody else can write it."
)
_NO_OUTCOME = (
    "A job that has not ended has no outcome, by the CHECKs of its table, and NULL <> 'refused' is not true: the other "
    "guard of this statement refuses it."
)
_WAITS_SO_RUNS = (
    "A row that waits runs: the table's own CHECK (NOT waiting OR (status = 'running' AND …)). The other guard of this "
    "statement asks whether it waits."
)
_LOCKS_MORE = (
    "It only locks more parts than are written: hold_parts and free_parts ask the same of each row that they write. It "
    "holds nothing but parts, in the order of their keys, so whoever has one of those waits for nothing of it."
)
_CLOSED_TOO = (
    "A live part of a job that has ended stands on a closed stripe (the invariants j4 and j8), and the list asks for "
    "that too."
)


EQUIVALENT: dict[str, str] = {
    **{
        f"waiting.{statement}: status = 'running' ({database})": _WAITS_SO_RUNS
        for statement in ("settle_waiting", "let_go")
        for database in ("PostgreSQL", "SQLite")
    },
    **{f"pause.lock_portion: status = 'pending' ({database})": _LOCKS_MORE for database in ("PostgreSQL", "SQLite")},
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
    "lease.claim_parts: j.status IN ('open', 'running') (PostgreSQL)": _CLOSED_TOO,
    "lease.claim_parts: j.status IN ('open', 'running') (SQLite)": _CLOSED_TOO,
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
