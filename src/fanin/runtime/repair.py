"""Look at jobs one by one, and put right what is wrong in them. Memory does not grow with their number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from fanin.domain import identity, limits
from fanin.domain.errors import Unavailable, UnknownJob
from fanin.domain.repairs import Repair, Repaired, plan
from fanin.protocol import repair as room
from fanin.stores.base import Store

log = logging.getLogger("fanin")

Tell = Callable[[Repaired], None]


def repair(store: Store, job_id: str | None = None, *, dry_run: bool = False, tell: Tell = lambda _: None) -> Repaired:
    """One pass over the jobs that go on and those that are not swept, or over one job in any state.

    Each job is looked at without locks, and written in transactions of its own only if something is wrong. Safe beside
    workers and other repairs. dry_run: only look. tell: called after each job. Raises `UnknownJob`.
    """
    done = Repaired()
    if job_id is not None:
        if not _one(store, store.bucket(job_id), job_id, dry_run, done):
            raise UnknownJob(f"there is no job {job_id}")
        tell(done)
        return done
    for bucket in range(store.buckets):
        for found in _candidates(store, bucket):
            _one(store, bucket, found, dry_run, done)
            tell(done)
    return done


def _candidates(store: Store, bucket: int) -> Iterator[str]:
    for pages in (room.live_jobs, room.unswept_jobs):
        page = store.read(partial(pages, bucket))
        while page:
            yield from page
            page = store.read(partial(pages, bucket, page[-1]))


def _one(store: Store, bucket: int, job_id: str, dry_run: bool, done: Repaired) -> bool:
    """False if there is no such job. What is wrong in one, and cannot be written, does not hold up the others."""
    seen = store.read(partial(room.look, bucket, job_id))
    if seen is None:
        return False
    done.looked += 1
    todo = plan(seen)
    if not todo:
        return True
    try:
        lines = room.plan_lines(job_id, seen, todo) if dry_run else _put_right(store, bucket, job_id, done)
    except Unavailable:
        raise
    except Exception as problem:
        log.exception("job %s cannot be repaired", job_id)
        lines = [Repair(job_id, "damaged", 0, {"found": f"it cannot be repaired: {problem}"}, {})]
    _add(done, lines)
    if dry_run:
        done.parts += todo.wrong
    done.repaired += any(line.what != "damaged" for line in lines) or bool(todo.wrong)
    return True


def _add(done: Repaired, lines: list[Repair]) -> None:
    done.parts += sum(line.what == "part" for line in lines)
    done.ended += sum(line.what == "ended" for line in lines)
    done.damaged += sum(line.what == "damaged" for line in lines)
    done.repairs += lines[: max(limits.REPAIRS_TOLD_MAX - len(done.repairs), 0)]


def _put_right(store: Store, bucket: int, job_id: str, done: Repaired) -> list[Repair]:
    first: int | None = 0
    while first is not None:
        mended = store.run(partial(room.mend, bucket, job_id, identity.new_claim_id(), first))
        _add(done, mended.lines)
        first = mended.past
    counted = store.run(partial(room.recount, bucket, job_id, identity.new_claim_id()))
    for line in counted.lines:
        if counted.fresh:
            log.log(logging.ERROR if line.what == "damaged" else logging.WARNING, "job %s %s", job_id, line)
    return counted.lines
