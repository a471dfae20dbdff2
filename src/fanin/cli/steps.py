"""A step of a flow as people see it: the job whose parts are meant, how far that is, and why it did not complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fanin.cli.tables import number
from fanin.domain.flows import EXPAND, UNDO, Plan
from fanin.domain.model import NESTED_FAILED
from fanin.domain.states import STEP_LIVE, STEP_STUCK, STEP_UNDONE
from fanin.protocol import advance, read

if TYPE_CHECKING:
    import fanin
    from fanin.domain.flows import StepRow
    from fanin.domain.model import Below, Failure, JobRow, Progress

BAD = ("failed", "cancelled")


class Seen(NamedTuple):
    """A job of a step (``first``), and the one whose parts are meant, which may be the same: one that maps over other
    steps has a built-in job, which makes that."""

    first: JobRow
    meant: JobRow
    progress: Progress

    @property
    def paused_at(self) -> float | None:
        return self.meant.paused_at or self.first.paused_at

    @property
    def makes(self) -> bool:
        """Whether there is no job yet but the one that makes it."""
        return self.meant.task == EXPAND

    @property
    def far(self) -> str:
        """How many parts have ended by themselves, and what became of the others; nothing of a single one."""
        told = self.progress
        failed = f", {number(told.failed)} failed" if told.failed else ""
        left = f", {number(told.abandoned)} abandoned" if told.abandoned else ""
        alone = told.total == 1 and self.first.task != EXPAND
        if self.makes or alone:
            return ", abandoned" if left and self.meant.status == "completed" else ""
        return f" {number(told.succeeded + told.failed)}/{number(told.total)}{failed}{left}"


def look(app: fanin.App, job_id: str | None) -> Seen | None:
    """A job of a step, as it stands; None for a step that has none."""
    if job_id is None:
        return None
    bucket = app.store.bucket(job_id)
    first = app.store.read(lambda: read.job(bucket, job_id))
    if first is None:
        return None
    made = app.store.read(lambda: advance.made_by(bucket, first.id)) if first.task == EXPAND else None
    meant = (app.store.read(lambda: read.job(bucket, made)) if made is not None else None) or first
    progress = app.store.read(lambda: read.progress(bucket, meant.id))
    return None if progress is None else Seen(first, meant, progress)


def stands(step: StepRow, seen: Seen | None, undo: Seen | None) -> str:
    """The state of a step; with the end of its job where its undoing hides that, and whether the job is paused."""
    ended = seen is not None and seen.first.status in BAD and step.status in (*STEP_STUCK, *STEP_UNDONE, "undoing")
    paused = (undo or seen) if step.status in STEP_LIVE else None
    before = f"{seen.first.status}, " if seen is not None and ended else ""
    return before + step.status + (", paused" if paused is not None and paused.paused_at is not None else "")


def why(app: fanin.App, seen: Seen) -> str | None:
    """Why a job of a step did not complete, in a line; of one that completed, its first failure."""
    if seen.makes:
        said = _failure(app, seen.first)
        return said and f"its parts could not be made: {said.partition(': ')[2]}"
    said = _failure(app, seen.meant) if seen.progress.failed else None  # looked for where there is one to be found
    return said or (seen.meant.reason if seen.meant.status in BAD else None)


def _failure(app: fanin.App, job: JobRow) -> str | None:
    found = app.store.read(lambda: read.failures(job.bucket, job.id, 0, limit=1))
    failed = [one for one in found if one.status == "failed"]
    return told(failed[0], below_of(app, job.id, failed[0])) if failed else None


def told(failure: Failure, below: Below | None) -> str:
    """A failure in a line, with what failed first at the bottom."""
    return str(failure).partition("\n")[0] + (f"; {below}" if below else "")


def below_of(app: fanin.App, job_id: str, failure: Failure) -> Below | None:
    """What failed first at the bottom of the nested jobs, where a part failed with one."""
    if failure.type != NESTED_FAILED:
        return None
    return app.store.read(lambda: read.below(app.store.bucket(job_id), job_id, failure.idx))


def purpose(app: fanin.App, row: JobRow) -> str | None:
    """What a built-in job is for: the items of which task it makes, and which step that undoes. None for another."""
    if row.task != EXPAND:
        return None
    part = app.store.read(lambda: read.part(row.bucket, row.id, 0))
    if part is None:
        return None
    order = msgspec.json.decode(part["payload"], type=list[_Order])[0]
    undone = (row.step or "").partition(UNDO)[2]
    return f"items of {order.plan.task}" + (f", to undo {undone}" if undone else "")


class _Order(msgspec.Struct):
    plan: Plan
