"""T5, T6, T7: reports about parts are settled, counted down, and whoever counts last ends the run.

    settle -> one guarded write of the parts
           -> count: their stripes, then the jobs' open stripes
           -> end: state, event, successor and listeners, in this same transaction

A batch has any size and any jobs of one bucket; a single part is a batch of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import msgspec

from fanin.domain import identity, limits, policy
from fanin.domain.events import PAYLOAD_VERSION
from fanin.domain.model import Claim, Report, Settled, Spec, Verdict
from fanin.domain.policy import Counts, Ending, Policy
from fanin.protocol.steps import Again, Room, Row, Rows, Txn, one

SQL = Room("finish")

Change = tuple[str, int, str]
"""(job id, stripe, ``succeeded`` or ``failed``): one part that has just ended."""


Token = tuple[str, int, int, str]
"""(job id, idx, attempt, claim id): what makes a report heard."""

Event = tuple[str, int, int, dict[str, Any]]
"""(job id, run, sequence number, facts) of an end."""


class Counted(msgspec.Struct, frozen=True):
    """What a count found: jobs that were closed before (the batch must be rolled back), and jobs that it ended."""

    closed: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()


def settle(
    bucket: int, reports: Sequence[Report], worker: str | None = None, closed: frozenset[str] = frozenset()
) -> Txn[list[Settled]]:
    """Settle a batch of reports; the answers stand in the order of the reports.

    Saying a report again changes nothing, so an unknown outcome is resolved by calling again with the same reports.
    ``closed`` names the jobs that an earlier try of this batch found closed: their parts get the verdict CLOSED.
    """
    # The first report of each token is heard. Of several tokens for one part at most one holds it.
    heard: dict[Token, int] = {}
    for n, report in enumerate(reports):
        if report.claim.job_id not in closed:
            heard.setdefault(token_of(report.claim), n)

    answers: dict[int, Settled] = {}
    ended: list[Change] = []
    log: list[Row] = []
    rows = [part_row(reports[heard[token]]) for token in sorted(heard)]
    changed = (yield from write(bucket, rows)) if rows else []
    for job_id, idx, attempt, claim_id, stripe, status in changed:
        n = heard[job_id, idx, attempt, claim_id]
        answers[n] = Settled(Verdict.OK, status, reports[n].claim.attempt)
        if status in ("succeeded", "failed"):
            ended.append((job_id, stripe, status))
        if status != "succeeded":
            log.append(_log_row(reports[n], status, worker))
    for n in range(len(reports)):
        if n not in answers:
            answer = yield from _explain(bucket, reports[n], closed)
            if answer is None:
                raise Again(lambda: settle(bucket, reports, worker, closed))
            answers[n] = answer
            if answer.verdict in (Verdict.LOST, Verdict.CLOSED):
                log.append(_refused_row(reports[n], answer, worker))

    if ended:
        counted = yield from count(bucket, ended)
        if counted.closed:
            raise Again(lambda: settle(bucket, reports, worker, closed | counted.closed))
        for n, answer in answers.items():
            if answer.verdict is Verdict.OK and reports[n].claim.job_id in counted.ended:
                answers[n] = msgspec.structs.replace(answer, verdict=Verdict.LAST)
    if log:
        log.sort(key=lambda row: row[:4])  # two batches may write down the same refusals: in one order
        yield SQL.log_attempts(bucket=bucket, rows=log)
    return [answers[n] for n in range(len(reports))]


def write(bucket: int, rows: Sequence[Row]) -> Txn[Rows]:
    """The guarded write of a batch: ``rows`` of `part_row`, sorted. A row comes back for each report that was heard."""
    return (yield SQL.settle_parts(bucket=bucket, rows=rows))


def reap(bucket: int, seen: Sequence[tuple[str, int, int]], closed: frozenset[str] = frozenset()) -> Txn[int]:
    """Fail the parts (job id, idx, attempt) whose last allowed attempt has run out of its lease. How many were.

    A part that was renewed, settled or swept since it was seen is left alone by the guard of the write.
    """
    rows = sorted(row for row in seen if row[0] not in closed)
    reaped = (yield SQL.reap_parts(bucket=bucket, rows=rows)) if rows else []
    if not reaped:
        return 0
    counted = yield from count(bucket, [(job_id, stripe, "failed") for job_id, _, stripe, _, _ in reaped])
    if counted.closed:
        raise Again(lambda: reap(bucket, seen, closed | counted.closed))
    error = _json({"type": "WorkerLost", "message": "the lease ran out and no attempt is left", "traceback": ""})
    log = [(job_id, idx, attempt, "failed", worker, None, error) for job_id, idx, _, attempt, worker in reaped]
    yield SQL.log_attempts(bucket=bucket, rows=log)
    return len(reaped)


def count(bucket: int, changes: Iterable[Change]) -> Txn[Counted]:
    """Count ended parts down, and end the jobs for which that decides: by the last part, or early by their policy.

    Goes through the jobs once for the stripes and once for the job rows, each time in ascending order.
    """
    tally = Counter(changes)
    policies: dict[str, Policy] = {}
    for job_id in sorted({job_id for job_id, _, status in tally if status == "failed"}):
        policies[job_id] = yield from _policy(bucket, job_id)

    closed: set[str] = set()
    early: dict[str, tuple[Ending, Counts]] = {}
    emptied: Counter[str] = Counter()
    for job_id, keys in groupby(sorted({key[:2] for key in tally}), key=lambda key: key[0]):
        judges = job_id in policies and policies[job_id].judges_failures
        if judges:
            yield SQL.lock_stripes(bucket=bucket, job_id=job_id)
        for _, stripe in keys:
            numbers = {
                "bucket": bucket, "job_id": job_id, "stripe": stripe,
                "succeeded": tally[job_id, stripe, "succeeded"], "failed": tally[job_id, stripe, "failed"],
            }  # fmt: skip
            counted = yield SQL.count_down(**numbers, locked=judges)
            if not counted and not judges:
                # Closed, or successes are judged too; the stripes of a job agree in both. Only a judged one may be
                # locked with all others now: a write that waited for a close keeps its one row locked, out of order.
                judges = any(judged for (judged,) in (yield SQL.judged(bucket=bucket, job_id=job_id, stripe=stripe)))
                if judges:
                    yield SQL.lock_stripes(bucket=bucket, job_id=job_id)
                    counted = yield SQL.count_down(**numbers, locked=True)
            if not counted:
                closed.add(job_id)
                break
            ((remaining, sealed),) = counted
            emptied[job_id] += int(remaining == 0 and bool(sealed))
        if judges and job_id not in closed:
            verdict = yield from _judge(bucket, job_id, policies.get(job_id))
            if verdict is not None:
                early[job_id] = verdict
    if closed:
        return Counted(closed=frozenset(closed))

    for job_id in sorted(early):
        yield SQL.close_stripes(bucket=bucket, job_id=job_id)
    natural = yield from emptied_jobs(bucket, {job_id: n for job_id, n in emptied.items() if job_id not in early})
    endings = {**early, **natural}
    yield from end(bucket, endings)
    return Counted(ended=frozenset(endings))


def emptied_jobs(bucket: int, emptied: dict[str, int]) -> Txn[dict[str, tuple[Ending, Counts]]]:
    """Take so many stripes that have just become empty off their jobs. How the jobs end that have none left."""
    endings: dict[str, tuple[Ending, Counts]] = {}
    for job_id in sorted(job_id for job_id, n in emptied.items() if n):
        ((open_stripes,),) = yield SQL.count_stripes(bucket=bucket, job_id=job_id, emptied=emptied[job_id])
        if open_stripes == 0:
            endings[job_id] = yield from _natural(bucket, job_id)
    return endings


def end_emptied(bucket: int, job_id: str) -> Txn[None]:
    """End a sealed job that has no live part: no worker will arrive to do it."""
    yield from end(bucket, {job_id: (yield from _natural(bucket, job_id))})


def end(bucket: int, endings: dict[str, tuple[Ending, Counts]]) -> Txn[None]:
    """The end of runs: state, event and successor together. The stripes of each job are held or emptied by us."""
    events: list[Event] = []
    born: list[_Successor] = []
    for job_id, (ending, counts) in sorted(endings.items()):
        abandoned = counts.remaining + counts.abandoned  # those that this end leaves behind, and of earlier runs
        ended = yield SQL.end_job(
            bucket=bucket, job_id=job_id, status=ending.status, outcome=ending.outcome, reason=ending.reason,
            succeeded=counts.succeeded, failed=counts.failed, abandoned=abandoned,
        )  # fmt: skip
        run, seq, successor, root_id, depth, key, task, listeners = one(ended)
        facts = {
            "job_id": job_id, "run": run, "status": ending.status, "outcome": ending.outcome,
            "reason": ending.reason, "succeeded": counts.succeeded, "failed": counts.failed,
            "abandoned": abandoned, "key": key, "task": task,
        }  # fmt: skip
        events.append((job_id, run, seq, facts))
        if successor is not None and ending.proceeds:
            spec = msgspec.json.decode(successor, type=Spec)
            payload = _json({"joined": facts, "extra": spec.extra})
            born.append(_Successor(spec, job_id, run, payload, root_id, depth + 1))
        for spec in msgspec.json.decode(listeners, type=list[Spec]) if listeners else ():
            born.append(_Successor(spec, job_id, run, f"[{_payload(facts)}]", root_id, depth + 1))
    for successor in born:
        if successor.refused:
            events.append((successor.id, 1, 1, successor.refused_facts()))
    for job_id, run, seq, facts in events:
        key = identity.finished_key(job_id, run)
        yield SQL.announce(bucket=bucket, event_key=key, job_id=job_id, seq=seq, payload=_payload(facts))
    for successor in born:
        yield from successor.create(bucket)


class _Successor(msgspec.Struct, frozen=True):
    """A job that follows a finished one: one part, created by the finish and by nothing else."""

    spec: Spec
    parent_id: str
    run: int
    payload: str
    root_id: str | None
    depth: int

    @property
    def id(self) -> str:
        return identity.successor_id(self.parent_id, self.spec.step, self.run)

    @property
    def refused(self) -> str | None:
        if self.depth <= limits.JOB_DEPTH_LEVELS:
            return None
        return f"depth {self.depth} is over the limit of {limits.JOB_DEPTH_LEVELS}"

    def refused_facts(self) -> dict[str, Any]:
        return {
            "job_id": self.id, "run": 1, "status": "failed", "outcome": "refused", "reason": self.refused,
            "succeeded": 0, "failed": 0, "abandoned": 0, "key": None, "task": self.spec.task,
        }  # fmt: skip

    def create(self, bucket: int) -> Txn[None]:
        spec, parent_id = self.spec, self.parent_id
        row: dict[str, Any] = {
            "bucket": bucket, "id": self.id, "task": spec.task, "queue": spec.queue, "priority": spec.priority,
            "attempts": spec.attempts, "parent_id": parent_id, "root_id": self.root_id or parent_id, "step": spec.step,
            "depth": self.depth,
        }  # fmt: skip
        if self.refused:
            yield SQL.refuse_successor(**row, reason=self.refused)
            return
        yield SQL.create_successor(**row)
        yield SQL.create_successor_stripe(bucket=bucket, id=self.id)
        yield SQL.create_successor_part(
            bucket=bucket, id=self.id, queue=spec.queue, task=spec.task, priority=spec.priority,
            attempts=spec.attempts, payload=self.payload,
        )  # fmt: skip
        yield SQL.ring(queue=spec.queue)


def _judge(bucket: int, job_id: str, known: Policy | None) -> Txn[tuple[Ending, Counts] | None]:
    """The ending that the policy gives a job whose stripes are all locked, while parts of it live or may still come."""
    rule = known or (yield from _policy(bucket, job_id))
    counts = yield from sums(bucket, job_id)
    more = counts.remaining > 0 or not counts.sealed
    ending = policy.close_early(rule, counts) if more else None
    return None if ending is None else (ending, counts)


def _natural(bucket: int, job_id: str) -> Txn[tuple[Ending, Counts]]:
    rule = yield from _policy(bucket, job_id)
    counts = yield from sums(bucket, job_id)
    return policy.natural_end(rule, counts), counts


def _policy(bucket: int, job_id: str) -> Txn[Policy]:
    return policy.decode(one((yield SQL.policy(bucket=bucket, job_id=job_id)))[0])


def sums(bucket: int, job_id: str) -> Txn[Counts]:
    """The totals over a job's stripes, all of which this transaction holds or knows to be final."""
    created, remaining, succeeded, failed, sealed = one((yield SQL.sums(bucket=bucket, job_id=job_id)))
    return Counts(int(created), int(remaining), int(succeeded), int(failed), bool(sealed))


def _explain(bucket: int, report: Report, closed: frozenset[str]) -> Txn[Settled | None]:
    """Why this report changed nothing. None if it should have: its row had moved while the write was under way."""
    claim = report.claim
    rows = yield SQL.look_at_part(bucket=bucket, job_id=claim.job_id, idx=claim.idx, result=report.result)
    if not rows:
        return Settled(Verdict.UNKNOWN)
    status, attempt, claim_id, same = rows[0]
    if (attempt, claim_id) != (claim.attempt, claim.claim_id):
        return Settled(Verdict.LOST, status, attempt)
    if status == "running" and claim.job_id not in closed:
        return None
    if claim.job_id in closed and status not in ("succeeded", "failed"):
        return Settled(Verdict.CLOSED, status, attempt)
    return Settled(_verdict(report.verb, status, bool(same)), status, attempt)


def _verdict(verb: str, status: str, same: bool) -> Verdict:
    """The verdict on a report whose own token still stands on the part, which is not running any more."""
    if status == "abandoned":
        return Verdict.CLOSED
    if verb == "succeed":
        if status == "succeeded":
            return Verdict.REPLAY if same else Verdict.CONFLICT
        return Verdict.LOST
    if status == "succeeded":
        return Verdict.CONFLICT
    said = {"fail": ("failed",), "retry": ("pending", "failed"), "release": ("pending",)}[verb]
    return Verdict.REPLAY if status in said else Verdict.LOST


def token_of(claim: Claim) -> Token:
    return (claim.job_id, claim.idx, claim.attempt, claim.claim_id)


def part_row(report: Report) -> Row:
    # A float in each row (a column of mixed numbers is no array), and no NaN: that moment would never come.
    delay = min(float(report.delay), limits.DELAY_SECONDS_MAX) if report.delay > 0 else 0.0
    return (*token_of(report.claim), report.verb, report.result, delay)


def _log_row(report: Report, status: str, worker: str | None) -> Row:
    what = "released" if report.verb == "release" else {"failed": "failed", "pending": "retried"}[status]
    claim = report.claim
    return (claim.job_id, claim.idx, claim.attempt, what, worker, None, report.error)


def _refused_row(report: Report, answer: Settled, worker: str | None) -> Row:
    """A refused report is written down with both attempts, so that the overlap can be told afterwards."""
    claim = report.claim
    return (claim.job_id, claim.idx, claim.attempt, "refused", worker, answer.attempt, report.error)


def _payload(facts: dict[str, Any]) -> str:
    """The payload of the event of an end."""
    return _json({"version": PAYLOAD_VERSION, **facts})


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
