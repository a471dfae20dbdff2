"""The end of runs: state, event, successor and listeners, written together.

The stripes of each job that ends are held by this transaction, or were emptied by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from fanin.domain import identity
from fanin.domain.events import PAYLOAD_VERSION, EndedBy
from fanin.domain.flows import EXPAND
from fanin.domain.model import Spec
from fanin.domain.policy import Counts, Ending
from fanin.protocol import advance, counting, waiting
from fanin.protocol.advance import Moved
from fanin.protocol.born import Born, refused_facts
from fanin.protocol.counting import Counted, Endings
from fanin.protocol.steps import Apart, Room, Rows, Txn, one
from fanin.protocol.waiting import Risen

SQL = Room("ending")

Event = tuple[str, int, int, dict[str, Any]]
"""(job id, run, sequence number, facts) of an end."""

By = Callable[[str], EndedBy | None]
"""Job id to the attempt that ended it. Asked only of jobs that end."""


class Held(NamedTuple):
    """What a transaction holds of several jobs: a stripe of each up to ``last``. ``going_on``: also the row of one that
    does not end by it."""

    last: str | None
    going_on: bool = False

    @staticmethod
    def of(jobs: Iterable[str], going_on: bool) -> Held:
        """``jobs``: those of which it holds stripes."""
        several = set(jobs)
        return Held(max(several), going_on) if len(several) > 1 else ALONE

    def may_go_up(self, risen: Sequence[Risen]) -> bool:
        """Whether the stripes of the jobs above are locked after all that is held, as everybody else locks them."""
        return self.last is None or (not self.going_on and min(one.job_id for one in risen) > self.last)

    def and_above(self, risen: Sequence[Risen], counted: Counted) -> Held:
        """With those, which were counted."""
        return self if self.last is None else Held(max(one.job_id for one in risen), counted.going_on)


ALONE = Held(None)
"""One job: the part that waits for it stands in one that sorts after it, and so on."""


def nobody(job_id: str) -> EndedBy | None:
    """No attempt ended the job: a deadline or a person did, or it had no parts."""
    return None


def end_emptied(bucket: int, job_id: str) -> Txn[None]:
    """End a sealed job that has no live part: no worker will arrive to do it."""
    yield from end(bucket, {job_id: (yield from counting.natural_end(bucket, job_id))})


def end(bucket: int, endings: Endings, by: By = nobody, held: Held = ALONE) -> Txn[None]:
    """The end of runs: state, event and successor together. The stripes of each job are held or emptied by us.

    A part that waits for such a job is settled here too, and may end the job above in its turn. So is the step of a
    flow that such a job ran, which may start others. ``held``: what else this transaction holds. Raises `Apart` if it
    would not go on in the order of locks.
    """
    events: list[Event] = []
    born: list[Born] = []
    moved: list[Moved] = []
    made: dict[str, str] = {}
    """Of jobs that wait for one that did not complete: why it did not."""
    while endings:
        risen: list[Risen] = []
        answers: dict[str, Rows] = {}
        for job_id, (how, counts) in sorted(endings.items()):  # all are sent before any is looked at
            answers[job_id] = yield SQL.end_job(
                bucket=bucket, job_id=job_id, status=how.status, outcome=how.outcome, reason=how.reason,
                succeeded=counts.succeeded, failed=counts.failed, abandoned=_abandoned(counts),
            )  # fmt: skip
        for job_id, rows in answers.items():
            (how, counts), ended = endings[job_id], Ended(*one(rows))
            facts = {
                "job_id": job_id, "run": ended.run, "status": how.status, "outcome": how.outcome,
                "reason": how.reason, "succeeded": counts.succeeded, "failed": counts.failed,
                "abandoned": _abandoned(counts), "key": ended.key, "task": ended.task, "ended_by": by(job_id),
            }  # fmt: skip
            events.append((job_id, ended.run, ended.seq, facts))
            children = _followers(job_id, ended, how, facts)
            born += children
            risen += _risen(job_id, ended, how, children)
            if ended.flow_id is not None and ended.flow_step is not None:
                end = "done" if how.status == "completed" else "skipped" if how.skipped else "failed"
                said = _said(job_id, how)
                if ended.task == EXPAND and how.outcome == "too_many_failures":
                    said = made.get(job_id) or (yield from _not_made(bucket, job_id, ended.run))
                moved.append(Moved(ended.flow_id, ended.flow_step, job_id, end, said))
        if not risen:
            break
        if not held.may_go_up(risen):
            raise Apart
        made |= {one.job_id: one.failure for one in risen if one.failure is not None}
        counted = yield from waiting.rise(bucket, risen)
        endings, by, held = counted.endings, nobody, held.and_above(risen, counted)
    if moved:
        born += yield from advance.advance(bucket, moved)
    for child in born:
        if child.refused:
            events.append((child.id, 1, 1, child.refused_facts()))
    for job_id, run, seq, facts in events:
        key = identity.finished_key(job_id, run)
        yield SQL.announce(bucket=bucket, event_key=key, job_id=job_id, seq=seq, payload=_payload(facts))
    for child in born:
        yield from child.create(bucket)


def announce_refused(bucket: int, job_id: str, task: str, reason: str) -> Txn[None]:
    """The event of a job that was born ended."""
    key, payload = identity.finished_key(job_id, 1), _payload(refused_facts(job_id, task, reason))
    yield SQL.announce(bucket=bucket, event_key=key, job_id=job_id, seq=1, payload=payload)


def _abandoned(counts: Counts) -> int:
    """Those that an end leaves behind, and those of earlier runs."""
    return counts.remaining + counts.abandoned


class Ended(NamedTuple):
    """What `end_job` says of the job."""

    run: int
    seq: int
    successor: str | None
    root_id: str | None
    depth: int
    key: str | None
    task: str
    listeners: str | None
    waiter_id: str | None
    waiter_idx: int | None
    flow_id: str | None
    flow_step: int | None


def _followers(job_id: str, ended: Ended, how: Ending, facts: dict[str, Any]) -> list[Born]:
    """The successor comes first, if there is to be one."""
    root, depth = ended.root_id or job_id, ended.depth + 1

    def follower(spec: Spec, payload: str, waiter: tuple[str, int] | None) -> Born:
        child_id = identity.successor_id(job_id, spec.step, ended.run)
        return Born(child_id, spec, payload, job_id, root, depth, waiter)

    found = []
    if ended.successor is not None and how.proceeds:
        spec = msgspec.json.decode(ended.successor, type=Spec)
        told = facts if spec.batch is None else {**facts, "batch": spec.batch}
        waiter = None if ended.waiter_id is None or ended.waiter_idx is None else (ended.waiter_id, ended.waiter_idx)
        found.append(follower(spec, _json({"joined": told, "extra": spec.extra}), waiter))
    for spec in msgspec.json.decode(ended.listeners, type=list[Spec]) if ended.listeners else ():
        found.append(follower(spec, f"[{_payload(facts)}]", None))
    return found


def _risen(job_id: str, ended: Ended, how: Ending, children: list[Born]) -> list[Risen]:
    """What the part learns that waits for this job: nothing yet if a successor goes on with its work."""
    if ended.waiter_id is None or ended.waiter_idx is None:
        return []
    for child in children:
        if child.waiter is not None:
            if not child.refused:
                return []
            return [Risen(ended.waiter_id, ended.waiter_idx, child.id, f"job {child.id} was refused: {child.refused}")]
    said = None if how.status == "completed" else _said(job_id, how)
    return [Risen(ended.waiter_id, ended.waiter_idx, job_id, said)]


def _said(job_id: str, how: Ending) -> str:
    return f"job {job_id} {how.status} ({how.outcome})" + (f": {how.reason}" if how.reason else "")


def _not_made(bucket: int, job_id: str, run: int) -> Txn[str]:
    """Why the one part failed that was to make the job of a step."""
    found = yield from advance.refused(bucket, job_id, run)
    return f"job {found[0]} was refused: {found[1]}" if found else f"its parts could not be made, see job {job_id}"


def _payload(facts: dict[str, Any]) -> str:
    """The payload of the event of an end."""
    return _json({"version": PAYLOAD_VERSION, **facts})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
