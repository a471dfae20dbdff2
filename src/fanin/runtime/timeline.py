"""From the rows that are known of a job to moments that a person can read, in the order of time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fanin.domain import policy, repairs
from fanin.domain.durations import span
from fanin.domain.errors import UnknownJob, UnknownPart
from fanin.domain.identity import LISTENER
from fanin.domain.limits import HELD_SECONDS, NEVER_SECONDS
from fanin.domain.model import Below, JobRow
from fanin.domain.timeline import Explanation, Hand, Moment, Trouble
from fanin.protocol.explain import Known
from fanin.protocol.steps import Rows
from fanin.runtime.outcome import in_a_line

HANDS = 20
SAME_SECONDS = 1.0
"""A transaction that ends a run takes less, as a rule."""
IDLE_SECONDS = 10.0
"""A part that waits so long while nothing runs is waited for."""
SHORT = 13
"""As much of an id as a person needs."""


def explanation(job_id: str, known: Known | None, part: int | None = None) -> Explanation:
    """Raises `UnknownJob`, `UnknownPart`."""
    if known is None:
        raise UnknownJob(f"there is no job {job_id}")
    if part is not None and known.part is None:
        raise UnknownPart(f"job {job_id} has no part {part}: they count from 0")
    job = known.job
    moments = [
        _created(job),
        *_attempts(known),
        *deeds(known.deeds, part_deed),
        *_repairs(known),
        *_ends(known),
        *_family(known),
        *_work(known),
    ]
    moments += _live(known) if part is None else _standing(known, part)
    moments.sort(key=_place(moments))
    hands = [Hand(worker or "?", *rest) for worker, *rest in known.workers]
    troubled = [Trouble(*row) for row in known.troubled if row[1] > 1]
    return Explanation(job.id, job.status, job.outcome, job.reason, moments, hands[:HANDS], troubled)


def _place(moments: list[Moment]) -> Callable[[Moment], tuple[float, bool]]:
    """What ended a run is written after its end, in the same transaction; it is told before it."""
    ends = [end for end in moments if end.what == "ended" and end.run is not None]
    attempts: dict[tuple[int | None, int | None], float] = {
        (end.part, end.attempt): end.at for end in ends if end.part is not None
    }
    runs = {end.run: end.at for end in ends}
    again = [one.at for one in moments if one.what == "redriven"]

    def just_ended(at: float) -> float | None:
        """When the run ended in which no part could fail, or be skipped, so soon afterwards."""
        end = max((end.at for end in ends if end.at <= at), default=-math.inf)
        return end if at - end < SAME_SECONDS and not any(end <= redrive <= at for redrive in again) else None

    def place(one: Moment) -> tuple[float, bool]:
        if one.what == "ended" and one.run is not None:
            return one.at, True
        ended = runs.get(one.run) if one.what in ("finished", "cancelled") else attempts.get((one.part, one.attempt))
        if ended is None and one.what in ("failed", "skipped", "ended"):
            ended = just_ended(one.at)
        return one.at if ended is None else min(one.at, ended), False

    return place


def _created(job: JobRow) -> Moment:
    rule = policy.decode(job.policy)
    width = "an open job" if job.sealed_parts is None else _many(job.sealed_parts, "part")
    joined = "all must succeed"
    if rule.quorum is not None:
        joined = f"{rule.quorum} must succeed"
    elif rule.tolerate_percent is not None:
        joined = f"{rule.tolerate_percent:g} % may fail"
    elif rule.tolerate:
        joined = f"{rule.tolerate} may fail"
    said = [f"created: {width} of {job.task} in queue {job.queue}"]
    said += [f"may grow to {_many(job.width, 'part')}"] if job.width is not None else []
    said.append(joined)
    said.append(f"{_many(job.attempts, 'attempt')} each" + (", ends early" if rule.fail_fast else ""))
    if job.parent_id is not None:
        said.append(("follows " if job.step else "started by a part of job ") + job.parent_id[:SHORT])
    return Moment(job.created_at, "created", ", ".join(said), run=1, job=job.id)


def _attempts(known: Known) -> Iterator[Moment]:
    seen: Counter[str] = Counter()
    for at, idx, attempt, what, worker, holder, error, of_kind in known.attempts:
        became = _became(what, attempt, holder, error, known.below.get((idx, attempt)))
        text = f"part {idx}, attempt {attempt}{_on(worker)}: {became}"
        yield Moment(at, what, text, part=idx, attempt=attempt, holder=holder, worker=worker)
        seen[what] += 1
        yield from _gap(at, what, seen, of_kind, _shown(known.attempts, 3)[what])


def _became(what: str, attempt: int, holder: int | None, error: str | None, below: Below | None) -> str:
    why = ("" if error is None else in_a_line(error)) + (f"; {below}" if below else "")
    if what == "refused":
        if holder is not None and holder != attempt:
            return f"its report was refused, attempt {holder} held the part"
        return "its report was refused, the job had been closed"
    return {
        "retried": f"failed ({why}), to be tried again", "failed": f"failed for good ({why})",
        "released": "given back", "lease_lost": "its lease ran out", "stopped": "told to stop, the part was lost",
    }.get(what, what)  # fmt: skip


def deeds(rows: Rows, said: Callable[[int | None, str], str], job: str | None = None) -> Iterator[Moment]:
    """What was done from outside; ``said``: the deed to a part, or to a step, in words."""
    seen: Counter[str] = Counter()
    for at, idx, what, who, reason, run, of_kind in rows:
        text = said(idx, what) + (f" by {who}" if who else "") + (f": {reason}" if reason else "")
        yield Moment(at, what, text, part=idx, worker=who, run=run, job=job)
        seen[what] += 1
        yield from _gap(at, what, seen, of_kind, _shown(rows, 2)[what])


def part_deed(idx: int | None, what: str) -> str:
    return what if idx is None else f"part {idx} {what}"


def _repairs(known: Known) -> Iterator[Moment]:
    seen: Counter[str] = Counter()
    for at, what, which, before, after, run, of_kind in known.repairs:
        text = repairs.told(what, which, msgspec.json.decode(before), msgspec.json.decode(after))
        named = "damaged" if what == "damaged" else "repaired"
        yield Moment(at, named, text, part=which if what == "part" else None, run=run)
        seen[what] += 1
        yield from _gap(at, f"repaired {what}", seen, of_kind, _shown(known.repairs, 1)[what], what)


def _shown(rows: Any, column: int) -> Counter[str]:
    return Counter(row[column] for row in rows)


def _gap(
    at: float, what: str, seen: Counter[str], of_kind: int, shown: int, kind: str | None = None
) -> Iterator[Moment]:
    """After the first half of what is shown of a kind: how many were left out."""
    if of_kind > shown and seen[kind or what] == (shown + 1) // 2:
        yield Moment(at, "more", f"… and {_many(of_kind - shown, what + ' line')} more", count=of_kind - shown)


def _ends(known: Known) -> Iterator[Moment]:
    for payload, at, status, published_at in known.ends:
        facts = msgspec.json.decode(payload)
        counts = ", ".join(f"{facts[name]} {name}" for name in ("succeeded", "failed", "abandoned") if facts[name])
        by = facts.get("ended_by")
        how = f"run {facts['run']} ended: {facts['status']}, {facts['outcome']}"
        text = f"{how} ({counts or 'no parts'})" + (f": {facts['reason']}" if facts["reason"] else "")
        if by is not None:
            text += f"; by part {by['part']}, attempt {by['attempt']}{_on(by['worker'])}"
        yield Moment(
            at, "ended", f"{text}; its event is {status}", run=facts["run"], job=facts["job_id"],
            **({"part": by["part"], "attempt": by["attempt"], "worker": by["worker"]} if by else {}),
        )  # fmt: skip
        yield from published(published_at, facts["run"])


def published(at: float | None, run: int) -> Iterator[Moment]:
    if at is not None:
        yield Moment(at, "published", f"the event of run {run} was delivered", run=run)


def _family(known: Known) -> Iterator[Moment]:
    for n, (job_id, step, task, at, status, outcome, of_all) in enumerate(known.family, 1):
        stands = f"now {status}" + (f", {outcome}" if outcome else "")
        if step is None:
            yield Moment(at, "child", f"a part started job {job_id[:SHORT]} of {task}: {stands}", job=job_id)
        else:
            which = "listener" if step.startswith(LISTENER) else "successor"
            yield Moment(at, "successor", f"{which} {job_id[:SHORT]} of {task} was created: {stands}", job=job_id)
        if n == len(known.family) < of_all:
            yield Moment(at, "more", f"… and {_many(of_all - n, 'job')} more", count=of_all - n)


def _work(known: Known) -> Iterator[Moment]:
    """When the parts that stand ended; the time between is the length of the work."""
    if known.workers:
        total = sum(row[1] for row in known.workers)
        latest = known.job.finished_at or time.time()  # a part that failed has the pause before another try in its row
        yield Moment(min(latest, *(row[3] for row in known.workers)), "first", "the first part ended")
        if total > 1:
            yield Moment(
                min(latest, max(row[4] for row in known.workers)), "last", f"the last of {_many(total, 'part')} ended"
            )


def _live(known: Known) -> Iterator[Moment]:
    """How the live parts stand; and why none goes on, as far as that can be seen here."""
    job, found = known.job, {stands: rest for stands, *rest in known.live}
    if job.ended:
        return
    said, waited = [], 0.0
    if "running" in found:
        said.append(f"{_many(found['running'][0], 'part')} in hand")
    if "ready" in found:
        count, since, now = found["ready"]
        waited = now - since
        said.append(f"{_many(count, 'part')} ready, the first of them for {span(waited)}")
    if "later" in found:
        count, due, now = found["later"]
        said.append(f"{_many(count, 'part')} due later, the first of them in {span(due - now)}")
    if "nested" in found:
        said.append(f"{_many(found['nested'][0], 'part')} waiting for jobs of their own")
    if "held" in found:
        said.append(f"{_many(found['held'][0], 'part')} held back: the job is paused")
    text = f"now {job.status}: " + (", ".join(said) or "no part is live")
    if "running" not in found and waited > IDLE_SECONDS:
        text += f"; it seems that no worker of queue {job.queue} has time and knows the task {job.task}"
    if job.status == "open":
        text += "; parts may still be added"
    yield Moment(known.live[0][3] if known.live else time.time(), "now", text)


def _standing(known: Known, part: int) -> Iterator[Moment]:
    assert known.part is not None
    status, attempt, allowed, worker, due_at, ready = known.part
    ended = status in ("succeeded", "failed")
    due_at = max((row[0] for row in known.attempts if row[2:4] == (attempt, "failed")), default=due_at)
    text = f"part {part} is {status} at attempt {attempt} of {allowed}{_on(worker)}"
    if due_at >= HELD_SECONDS:
        text, due_at = text + ", held back: the job is paused", due_at - HELD_SECONDS
    elif due_at == NEVER_SECONDS:
        text, due_at = text + ", waits for a job of its own", time.time()
    elif ready:
        text += ", ready to be claimed"
    elif status in ("pending", "running"):
        text += ", until here its lease lasts" if status == "running" else ", to be tried again now"
    yield Moment(due_at, "ended" if ended else "now", text, part=part, attempt=attempt, worker=worker)


def _on(worker: str | None) -> str:
    return f" on {worker}" if worker else ""


def _many(count: int, of: str) -> str:
    return f"{count:,} {of}{'' if count == 1 else 's'}".replace(",", " ")
