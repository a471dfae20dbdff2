"""T1, T2: create a job with all of its parts in one transaction, or open it, append in chunks, and seal.

The job id follows from its key (`fanin.domain.identity`), so the primary key alone holds "one key, one job"; the
stored hash of the content tells the same request from another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from fanin.domain import identity, limits, policy
from fanin.domain.errors import KeyConflict, LimitExceeded, NotAllowedNow, UnknownJob
from fanin.domain.identity import item_key, stripe_of
from fanin.domain.model import NewJob
from fanin.protocol import ending, growth, pause
from fanin.protocol.steps import Room, Row, Rows, Txn, one

SQL = Room("submit")

Chunks = Callable[[], Iterable[list[str]]]
"""Gives the payloads, in lists of at most `limits.CHUNK_PARTS`; called once per try of the transaction."""


def create(job: NewJob, parts: int, chunks: Chunks, keys: Chunks | None = None) -> Txn[bool]:
    """Create the job with all of its parts, sealed. True if it is new, False if the same request was made before.

    ``keys`` gives those of the parts of a growing job, in the same lists; by default they follow from the payloads. A
    job without parts ends in this transaction. Raises `KeyConflict` if the key stands for another content, or two parts
    of a growing job have one key, `NotAllowedNow` if it stands for an open job.
    """
    check_bounds(job, parts)
    created = [0] * job.stripes
    for first in range(0, parts, limits.STRIPE_RUN_PARTS):
        stripe = stripe_of(first, job.stripes, limits.STRIPE_RUN_PARTS)
        created[stripe] += min(limits.STRIPE_RUN_PARTS, parts - first)
    live = sum(1 for count in created if count)
    turn = yield from insert_job(job, "running", parts, live)
    if turn is None:
        return False
    judged = policy.decode(job.policy).judges_successes
    yield SQL.create_stripes(bucket=job.bucket, rows=[(job.id, s, n, True, judged) for s, n in enumerate(created)])
    inserted = 0
    known = iter(keys()) if keys is not None else None
    for chunk in chunks():
        if job.width is not None:
            yield from _first_keys(job, chunk, next(known) if known is not None else keys_of(chunk))
        yield SQL.create_parts(**chunk_of(job, turn, inserted, chunk))
        inserted += len(chunk)
    assert inserted == parts, f"planned {parts} parts, created {inserted}"
    if parts == 0:
        yield from ending.end_emptied(job.bucket, job.id)
    else:
        yield SQL.ring(queue=job.queue)
    return True


def open_job(job: NewJob) -> Txn[bool]:
    """Create an open job: parts may be appended, and may already run; it cannot finish before the seal.

    True if it is new; False if an open or ended job stands under the key (its content is judged at the seal).
    """
    check_bounds(job, 0)
    turn = yield from insert_job(job, "open", None, 0)
    if turn is None:
        return False
    judged = policy.decode(job.policy).judges_successes
    rows = [(job.id, stripe, 0, False, judged) for stripe in range(job.stripes)]
    yield SQL.create_stripes(bucket=job.bucket, rows=rows)
    return True


def append(bucket: int, job_id: str, first: int, payloads: list[str], delay: float = 0.0) -> Txn[int]:
    """Add parts ``first``, ``first+1``, … to an open job; those that stand already are compared and skipped.

    The new ones start in ``delay`` seconds. Returns how many were new. Raises `NotAllowedNow` if the job is sealed or
    closed, `LimitExceeded` past the width, `KeyConflict` if a part stands with another payload.
    """
    status, _, stripes, turn, priority, attempts, queue, task, *_, width, key = yield from _held(bucket, job_id)
    assert width is None, "parts of a growing job come by append_new, with their keys"
    if status != "open":
        raise NotAllowedNow(f"job {job_id} is {status}: parts can be added to an open job only")
    if first + len(payloads) > limits.JOB_WIDTH_PARTS:
        raise LimitExceeded(f"job {job_id} would have more than {limits.JOB_WIDTH_PARTS} parts; split it")
    job = NewJob(
        id=job_id,
        bucket=bucket,
        task=task,
        queue=queue,
        stripes=stripes,
        priority=priority,
        attempts=attempts,
        delay=delay,
    )
    fresh = yield SQL.append_parts(**chunk_of(job, turn, first, payloads))
    if len(fresh) < len(payloads):
        yield from compare(bucket, job_id, key, first, payloads)
    counts: dict[int, int] = {}
    for (stripe,) in fresh:
        counts[stripe] = counts.get(stripe, 0) + 1
    if counts:
        counted = yield SQL.add_created(bucket=bucket, job_id=job_id, rows=sorted(counts.items()))
        if len(counted) != len(counts):
            raise NotAllowedNow(f"job {job_id} was sealed or closed meanwhile: these parts were not added")
        yield from pause.came(bucket, job_id, first)
        yield SQL.ring(queue=queue)
    return len(fresh)


def append_new(bucket: int, job_id: str, first: int, items: Sequence[growth.Item], delay: float = 0.0) -> Txn[int]:
    """`append` for a growing job: an item whose key the job has seen is left out, whoever added it.

    Returns how many of the items stand as planned parts now. Raises as `append` does.
    """
    stripes = yield SQL.lock_for_seal(bucket=bucket, job_id=job_id)
    status, _, many, turn, priority, attempts, queue, task, *_, width, key = yield from _held(bucket, job_id)
    if status != "open" or any(sealed or closed for *_, sealed, closed in stripes):
        raise NotAllowedNow(f"job {job_id} is sealed or closed: parts can be added to an open job only")
    standing = yield from compare(bucket, job_id, key, first, [payload for _, payload in items])
    fresh = [(idx, *item) for idx, item in enumerate(items, first) if idx not in standing]
    new = yield from growth.add_keys(bucket, job_id, (item for _, item, _ in fresh))
    rows: list[Row] = []
    counts: dict[int, int] = {}
    for idx, item, payload in fresh:
        if item in new:
            new.discard(item)  # the first of two items with one key is the part
            stripe = stripe_of(idx, many, limits.STRIPE_RUN_PARTS)
            counts[stripe] = counts.get(stripe, 0) + 1
            rows.append((idx, stripe, turn + idx, None, payload))
    ((created, _),) = yield growth.SQL.totals(bucket=bucket, job_id=job_id)
    if created + len(rows) > width or first + len(items) > limits.JOB_WIDTH_PARTS:
        raise LimitExceeded(
            f"job {job_id} would have more than {width} parts: split it, or open it with a larger grows=…"
        )
    for chunk in growth.chunks(rows):
        yield growth.SQL.add_parts(
            bucket=bucket, job_id=job_id, rows=chunk, task=task, queue=queue, priority=priority, attempts=attempts,
            delay=delay,
        )  # fmt: skip
    if counts:
        counted = yield SQL.add_created(bucket=bucket, job_id=job_id, rows=sorted(counts.items()))
        assert len(counted) == len(counts), "a stripe that we hold changed under us"
        yield from pause.came(bucket, job_id, first)
        yield SQL.ring(queue=queue)
    return len(standing) + len(rows)


def compare(bucket: int, job_id: str, key: str | None, first: int, payloads: list[str]) -> Txn[set[int]]:
    """Which of the parts ``first``, ``first+1``, … stand. Raises `KeyConflict` if one has another payload."""
    past = first + len(payloads)
    standing = yield SQL.standing_parts(bucket=bucket, job_id=job_id, first=first, past=past)
    for idx, payload in standing:
        if payload != payloads[idx - first]:
            raise KeyConflict(
                f"part {idx} of the open job {key or job_id} stands with another payload: say the same items "
                "again, or choose another key"
            )
    return {idx for idx, _ in standing}


def seal(bucket: int, job_id: str, planned: int, request_hash: str | None, keep_deadline: bool) -> Txn[bool]:
    """Close the part set and start the countdown. True if this call did it, False if it was done before.

    A job whose parts have all ended, or that has none, ends here. Raises `NotAllowedNow` if planned and created
    counts differ, `KeyConflict` if the sealed job has another content.
    """
    status, old_hash, *_, key = yield from _held(bucket, job_id)
    if status != "open":
        _compare(key or job_id, old_hash, request_hash)
        return False
    stripes = yield SQL.lock_for_seal(bucket=bucket, job_id=job_id)
    if any(sealed or closed for *_, sealed, closed in stripes):
        status, old_hash, *_, key = yield from _held(bucket, job_id)
        _compare(key or job_id, old_hash, request_hash)
        return False
    created = sum(row[1] for row in stripes)
    if created != planned:
        raise NotAllowedNow(f"job {job_id}: planned {planned} parts, but {created} were created; append the rest")
    yield SQL.seal_stripes(bucket=bucket, job_id=job_id)
    live = sum(1 for row in stripes if row[2] > 0)
    one(
        (
            yield SQL.seal_job(
                bucket=bucket,
                id=job_id,
                created=created,
                open_stripes=live,
                request_hash=request_hash,
                keep=keep_deadline,
            )
        )
    )
    if live == 0:
        yield from ending.end_emptied(bucket, job_id)
    return True


def check_bounds(job: NewJob, parts: int) -> None:
    """Raise `LimitExceeded` before anything is written."""
    if parts > limits.JOB_WIDTH_PARTS:
        raise LimitExceeded(
            f"{parts} parts are more than one job may have ({limits.JOB_WIDTH_PARTS}): put several items in one part"
        )
    if job.width is not None and parts > job.width:
        raise LimitExceeded(f"{parts} parts are more than this job may have ({job.width}): give a larger grows=…")
    if job.depth > limits.JOB_DEPTH_LEVELS:
        raise LimitExceeded(
            f"job depth {job.depth} is over the limit of {limits.JOB_DEPTH_LEVELS}: jobs that start jobs of their "
            "own kind must stop somewhere; start this one from outside a handler if it is meant"
        )


def check_tree(job: NewJob, root_id: str, parts: int) -> Txn[None]:
    """Raise `LimitExceeded` before anything is written, if the job is new and its tree would become too large.

    What others add at this moment is not seen: the sum is an estimate, and no lock is taken for it.
    """
    ((units,),) = yield SQL.tree_size(bucket=job.bucket, root_id=root_id)
    if int(units) * limits.TREE_UNIT_PARTS + parts <= limits.TREE_PARTS:
        return
    if (yield SQL.find_job(bucket=job.bucket, id=job.id)):
        return  # it is asked for again
    raise LimitExceeded(
        f"the tree below job {root_id} would have more than about {limits.TREE_PARTS} parts, which is the limit: put "
        "several items in one part, or submit some of the work from outside a handler, as a tree of its own"
    )


def insert_job(job: NewJob, status: str, parts: int | None, live: int) -> Txn[int | None]:
    """Insert the job row. Its first turn, or None if the same request stands there already."""
    weight = None
    if job.parent_bucket is not None and not (yield SQL.hold_parent(bucket=job.parent_bucket, id=job.parent_id)):
        raise NotAllowedNow(f"job {job.parent_id}, whose handler asks for this one, has ended and was purged")
    if job.root_id is not None:
        weight = identity.tree_weight(job.id, parts or 0, limits.TREE_UNIT_PARTS) or None
        yield from check_tree(job, job.root_id, parts or 0)
    if job.key is not None:
        existing = yield SQL.find_job(bucket=job.bucket, id=job.id)
        if existing:
            _same_request(job, existing, status)
            return None
    fresh = yield SQL.create_job(
        bucket=job.bucket,
        id=job.id,
        task=job.task,
        queue=job.queue,
        key=job.key,
        request_hash=job.request_hash,
        status=status,
        planned=parts if parts is not None else job.planned,
        sealed=parts,
        open_stripes=live,
        stripes=job.stripes,
        priority=job.priority,
        attempts=job.attempts,
        policy=job.policy,
        successor=job.successor,
        parent_id=job.parent_id,
        root_id=job.root_id,
        step=job.step,
        depth=job.depth,
        meta=job.meta,
        listeners=job.listeners,
        waiter_id=job.waiter_id,
        waiter_idx=job.waiter_idx,
        flow_id=job.flow_id,
        flow_step=job.flow_step,
        width=job.width,
        tree_weight=weight,
        batch=job.batch,
        spawn_from=None if job.width is None else limits.JOB_WIDTH_PARTS if parts is None else parts,
        failure_events=job.failure_events,
        progress_every=job.progress_every,
        give_up_after=job.give_up_after,
        give_up_at=job.give_up_at,
        stale_after=job.stale_after,
        stale=job.stale,
    )
    repeatable = job.key is not None or job.parent_id is not None or (job.step or "").startswith(identity.SCHEDULED)
    left = (yield SQL.rows_left(bucket=job.bucket, id=job.id)) if repeatable else ()
    if not fresh:
        _same_request(job, (yield SQL.find_job(bucket=job.bucket, id=job.id)), status)
        return None
    if left:
        raise NotAllowedNow(
            f"the job of {job.key or job.id!r} was purged, and its rows are still being removed: try again when "
            "`fanin purge` is done" + (", or choose another key" if job.key else "")
        )
    return int(one(fresh)[0])


def _same_request(job: NewJob, existing: Rows, wanted: str) -> None:
    _, old_hash, status, planned = one(existing)
    if status == "open" and wanted != "open":
        raise NotAllowedNow(
            f"the job of {job.key or job.id!r} is still being streamed, or its creator died meanwhile: make the call "
            "that began it again (with stream=True, or app.open) to finish it, or cancel it"
        )
    if status != "open":
        # A stream has no hash before its end, and a plan only by a redrive, with what had come.
        whole_asked = planned is not None if wanted == "open" else job.request_hash is not None
        if old_hash is None and whole_asked:
            raise KeyConflict(
                f"the job of {job.key or job.id!r} ended before all of its parts had come, so it is not what is asked "
                "for now: choose another key"
            )
        _compare(job.key or job.id, old_hash, job.request_hash)


def _compare(name: str, old: str | None, new: str | None) -> None:
    if old is not None and new is not None and old != new:
        raise KeyConflict(
            f"the key {name!r} was used before with another content: choose another key, or ask for the same parts, "
            "task and options"
        )


def chunk_of(job: NewJob, turn: int, first: int, payloads: list[str]) -> dict[str, Any]:
    """The values of `create_parts` and `append_parts` for the parts ``first``, ``first+1``, …"""
    return {
        "bucket": job.bucket, "job_id": job.id, "first": first, "payloads": payloads,
        "run_parts": limits.STRIPE_RUN_PARTS, "stripes": job.stripes, "delay": job.delay, "queue": job.queue,
        "task": job.task, "priority": job.priority, "turn": turn, "attempts": job.attempts,
    }  # fmt: skip


def keys_of(payloads: Iterable[str]) -> list[str]:
    """The keys of parts for which nobody has chosen others."""
    return [item_key(payload) for payload in payloads]


def _first_keys(job: NewJob, payloads: Sequence[str], keys: Sequence[str]) -> Txn[None]:
    """Note the keys of planned parts of a new job. Raises `KeyConflict` if one comes twice."""
    new = yield from growth.add_keys(job.bucket, job.id, keys)
    for payload, key in zip(payloads, keys, strict=True):
        if key not in new:
            raise KeyConflict(
                f"two items have one key in a job that grows, one of them is {payload[:200]}: leave it out"
            )
        new.discard(key)


def _held(bucket: int, job_id: str) -> Txn[Row]:
    rows = yield SQL.held_job(bucket=bucket, id=job_id)
    if not rows:
        raise UnknownJob(f"there is no job {job_id}")
    return rows[0]


def in_chunks(payloads: Iterable[str]) -> Iterable[list[str]]:
    """Cut a stream of payloads into lists that one INSERT can carry."""
    stream = iter(payloads)
    while chunk := list(islice(stream, limits.CHUNK_PARTS)):
        yield chunk
