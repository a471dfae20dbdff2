"""The protocol as a person would tell it: dictionaries, no counters, no locks, one token per part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fanin.domain.identity import successor_id
from fanin.domain.model import Claim, Report, Verdict
from fanin.domain.policy import Counts, Ending, Policy, cancelled, close_early, gave_up, natural_end

LIVE = ("pending", "running")
ENDED = ("completed", "failed", "cancelled")


@dataclass
class Part:
    task: str
    allowed: int
    due_at: float
    ready: bool = True
    status: str = "pending"
    attempt: int = 0
    claim_id: str | None = None
    result: str | None = None
    checkpoint: str | None = None

    @property
    def live(self) -> bool:
        return self.status in LIVE


@dataclass
class Job:
    id: str
    attempts: int
    policy: Policy
    task: str
    has_successor: bool = False
    status: str = "running"
    outcome: str | None = None
    run: int = 1
    closed: bool = False
    give_up_at: float | None = None
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    def number(self, status: str) -> int:
        return sum(1 for part in self.parts.values() if part.status == status)

    def counts(self) -> Counts:
        live = sum(1 for part in self.parts.values() if part.live)
        sealed = self.status != "open"
        return Counts(len(self.parts), live, self.number("succeeded"), self.number("failed"), sealed)


class Model:
    """What the database must hold, and what each call must answer."""

    def __init__(self, now: float, then: str, successor_attempts: int) -> None:
        self.now = now
        self.jobs: dict[str, Job] = {}
        self.events: set[tuple[str, int]] = set()
        self._then = then
        self._successor_attempts = successor_attempts

    # Creating.

    def create(self, job: Job, parts: int) -> bool | None:
        if job.id in self.jobs:  # an open job is another request than a whole one
            return None if self.jobs[job.id].status == "open" else False
        self.jobs[job.id] = job
        self._add(job, range(parts))
        if parts == 0:
            self._end(job, natural_end(job.policy, job.counts()))
        return True

    def open(self, job: Job) -> bool:
        if job.id in self.jobs:
            return False
        job.status = "open"
        self.jobs[job.id] = job
        return True

    def append(self, job_id: str, first: int, count: int) -> int | None:
        job = self.jobs[job_id]
        if job.status != "open":
            return None
        fresh = [idx for idx in range(first, first + count) if idx not in job.parts]
        self._add(job, fresh)
        return len(fresh)

    def seal(self, job_id: str, planned: int) -> bool | None:
        job = self.jobs[job_id]
        if job.status != "open":
            return False
        if planned != len(job.parts):
            return None
        job.status, job.give_up_at = "running", None
        if not any(part.live for part in job.parts.values()):
            self._end(job, natural_end(job.policy, job.counts()))
        return True

    def _add(self, job: Job, indexes: Iterable[int]) -> None:
        for idx in indexes:
            job.parts[idx] = Part(job.task, job.attempts, self.now)

    # Leases.

    def claimable(self, tasks: Iterable[str]) -> int:
        wanted = set(tasks)
        return sum(
            1
            for job in self.jobs.values()
            if not job.closed and not self.overdue(job)
            for part in job.parts.values()
            if part.live and part.ready and part.task in wanted
        )

    def overdue(self, job: Job) -> bool:
        """Its deadline has passed, and nobody has given it up yet."""
        return not job.ended and job.give_up_at is not None and job.give_up_at <= self.now

    def claim(self, claims: Iterable[Claim], lease: float) -> None:
        """Take over what the database handed out; says so if it must not have been."""
        for claim in claims:
            job = self.jobs[claim.job_id]
            part = job.parts[claim.idx]
            assert part.live, f"{claim} was handed out, but it is {part.status}"
            assert part.ready, f"{claim} was handed out, but it is not ready"
            assert not job.closed, f"{claim} was handed out, but its job is closed"
            assert not self.overdue(job), f"{claim} was handed out after the deadline of its job"
            part.status, part.ready, part.claim_id, part.due_at = "running", False, claim.claim_id, self.now + lease
            part.attempt += 1
            assert (claim.attempt, claim.attempts_allowed, claim.checkpoint) == (
                part.attempt, part.allowed, part.checkpoint,
            )  # fmt: skip

    def holds(self, claim: Claim) -> Part | None:
        part = self.jobs[claim.job_id].parts.get(claim.idx) if claim.job_id in self.jobs else None
        if part is None or part.status != "running":
            return None
        return part if (part.attempt, part.claim_id) == (claim.attempt, claim.claim_id) else None

    def renew(self, claim: Claim, lease: float, checkpoint: str | None = None) -> bool:
        part = self.holds(claim)
        if part is None:
            return False
        part.due_at, part.ready = self.now + lease, False
        part.checkpoint = checkpoint or part.checkpoint
        return True

    def wake(self) -> None:
        for part in self._parts():
            if part.live and part.due_at <= self.now and part.attempt < part.allowed:
                part.ready = True

    def reap(self) -> int:
        spent: dict[str, list[Part]] = {}
        for job in self.jobs.values():
            if not job.closed:
                for part in job.parts.values():
                    if part.status == "running" and part.due_at <= self.now and part.attempt >= part.allowed:
                        spent.setdefault(job.id, []).append(part)
        for job_id, parts in spent.items():
            for part in parts:
                part.status, part.ready = "failed", False
            self._counted(self.jobs[job_id], failed=True)
        return sum(len(parts) for parts in spent.values())

    def _parts(self) -> Iterable[Part]:
        return (part for job in self.jobs.values() for part in job.parts.values())

    # Reports.

    def settle(self, reports: Sequence[Report]) -> list[Verdict]:
        """The verdicts on a batch in which each part occurs once."""
        verdicts: dict[int, Verdict] = {}
        for job_id in {report.claim.job_id for report in reports}:
            mine = [n for n, report in enumerate(reports) if report.claim.job_id == job_id]
            verdicts |= self._settle_job(job_id, {n: reports[n] for n in mine})
        return [verdicts[n] for n in range(len(reports))]

    def _settle_job(self, job_id: str, reports: dict[int, Report]) -> dict[int, Verdict]:
        job = self.jobs.get(job_id)
        heard = {n: part for n, report in reports.items() if (part := self.holds(report.claim)) is not None}
        endings = {n for n, part in heard.items() if _becomes(reports[n], part) in ("succeeded", "failed")}
        refused = job is not None and job.closed and bool(endings)
        verdicts = {
            n: self._explain(job, report, refused) for n, report in reports.items() if n not in heard or refused
        }
        if refused or job is None:
            return verdicts
        for n, part in heard.items():
            report = reports[n]
            part.status = _becomes(report, part)
            part.due_at = self.now + report.delay
            part.ready = part.status == "pending" and report.delay <= 0
            part.allowed += report.verb == "release"
            part.result = report.result if report.verb == "succeed" else None
            verdicts[n] = Verdict.OK
        if endings and self._counted(job, failed=any(heard[n].status == "failed" for n in endings)):
            verdicts |= dict.fromkeys(heard, Verdict.LAST)
        return verdicts

    def _explain(self, job: Job | None, report: Report, refused: bool) -> Verdict:
        part = job.parts.get(report.claim.idx) if job is not None else None
        if part is None:
            return Verdict.UNKNOWN
        if (part.attempt, part.claim_id) != (report.claim.attempt, report.claim.claim_id):
            return Verdict.LOST
        if part.status == "abandoned" or (refused and part.status not in ("succeeded", "failed")):
            return Verdict.CLOSED
        if report.verb == "succeed":
            if part.status != "succeeded":
                return Verdict.LOST
            return Verdict.REPLAY if part.result == report.result else Verdict.CONFLICT
        if part.status == "succeeded":
            return Verdict.CONFLICT
        said = {"fail": ("failed",), "retry": ("pending", "failed"), "release": ("pending",)}[report.verb]
        return Verdict.REPLAY if part.status in said else Verdict.LOST

    # Ends.

    def _counted(self, job: Job, *, failed: bool) -> bool:
        """Judge a job in which parts have just ended. True if that ended its run."""
        counts = job.counts()
        judged = (failed and job.policy.judges_failures) or job.policy.judges_successes
        early = close_early(job.policy, counts) if judged and (counts.remaining > 0 or not counts.sealed) else None
        if early is not None:
            job.closed = True
            self._end(job, early)
        elif counts.remaining == 0 and job.status == "running":
            self._end(job, natural_end(job.policy, counts))
        return job.ended

    def _end(self, job: Job, ending: Ending) -> None:
        job.status, job.outcome = ending.status, ending.outcome
        assert (job.id, job.run) not in self.events, "the model itself ends a run twice"
        self.events.add((job.id, job.run))
        if job.has_successor and ending.proceeds:
            child = Job(successor_id(job.id, "then", job.run), self._successor_attempts, Policy(), self._then)
            self.jobs[child.id] = child
            self._add(child, [0])

    def close(self, job_id: str, ending: Ending | None) -> bool:
        """Cancel, or give up (``ending`` is None)."""
        job = self.jobs[job_id]
        if job.ended:
            return False
        if ending is None:
            if job.give_up_at is None or job.give_up_at > self.now:
                return False
            ending = gave_up(job.policy)
        job.closed = True
        self._end(job, ending)
        return True

    def cancel(self, job_id: str) -> bool:
        return self.close(job_id, cancelled(None))

    def sweep(self, job_id: str, indexes: Iterable[int]) -> int:
        job = self.jobs[job_id]
        left = [job.parts[idx] for idx in indexes if idx in job.parts and job.parts[idx].live] if job.closed else []
        for part in left:
            part.status, part.ready = "abandoned", False
        return len(left)

    def redrive(
        self, job_id: str, run: int, attempts: int, chosen: Sequence[int] | None, after: float | None
    ) -> int | None:
        job = self.jobs[job_id]
        if job.run > run:
            return job.run
        if not job.ended:
            return None
        again = {idx: part for idx, part in job.parts.items() if part.status in ("failed", "abandoned")}
        if chosen is not None:
            if not set(chosen) <= again.keys():
                return None
            again = {idx: again[idx] for idx in chosen}
        if not again and not any(part.live for part in job.parts.values()):
            return 0
        for part in again.values():
            part.status, part.ready, part.due_at = "pending", True, self.now
            part.allowed = part.attempt + attempts
        job.status, job.outcome, job.closed, job.run = "running", None, False, job.run + 1
        job.give_up_at = None if after is None else self.now + after
        return job.run


def _becomes(report: Report, part: Part) -> str:
    if report.verb == "succeed":
        return "succeeded"
    if report.verb == "fail" or (report.verb == "retry" and part.attempt >= part.allowed):
        return "failed"
    return "pending"
