"""A PostgreSQL database in which races are run: jobs to start from, the parties of a race, and the judge."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fanin.domain.errors import KeyConflict, NotAllowedNow, UnknownJob
from fanin.domain.identity import new_claim_id
from fanin.domain.model import NESTED, Claim, NewJob, Report, Settled, Verdict
from fanin.protocol import close, finish, growth, lease, pause, progress, redrive, repair, skip, submit
from fanin.protocol.deeds import Deed
from fanin.protocol.steps import TxnFactory
from fanin.stores.postgres import PostgresStore
from fanin.testing.explorer import Actor, Explorer, Run
from fanin.testing.invariants import FORGET, violations
from fanin.testing.state import Snapshot, dump, select
from fanin.testing.stepper import Script
from tests.races.stage import BUCKET, Stage, succeed

if TYPE_CHECKING:
    from tests.races.scenarios import Race


class Arena(Stage):
    """A stage on PostgreSQL, put back to the same rows before every schedule."""

    store: PostgresStore

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store)
        self._snapshot: Snapshot | None = None
        self._next_claim = 0
        self._concluded: dict[bytes, list[str]] = {}
        """What was found wrong with each end that schedules have come to."""
        self.answers: list[tuple[Report, Settled]] = []
        """What this schedule's workers were told about their reports."""

    # Going through the schedules.

    def keep(self) -> None:
        """Every schedule starts from here."""
        self._snapshot = Snapshot(self.store)
        self._next_claim = next(self._numbers)

    def reset(self) -> None:
        assert self._snapshot is not None
        self.answers.clear()
        self._snapshot.restore(FORGET)
        self._numbers = itertools.count(self._next_claim)

    def explorer(self, actors: Sequence[Actor], *, at_commits: bool = True) -> Explorer:
        """``at_commits``: judge after every COMMIT, while others are in the middle, and not at the end alone."""
        judge = (lambda _: self.violations()) if at_commits else None
        return Explorer(self.store, actors, self.reset, judge)

    def violations(self) -> list[str]:
        return violations(self.store, history=True)

    def conclude(self, run: Run, race: Race) -> None:
        """Judge a schedule, let ordinary workers finish what it left, and judge again.

        Most schedules of a race end in one of a few states. The clock stands and ids are given anew by each schedule,
        so where rows and answers are the same, all that follows is.
        """
        run.problems += [f"{name}: {out!r}" for name, out in run.outcomes.items() if isinstance(out, Exception)]
        end = repr((dump(self.store, witness=True), self.answers, sorted(run.outcomes.items())))
        seen = hashlib.sha256(end.encode()).digest()
        if seen not in self._concluded:
            self._concluded[seen] = list(self._found_in_the_end(run, race))
        run.problems += self._concluded[seen]

    def _found_in_the_end(self, run: Run, race: Race) -> Iterator[str]:
        yield from self._broken_promises()
        if race.also is not None:
            yield from race.also(self, run)
        if race.after is not None:
            race.after(self)
        try:
            self.drain()
        except Exception as problem:  # a broken database may refuse anything: that is a finding, not an error
            yield f"workers could not finish the rest: {problem!r}"
        for broken in self.violations():
            yield f"{broken} (afterwards)"
        for row in select(self.store, "SELECT id, status, run FROM fanin.job WHERE status IN ('open', 'running')"):
            yield f"never ended: {row}"
        for row in select(
            self.store,
            "SELECT j.id, j.run, count(o.event_key) AS n FROM fanin.job AS j LEFT JOIN fanin.outbox AS o "
            "ON o.job_id = j.id AND o.type = 'job.finished' AND split_part(o.event_key, '/', 4) = j.run::text "
            "GROUP BY j.id, j.run HAVING count(o.event_key) <> 1",
        ):
            yield f"{row['n']} ends of one run: {row}"

    def _broken_promises(self) -> list[str]:
        """A result that was accepted stands under its own claim, and one that was refused does not."""
        text = "SELECT job_id, idx, status, claim_id, result FROM fanin.part"
        parts = {(row["job_id"], row["idx"]): row for row in select(self.store, text)}
        found = [
            f"the result of another claim stands: {row}"
            for row in parts.values()
            if row["result"] is not None and row["result"] != f'"{row["claim_id"]}"' and row["result"][0] != NESTED
        ]
        for report, answer in self.answers:
            row = parts.get(report.claim.key)
            stands = row is not None and row["result"] == report.result and row["status"] == "succeeded"
            accepted = answer.verdict in (Verdict.OK, Verdict.LAST, Verdict.REPLAY) and answer.status != "failed"
            if report.verb == "succeed" and stands is not accepted:
                found.append(f"the answer was {answer.verdict.name}, the part stands as {row}")
        return found

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

    def releases(self, name: str, *claims: Claim) -> Actor:
        return self.reporter(name, [Report(claim, "release") for claim in claims])

    def retries(self, name: str, *claims: Claim) -> Actor:
        return self.reporter(name, [Report(claim, "retry", error='{"type": "E"}') for claim in claims])

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

    def exchanger(self, name: str, *claims: Claim, stepwise: set[str] | None = None) -> Actor:
        """A worker that reports one batch and claims the next in one transaction, as workers do."""
        reports = [succeed(claim) for claim in claims]
        exchanging = self.exchanging(reports, stepwise=stepwise)

        def script() -> Script:
            settled, claimed = yield exchanging
            self.answers += zip(reports, settled, strict=True)
            return "+".join(answer.verdict.name for answer in settled) + f"/{len(claimed)}"

        return Actor(name, script)

    def claimer(self, name: str, limit: int) -> Actor:
        claiming = self.claiming(limit=limit)

        def script() -> Script:
            claims = yield claiming
            return f"{len(claims)}"

        return Actor(name, script)


def said(name: str, factory: TxnFactory[object], yes: str, no: str) -> Actor:
    """The party of one transaction that answers with a truth."""

    def script() -> Script:
        try:
            value = yield factory
        except NotAllowedNow:
            return "REFUSED"
        except KeyConflict:
            return "CONFLICT"
        except UnknownJob:
            return "UNKNOWN"
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


def canceller(name: str, job_id: str, deed: Deed | None = None) -> Actor:
    return said(name, lambda: close.cancel(BUCKET, job_id, deed), "CANCELLED", "LATE")


def finisher(name: str, job_id: str, deed: Deed) -> Actor:
    return said(name, lambda: close.finish_now(BUCKET, job_id, deed), "FINISHED", "LATE")


def pauser(name: str, job_id: str, deed: Deed) -> Actor:
    return said(name, lambda: pause.pause(BUCKET, job_id, deed), "PAUSED", "BEFORE")


def resumer(name: str, job_id: str, deed: Deed) -> Actor:
    return said(name, lambda: pause.resume(BUCKET, job_id, deed), "RESUMED", "BEFORE")


def walker(name: str, job_id: str) -> Actor:
    return said(name, lambda: pause.walk(BUCKET, job_id), "ON", "END")


def skipper(name: str, job_id: str, idx: int, deed: Deed, *, failed: bool = False) -> Actor:
    """The result names its claim, like that of a worker."""
    result = None if failed else f'"{deed.id}"'
    return said(name, lambda: skip.skip(BUCKET, job_id, idx, result, deed), "ENDED", "SKIPPED")


def giver_up(name: str, job_id: str) -> Actor:
    return said(name, lambda: close.give_up(BUCKET, job_id), "GAVE_UP", "LATE")


def teller(name: str, job_id: str) -> Actor:
    return said(name, lambda: progress.tell(BUCKET, job_id), "TOLD", "NOTHING")


def redriver(name: str, job_id: str, run: int = 1, chosen: Sequence[int] | None = None) -> Actor:
    return counted(name, lambda: redrive.redrive(BUCKET, job_id, run, 2, chosen), "RUN")


def sweeper(name: str, job_id: str, stripe: int = 0) -> Actor:
    return counted(name, lambda: close.sweep(BUCKET, job_id, stripe), "SWEPT")


def reaper(name: str) -> Actor:
    return counted(name, lambda: lease.reap(BUCKET), "REAPED")


def repairer(name: str, job_id: str) -> Actor:
    """Who recounts a job, whether it looks wrong or not."""
    repair_id = new_claim_id()

    def script() -> Script:
        found = yield lambda: repair.recount(BUCKET, job_id, repair_id)
        whats = {line.what for line in found.lines}
        return "ENDED" if "ended" in whats else "DAMAGED" if "damaged" in whats else "REPAIRED" if whats else "NOTHING"

    return Actor(name, script)


def mender(name: str, job_id: str) -> Actor:
    repair_id = new_claim_id()

    def script() -> Script:
        found = yield lambda: repair.mend(BUCKET, job_id, repair_id)
        return f"MENDED {len(found.lines)}"

    return Actor(name, script)


def waker(name: str) -> Actor:
    return said(name, lambda: lease.wake(BUCKET), "WOKE", "SLEPT")


def renewer(name: str, *claims: Claim) -> Actor:
    return said(name, lambda: lease.renew(BUCKET, [(claim, 600.0) for claim in claims]), "LOST", "HELD")


def saver(name: str, claim: Claim) -> Actor:
    return said(name, lambda: lease.checkpoint(claim, 600.0, "7"), "SAVED", "LOST")


def creator(name: str, job: NewJob, parts: int) -> Actor:
    return said(name, lambda: submit.create(job, parts, lambda: [["1"] * parts] if parts else []), "NEW", "SAME")


def opener(name: str, job: NewJob) -> Actor:
    return said(name, lambda: submit.open_job(job), "NEW", "SAME")


def sealer(name: str, job_id: str, planned: int, *, keep: bool = False) -> Actor:
    """``keep``: the deadline goes on to stand after the seal."""
    return said(name, lambda: submit.seal(BUCKET, job_id, planned, None, keep), "SEALED", "BEFORE")


def appender(name: str, job_id: str, first: int, parts: int = 1) -> Actor:
    return said(name, lambda: submit.append(BUCKET, job_id, first, ["1"] * parts), "ADDED", "THERE")


def appending(name: str, job_id: str, first: int, items: Sequence[growth.Item]) -> Actor:
    """The producer of an open job that grows."""
    return counted(name, lambda: submit.append_new(BUCKET, job_id, first, items), "ADDED")
