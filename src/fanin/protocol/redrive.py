"""T10: a new run of an ended job for the parts that failed or were abandoned. Succeeded parts are never run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fanin.domain.errors import NotAllowedNow, UnknownJob
from fanin.domain.identity import NIL
from fanin.domain.model import Spec
from fanin.protocol import deeds, read, skip
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import Again, Room, Txn, one

SQL = Room("redrive")


def redrive(
    bucket: int,
    job_id: str,
    run: int,
    attempts: int,
    chosen: Sequence[int] | None = None,
    give_up_after: float | None = None,
    done: Deed | None = None,
    owned: bool = False,
) -> Txn[int]:
    """Open the run after ``run``, the one that the caller has seen. Returns the new run's number.

    0 if no part is failed or abandoned: nothing is written then. If a later run stands already, its number: two callers
    at once open one run, and saying it again opens no other. ``chosen`` are part indexes, None for all. Each revived
    part gets ``attempts`` more. ``owned``: it is the part which ends with this job, or the flow of which it is a step,
    that is run again. Raises `NotAllowedNow` while run ``run`` has not ended, and if such a job is redriven by itself.
    """
    parts = yield SQL.lock_ended_parts(
        bucket=bucket, job_id=job_id, everything=chosen is None, chosen=list(chosen or ())
    )
    stripes = yield SQL.lock_stripes(bucket=bucket, job_id=job_id)
    rows = yield SQL.standing(bucket=bucket, job_id=job_id)
    if not rows:
        raise UnknownJob(f"there is no job {job_id}")
    status, standing, queue, waiter_id, flow_id = rows[0]
    if not owned and (waiter_id or flow_id):
        owner = f"flow {flow_id}, whose step it is" if flow_id else f"job {waiter_id}, of which a part ends with it"
        raise NotAllowedNow(f"job {job_id} is not redriven by itself: redrive {owner}")
    if standing > run:
        return int(standing)
    if status not in ("completed", "failed", "cancelled"):
        raise NotAllowedNow(f"job {job_id} is {status} (run {run}): it can be redriven when it has ended")
    counted = yield SQL.count_ended(bucket=bucket, job_id=job_id, everything=chosen is None, chosen=list(chosen or ()))
    if one(counted)[0] != len(parts):  # the late ones must be locked before the stripes, like the others
        raise Again(lambda: redrive(bucket, job_id, run, attempts, chosen, give_up_after, done, owned))
    unswept = sum(remaining for _, remaining, _ in stripes)
    if chosen is not None and (missing := sorted(set(chosen) - {row[0] for row in parts})):
        for idx in missing[:10]:
            if (yield from read.part(bucket, job_id, idx)) is None:
                raise skip.unknown_part(job_id, idx)
        raise NotAllowedNow(f"job {job_id}: parts {missing[:10]} are neither failed nor abandoned")
    if not parts and not unswept:
        return 0
    revived = yield SQL.revive_parts(
        bucket=bucket, job_id=job_id, attempts=attempts, chosen=[idx for idx, _, _ in parts]
    )
    assert len(revived) == len(parts), "a part that we hold changed under us"
    tally = Counter((stripe, status) for _, stripe, status in parts)
    live = 0
    for stripe, _, _ in stripes:
        failed, abandoned = tally[stripe, "failed"], tally[stripe, "abandoned"]
        opened = yield SQL.reopen_stripe(
            bucket=bucket, job_id=job_id, stripe=stripe, failed=failed, abandoned=abandoned
        )
        live += int(one(opened)[0] > 0)
    created = int(one((yield SQL.created(bucket=bucket, job_id=job_id)))[0])
    ((new_run,),) = yield SQL.reopen_job(
        bucket=bucket, job_id=job_id, open_stripes=live, created=created, give_up_after=give_up_after
    )
    if done is not None:
        yield from deeds.write_down(bucket, job_id, "redriven", done)
    yield SQL.ring(queue=queue)
    return int(new_run)


def tell_again(bucket: int, job_id: str, spec: Spec, told: str, anew: str) -> Txn[None]:
    """Open the next run of the job of a step, which has ended with the step and has one part.

    ``told``: what that part is told. If it was told the same before, it goes on with what it lacks. If not it begins
    ``anew``: with that payload, without its checkpoint, and without the jobs that it ended with.
    """
    status, same = one((yield SQL.lock_only_part(bucket=bucket, job_id=job_id, told=told, anew=anew)))
    ((stripe,),) = yield SQL.lock_only_stripe(bucket=bucket, job_id=job_id)
    _, _, queue, _, _ = one((yield SQL.standing(bucket=bucket, job_id=job_id)))
    if status in ("failed", "abandoned"):
        one((yield SQL.revive_parts(bucket=bucket, job_id=job_id, attempts=spec.attempts, chosen=[0])))
    if not same:
        one((yield SQL.tell_part(bucket=bucket, job_id=job_id, attempts=spec.attempts, payload=anew)))
        yield SQL.leave_behind(bucket=bucket, job_id=job_id, kept=NIL)
    opened = yield SQL.reopen_stripe(
        bucket=bucket, job_id=job_id, stripe=stripe, failed=int(status == "failed"),
        abandoned=int(status == "abandoned"),
    )  # fmt: skip
    assert one(opened)[0] == 1, "the job of a step has one part"
    one(
        (
            yield SQL.reopen_job(
                bucket=bucket, job_id=job_id, open_stripes=1, created=1, give_up_after=spec.give_up_after
            )
        )
    )
    yield SQL.ring(queue=queue)
