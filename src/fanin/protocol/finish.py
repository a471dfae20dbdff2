"""T5, T6, T7: reports about parts are settled, counted down, and whoever counts last ends the run.

    settle -> one guarded write of the parts
           -> counting: their stripes, then the jobs' open stripes
           -> ending: state, event, successor and listeners, in this same transaction

A batch has any size and any jobs of one bucket; a single part is a batch of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fanin.domain import limits
from fanin.domain.errors import Refused
from fanin.domain.events import EndedBy
from fanin.domain.model import Claim, Report, Settled, Verdict
from fanin.protocol import counting, effect, ending
from fanin.protocol.growth import Spawner
from fanin.protocol.steps import Again, Room, Row, Rows, Txn

SQL = Room("finish")


Token = tuple[str, int, int, str]
"""(job id, idx, attempt, claim id): what makes a report heard."""


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
    ended: list[counting.Change] = []
    failed: list[counting.Failed] = []
    spawners: dict[str, list[Spawner]] = {}
    log: list[Row] = []
    wanting: list[Report] = []
    rows = [part_row(reports[heard[token]]) for token in sorted(heard)]
    changed = (yield from write(bucket, rows)) if rows else []
    for job_id, idx, attempt, claim_id, stripe, status in changed:
        n = heard[job_id, idx, attempt, claim_id]
        answers[n] = Settled(Verdict.OK, status, reports[n].claim.attempt)
        if status in ("succeeded", "failed"):
            ended.append((job_id, stripe, status))
        if status == "failed":
            failed.append((job_id, idx, attempt, reports[n].error))
        if status == "succeeded" and reports[n].effects:
            wanting.append(reports[n])
        if status == "succeeded" and reports[n].spawns:
            spawners.setdefault(job_id, []).append(Spawner(idx, stripe, reports[n].spawns))
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
        counted = yield from counting.count(bucket, ended, failed, spawners)
        if counted.closed or counted.refused:
            said = [_refuse_spawns(report, counted.refused.get(report.claim.key)) for report in reports]
            raise Again(lambda: settle(bucket, said, worker, closed | counted.closed))
        held = ending.Held.of((job_id for job_id, _, _ in ended), counted.going_on)
        yield from ending.end(bucket, counted.endings, last_of(changed, worker), held)
        for n, answer in answers.items():
            if answer.verdict is Verdict.OK and reports[n].claim.job_id in counted.endings:
                answers[n] = msgspec.structs.replace(answer, verdict=Verdict.LAST)
    if log:
        log.sort(key=lambda row: row[:4])  # two batches may write down the same refusals: in one order
        yield SQL.log_attempts(bucket=bucket, rows=log)
    if wanting:
        yield from effect.register(bucket, wanting)
    return [answers[n] for n in range(len(reports))]


def write(bucket: int, rows: Sequence[Row]) -> Txn[Rows]:
    """The guarded write of a batch: ``rows`` of `part_row`, sorted. A row comes back for each report that was heard."""
    return (yield SQL.settle_parts(bucket=bucket, rows=rows))


def last_of(changed: Rows, worker: str | None) -> ending.By:
    """Of the rows that `write` answered: the last part of a job in the batch, which has ended it if one has."""

    def by(job_id: str) -> EndedBy | None:
        ended = [(row[1], row[2]) for row in changed if row[0] == job_id and row[5] in ("succeeded", "failed")]
        return EndedBy(*max(ended), worker)

    return by


def reap(bucket: int, seen: Sequence[tuple[str, int, int]], closed: frozenset[str] = frozenset()) -> Txn[int]:
    """Fail the parts (job id, idx, attempt) whose last allowed attempt has run out of its lease. How many were.

    A part that was renewed, settled or swept since it was seen is left alone by the guard of the write.
    """
    rows = sorted(row for row in seen if row[0] not in closed)
    reaped = (yield SQL.reap_parts(bucket=bucket, rows=rows)) if rows else []
    if not reaped:
        return 0
    error = _json({"type": "WorkerLost", "message": "the lease ran out and no attempt is left", "traceback": ""})
    counted = yield from counting.count(
        bucket,
        [(job_id, stripe, "failed") for job_id, _, stripe, _, _ in reaped],
        [(job_id, idx, attempt, error) for job_id, idx, _, attempt, _ in reaped],
    )
    if counted.closed:
        raise Again(lambda: reap(bucket, seen, closed | counted.closed))
    lost = {job_id: EndedBy(idx, attempt, worker) for job_id, idx, _, attempt, worker in reaped}
    held = ending.Held.of((row[0] for row in reaped), counted.going_on)
    yield from ending.end(bucket, counted.endings, lost.get, held)
    log = [(job_id, idx, attempt, "failed", worker, None, error) for job_id, idx, _, attempt, worker in reaped]
    yield SQL.log_attempts(bucket=bucket, rows=log)
    return len(reaped)


def _explain(bucket: int, report: Report, closed: frozenset[str]) -> Txn[Settled | None]:
    """Why this report changed nothing. None if it should have: its row had moved while the write was under way."""
    claim = report.claim
    rows = yield SQL.look_at_part(bucket=bucket, job_id=claim.job_id, idx=claim.idx, result=report.result)
    if not rows:
        return Settled(Verdict.UNKNOWN)
    status, attempt, claim_id, same, waiting = rows[0]
    if waiting or (attempt, claim_id) != (claim.attempt, claim.claim_id):  # its nested job holds it, or somebody else
        return Settled(Verdict.LOST, status, attempt)
    if status == "running" and claim.job_id not in closed:
        return None
    if claim.job_id in closed and status not in ("succeeded", "failed"):
        return Settled(Verdict.CLOSED, status, attempt)
    return Settled(_verdict(report, status, bool(same)), status, attempt)


def _verdict(report: Report, status: str, same: bool) -> Verdict:
    """The verdict on a report whose own token still stands on the part, which is not running any more."""
    verb = report.verb
    if status == "abandoned":
        return Verdict.CLOSED
    if status == "failed" and report.spawns:  # what it adds was refused, and it failed of that
        return Verdict.REPLAY
    if verb == "succeed":
        if status == "succeeded":
            return Verdict.REPLAY if same else Verdict.CONFLICT
        return Verdict.LOST
    if status == "succeeded":
        return Verdict.CONFLICT
    said = {"fail": ("failed",), "retry": ("pending", "failed"), "release": ("pending",)}[verb]
    return Verdict.REPLAY if status in said else Verdict.LOST


def _refuse_spawns(report: Report, problem: Refused | None) -> Report:
    """A part that adds what may not be added has failed, alone and for good: its next attempt would add it again."""
    if problem is None or not report.spawns:
        return report
    error = _json({"type": type(problem).__name__, "message": str(problem), "traceback": ""})
    return Report(report.claim, "fail", error=error)


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


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
