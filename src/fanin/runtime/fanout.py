"""A part that ends with a job of its own: what its handler returns, and how it is handed over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from fanin.domain import identity, limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.errors import BadOption, BadPayload, LimitExceeded, shown
from fanin.domain.model import Claim, JobRow, NewJob
from fanin.domain.policy import Policy, check_quorum, make_policy
from fanin.protocol import nest, read
from fanin.protocol.nest import Nested
from fanin.runtime.payloads import Spool
from fanin.runtime.successor import Then, spec_of
from fanin.runtime.task import Task, check_attempts, check_name, check_priority, check_task
from fanin.stores.base import Store


class FanOut(msgspec.Struct, frozen=True):
    """The job that a part ends with. Made by `Part.fan_out`, and returned by the handler.

    The part waits for it without a worker. Its result is that of the job: of its successor, where there is one, else
    the results of all parts, as a `Joined`. If the job does not complete, the part has failed.
    """

    __fanin_fan_out__ = True

    payloads: Iterable[str]
    task: str
    queue: str
    attempts: int
    priority: int
    policy: str = "{}"
    successor: str | None = None
    delay: float = 0.0
    give_up_after: float | None = None
    quorum: int | None = None
    width: int = limits.JOB_WIDTH_PARTS
    """The most parts that the application allows the job."""
    split: bool = False
    """Whether more parts than that become several jobs, joined as one."""
    standing: bool = False
    """The job was made with the part; all else that is said here does not count."""
    anew: str | None = None
    """The part has ended with another job before, of other items; says of which these are."""

    @staticmethod
    def of(
        task: Task[..., Any],
        items: Iterable[Any],
        *,
        then: Then | None = None,
        tolerate: int | str | None = None,
        fail_fast: bool | None = None,
        sample: int | None = None,
        quorum: int | None = None,
        give_up_after: Duration | None = None,
        give_up: str = "abandon",
        attempts: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration = 0.0,
        overflow: str = "refuse",
        **unknown: object,
    ) -> FanOut:
        """See `Part.fan_out`. Raises `BadOption`, `BadPayload`, `UnknownTask`."""
        check_task(task)
        if unknown:
            options = ", ".join(FanOut.of.__kwdefaults__ or ())
            raise BadOption(f"fan_out has no option {', '.join(unknown)}: use {options}")
        rank = task.priority if priority is None else check_priority(priority)
        policy = make_policy(tolerate, fail_fast, sample, quorum, give_up)
        return FanOut(
            payloads=task.signature.encode_items(items),
            task=task.name,
            queue=task.queue if queue is None else check_name(queue, "queue"),
            attempts=task.attempts if attempts is None else check_attempts(attempts),
            priority=rank,
            policy=msgspec.json.encode(policy).decode(),
            successor=None if then is None else spec_of(then, task, rank),
            delay=seconds(delay, "delay"),
            give_up_after=None if give_up_after is None else seconds(give_up_after, "give_up_after"),
            quorum=quorum,
            width=task.max_parts,
            split=check_overflow(overflow, policy),
        )


class Handed(NamedTuple):
    """What became of the part, the job that it ends with, and why it has failed, if it has."""

    what: Nested
    job_id: str
    why: str | None = None


def hand_over(value: FanOut, held: Claim, store: Store) -> Handed:
    """Make the job of a part that is held, and let the part wait for it: see `fanin.protocol.nest.nest`.

    A job that may not be, because it is too wide or too deep, would make its tree too large, or has an item that
    cannot be stored, is written down as refused. Raises `KeyConflict` if an earlier attempt has made the job with other
    items, `LeaseLost`.
    """
    above = store.read(lambda: read.job(held.bucket, held.job_id))
    assert above is not None, f"there is no job {held.job_id} of a part that is held"
    new = _nested_job(value, held, above)
    try:
        if value.standing:
            what, last = store.run(lambda: nest.rejoin(held, new))
        else:
            spool = _checked(value, new)
            new = spool.sealed(batched(new, len(spool), value.width))
            anew = value.anew is not None
            what, last = store.run(lambda: nest.nest(held, new, len(spool), spool.chunks, anew))
    except (LimitExceeded, BadPayload, BadOption) as problem:
        why = _plain(problem)
        refused = msgspec.structs.replace(new, id=identity.refused_id(held.job_id, held.idx, above.run))
        store.run(lambda: nest.refuse(held, refused, why))
        return Handed(Nested.REFUSED, refused.id, f"job {refused.id} was refused: {why}")
    return Handed(what, last, _bad_end(store, held.bucket, last) if what is Nested.FAILED else None)


def _bad_end(store: Store, bucket: int, job_id: str) -> str:
    row = store.read(lambda: read.job(bucket, job_id))
    return f"job {job_id} " + ("is gone" if row is None else f"{row.status} ({row.outcome}): {row.reason}")


def _nested_job(value: FanOut, held: Claim, above: JobRow) -> NewJob:
    return NewJob(
        id=identity.nested_id(held.job_id, held.idx, value.anew or ""), bucket=held.bucket, task=value.task,
        queue=value.queue, priority=value.priority, attempts=value.attempts, policy=value.policy,
        successor=value.successor,
        give_up_after=value.give_up_after, delay=value.delay, parent_id=above.id, root_id=above.root_id or above.id,
        depth=above.depth + 1, waiter_id=held.job_id, waiter_idx=held.idx,
    )  # fmt: skip


def _checked(value: FanOut, new: NewJob) -> Spool:
    """The parts, all of which may be. Raises `LimitExceeded`, `BadPayload`, `BadOption`."""
    deepest = new.depth + (new.successor is not None or value.split)
    if deepest > limits.JOB_DEPTH_LEVELS:
        what = "this job" if deepest == new.depth else "what belongs to this job (then=, or overflow='split')"
        raise LimitExceeded(
            f"{what} would stand {deepest} levels deep, the limit is {limits.JOB_DEPTH_LEVELS}: parts that fan out "
            "into their own kind must stop somewhere"
        )
    spool = Spool(value.payloads, limits.TREE_PARTS if value.split else value.width)
    check_quorum(value.quorum, len(spool))
    return spool


def batched(new: NewJob, parts: int, width: int) -> NewJob:
    """The same job, split if so many parts are more than it may have."""
    return new if parts <= width else msgspec.structs.replace(new, batch=width)


def check_overflow(overflow: str, policy: Policy, **apart: bool) -> bool:
    """Whether a job is to be split if it is too wide. ``apart``: options that cannot be combined with that.

    Raises `BadOption` for what would have no clear meaning over several jobs.
    """
    if overflow not in ("refuse", "split"):
        raise BadOption(f"overflow={shown(overflow)}: 'refuse', or 'split' into several jobs that are joined as one")
    if overflow == "refuse":
        return False
    apart = {
        "quorum": policy.quorum is not None, "give_up='proceed'": policy.give_up == "proceed",
        "a number for tolerate": policy.tolerate > 0, **apart,
    }  # fmt: skip
    for name, given in apart.items():
        if given:
            raise BadOption(
                f"overflow='split' cannot be combined with {name}, which would have to be judged over several jobs: "
                "give a share such as tolerate='1%', which holds for each of them, or leave overflow away"
            )
    return True


def _plain(problem: Exception) -> str:
    """The message as a text that any database can hold."""
    text = str(problem).removesuffix(". Nothing was written").replace("\0", "\\0")
    return text.encode("utf-8", "backslashreplace").decode()[: limits.REASON_CHARS]
