"""A PostgreSQL database in which races are run: jobs to start from, the parties of a race, and the judge."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from fanin.domain.errors import KeyConflict, NotAllowedNow
from fanin.domain.identity import keyed_job_id
from fanin.domain.model import Claim, NewJob, Report, Settled, Spec, Verdict
from fanin.domain.policy import Policy
from fanin.protocol import close, finish, lease, redrive, submit
from fanin.protocol.steps import TxnFactory
from fanin.stores.postgres import PostgresStore
from fanin.testing.explorer import Actor, Explorer, Run
from fanin.testing.invariants import FORGET, violations
from fanin.testing.state import Snapshot, execute, select
from fanin.testing.stepper import Script

if TYPE_CHECKING:
    from tests.races.scenarios import Race

BUCKET = 0
QUEUE, TASK, THEN = "default", "work", "assemble"
LEASES = {TASK: 600.0, THEN: 600.0}
LAPSED = {TASK: -1.0, THEN: -1.0}
ROUNDS = 20


class Arena:
    """One database, put back to the same rows before every schedule."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self._numbers = itertools.count(1)
        self._snapshot: Snapshot | None = None
        self.answers: list[tuple[Report, Settled]] = []
        """What this schedule's workers were told about their reports."""

    # Where a race starts from.

    def clear(self) -> None:
        execute(self.store, *(f"DELETE FROM fanin.{table}" for table in ("outbox", "attempt_log", "job")), FORGET)

    def new(self, name: str = "job", **options: object) -> NewJob:
        values: dict[str, object] = {
            "id": keyed_job_id(name), "bucket": BUCKET, "task": TASK, "queue": QUEUE, "key": name,
            "request_hash": "hash of " + name, "successor": msgspec.json.encode(Spec(task=THEN)).decode(),
        }  # fmt: skip
        rule = options.pop("policy", None)
        if isinstance(rule, Policy):
            values["policy"] = msgspec.json.encode(rule).decode()
        return NewJob(**{**values, **options})  # type: ignore[arg-type]

    def job(self, parts: int, name: str = "job", **options: object) -> str:
        """A running job with so many pending parts."""
        job = self.new(name, **options)
        self.store.run(lambda: submit.create(job, parts, lambda: [["1"] * parts] if parts else []))
        return job.id

    def open(self, parts: int, name: str = "job", **options: object) -> str:
        """An open job with so many pending parts."""
        job = self.new(name, give_up_after=3600.0, **options)
        self.store.run(lambda: submit.open_job(job))
        self.store.run(lambda: submit.append(BUCKET, job.id, 0, ["1"] * parts))
        return job.id

    def claims(self, count: int, leases: dict[str, float] = LEASES) -> list[Claim]:
        """Claim exactly so many parts, each under a claim id of its own."""
        found = [self.store.run(self.claiming(leases))[0] for _ in range(count)]
        assert len(found) == count
        return found

    def claiming(self, leases: dict[str, float] = LEASES, limit: int = 1) -> TxnFactory[list[Claim]]:
        claim_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"claim/{next(self._numbers)}"))
        return lambda: lease.claim(BUCKET, QUEUE, leases, limit, claim_id, "w")

    def settled(self, reports: Sequence[Report]) -> list[Settled]:
        return self.store.run(lambda: finish.settle(BUCKET, reports, "w"))

    # Going through the schedules.

    def keep(self) -> None:
        """Every schedule starts from here."""
        self._snapshot = Snapshot(self.store)

    def reset(self) -> None:
        assert self._snapshot is not None
        self.answers.clear()
        self._snapshot.restore(FORGET)

    def explorer(self, actors: Sequence[Actor], *, at_commits: bool = True) -> Explorer:
        """``at_commits``: judge after every COMMIT, while others are in the middle, and not at the end alone."""
        judge = (lambda _: violations(self.store, history=True)) if at_commits else None
        return Explorer(self.store, actors, self.reset, judge)

    def conclude(self, run: Run, race: Race) -> None:
        """Judge a schedule, let ordinary workers finish what it left, and judge again."""
        run.problems += [f"{name}: {out!r}" for name, out in run.outcomes.items() if isinstance(out, Exception)]
        run.problems += self._broken_promises()
        if race.also is not None:
            run.problems += race.also(self, run)
        if race.after is not None:
            race.after(self)
        try:
            self.drain()
        except Exception as problem:  # a broken database may refuse anything: that is a finding, not an error
            run.problems.append(f"workers could not finish the rest: {problem!r}")
        run.problems += [f"{p} (afterwards)" for p in violations(self.store, history=True)]
        run.problems += [
            f"never ended: {row}"
            for row in select(self.store, "SELECT id, status, run FROM fanin.job WHERE status IN ('open', 'running')")
        ]
        run.problems += [
            f"{row['n']} ends of one run: {row}"
            for row in select(
                self.store,
                "SELECT j.id, j.run, count(o.event_key) AS n FROM fanin.job AS j LEFT JOIN fanin.outbox AS o "
                "ON o.job_id = j.id AND split_part(o.event_key, '/', 4) = j.run::text "
                "GROUP BY j.id, j.run HAVING count(o.event_key) <> 1",
            )
        ]

    def _broken_promises(self) -> list[str]:
        """A result that was accepted stands under its own claim, and one that was refused does not."""
        text = "SELECT job_id, idx, status, claim_id, result FROM fanin.part"
        parts = {(row["job_id"], row["idx"]): row for row in select(self.store, text)}
        found = [
            f"the result of another claim stands: {row}"
            for row in parts.values()
            if row["result"] is not None and row["result"] != f'"{row["claim_id"]}"'
        ]
        for report, answer in self.answers:
            row = parts.get(report.claim.key)
            stands = row is not None and row["result"] == report.result and row["status"] == "succeeded"
            accepted = answer.verdict in (Verdict.OK, Verdict.LAST, Verdict.REPLAY)
            if report.verb == "succeed" and stands is not accepted:
                found.append(f"the answer was {answer.verdict.name}, the part stands as {row}")
        return found

    def drain(self) -> None:
        """Ordinary workers, until there is nothing left to do: every lease that is still held runs out at once."""
        execute(self.store, "UPDATE fanin.part SET due_at = 0 WHERE status = 'running' AND NOT ready")
        for _ in range(ROUNDS):
            self.store.run(lambda: lease.wake(BUCKET))
            busy = self.store.run(lambda: lease.reap(BUCKET))
            claims = self.store.run(self.claiming(limit=100))
            if claims:
                self.settled([succeed(claim) for claim in claims])
            for job_id, stripe in self.store.read(lambda: close.unswept(BUCKET)):
                busy += self.store.run(lambda job_id=job_id, stripe=stripe: close.sweep(BUCKET, job_id, stripe))
            if not busy and not claims:
                return
        raise AssertionError(f"still not at rest after {ROUNDS} rounds")

    # The parties. Each returns what its outcome is called.

    def reporter(self, name: str, reports: Sequence[Report]) -> Actor:
        """A worker that reports."""

        def script() -> Script:
            settled = yield lambda: finish.settle(BUCKET, reports, name)
            self.answers += zip(reports, settled, strict=True)
            return "+".join(answer.verdict.name for answer in settled)

        return Actor(name, script)

    def succeeds(self, name: str, *claims: Claim) -> Actor:
        return self.reporter(name, [succeed(claim) for claim in claims])

    def fails(self, name: str, *claims: Claim) -> Actor:
        return self.reporter(name, [Report(claim, "fail", error='{"type": "E"}') for claim in claims])

    def reclaimer(self, name: str) -> Actor:
        """A worker that wakes what is due, claims it and reports."""
        claiming = self.claiming()

        def script() -> Script:
            yield lambda: lease.wake(BUCKET)
            claims = yield claiming
            if not claims:
                return "NOTHING"
            reports = [succeed(claim) for claim in claims]
            settled = yield lambda: finish.settle(BUCKET, reports, name)
            self.answers += zip(reports, settled, strict=True)
            return "+".join(answer.verdict.name for answer in settled)

        return Actor(name, script)

    def claimer(self, name: str, limit: int) -> Actor:
        claiming = self.claiming(limit=limit)

        def script() -> Script:
            claims = yield claiming
            return f"{len(claims)}"

        return Actor(name, script)


def succeed(claim: Claim) -> Report:
    """A report whose result names its claim, so that a result of somebody else can be seen."""
    return Report(claim, "succeed", result=f'"{claim.claim_id}"')


def said(name: str, factory: TxnFactory[object], yes: str, no: str) -> Actor:
    """The party of one transaction that answers with a truth."""

    def script() -> Script:
        try:
            value = yield factory
        except NotAllowedNow:
            return "REFUSED"
        except KeyConflict:
            return "CONFLICT"
        return yes if value else no

    return Actor(name, script)


def counted(name: str, factory: TxnFactory[object], what: str) -> Actor:
    """The party of one transaction that answers with a number."""

    def script() -> Script:
        try:
            value = yield factory
        except NotAllowedNow:
            return "REFUSED"
        return f"{what} {value}"

    return Actor(name, script)


def canceller(name: str, job_id: str) -> Actor:
    return said(name, lambda: close.cancel(BUCKET, job_id), "CANCELLED", "LATE")


def giver_up(name: str, job_id: str) -> Actor:
    return said(name, lambda: close.give_up(BUCKET, job_id), "GAVE_UP", "LATE")


def redriver(name: str, job_id: str, run: int = 1, chosen: Sequence[int] | None = None) -> Actor:
    return counted(name, lambda: redrive.redrive(BUCKET, job_id, run, 2, chosen), "RUN")


def sweeper(name: str, job_id: str, stripe: int = 0) -> Actor:
    return counted(name, lambda: close.sweep(BUCKET, job_id, stripe), "SWEPT")


def reaper(name: str) -> Actor:
    return counted(name, lambda: lease.reap(BUCKET), "REAPED")


def renewer(name: str, claim: Claim) -> Actor:
    def script() -> Script:
        lost = yield lambda: lease.renew(BUCKET, [(claim, 600.0)])
        return "LOST" if lost else "HELD"

    return Actor(name, script)
