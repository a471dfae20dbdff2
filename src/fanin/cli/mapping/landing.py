"""What happens to a part after its commit: files get their names or are removed, and the end is told."""

from __future__ import annotations

from functools import partial

import msgspec

from fanin.cli.mapping.outputs import Done, Scratch
from fanin.cli.mapping.report import Reporter, failure_of
from fanin.cli.mapping.runner import SAID_BYTES, Runner
from fanin.domain.model import Failure, Report, Settled, Verdict
from fanin.protocol import read
from fanin.stores import Store

PAGE_PARTS = 50


class Landing:
    """``in_order``: tell of all parts in the order of the inputs, else of those of this process as they come."""

    def __init__(self, store: Store, job_id: str, scratch: Scratch, reporter: Reporter, runner: Runner, in_order: bool):
        self.store = store
        self.job_id = job_id
        self.scratch = scratch
        self.reporter = reporter
        self.runner = runner
        self.in_order = in_order
        self.unplaced: set[str] = set()
        """Places whose accepted outputs could not get their final names."""
        self._next = 0

    def settled(self, report: Report, answer: Settled) -> None:
        """After a commit of this process. Only an accepted success may give files their final names."""
        claim = report.claim
        if claim.job_id != self.job_id:
            return
        accepted = answer.verdict in (Verdict.OK, Verdict.LAST, Verdict.REPLAY)
        if report.verb == "succeed" and report.result is not None:
            done = msgspec.json.decode(report.result, type=Done)
            if accepted and answer.status == "succeeded":
                self.place(done)
                if not self.in_order:
                    self.reporter.succeeded(claim.idx + 1, done, claim.attempt)
            else:
                self.scratch.discard(done)
            return
        self._keep_or_discard(claim.idx, claim.attempt, accepted and answer.status == "failed")
        if accepted and answer.status == "failed" and not self.in_order:
            self.reporter.failed(failure_of(claim.idx, "failed", claim.attempt, report.error))
        elif accepted and report.verb == "retry" and answer.status == "pending":
            message = failure_of(claim.idx, "", 0, report.error).message
            self.reporter.retried(claim.idx + 1, claim.attempt, message, report.delay)

    def place(self, done: Done) -> None:
        """Give an accepted attempt's outputs their final names. What stands in the way is said once."""
        problem = self.scratch.promote(done)
        if problem is None:
            self.unplaced.discard(done.place)
        elif done.place not in self.unplaced:
            self.unplaced.add(done.place)
            self.reporter.screen.problem(problem)

    def tell_in_order(self) -> None:
        """Tell what has ended, as far as nothing before it is still to come; whoever ran it."""
        bucket = self.store.bucket(self.job_id)
        while True:
            page = self.store.read(lambda: read.results(bucket, self.job_id, self._next, limit=PAGE_PARTS))
            for idx, status, result in page:
                if status == "succeeded" and result is not None:
                    done = msgspec.json.decode(result, type=Done)
                    self.place(done)
                    self.reporter.succeeded(idx + 1, done)
                elif status in ("failed", "abandoned"):
                    self.reporter.failed(self._failure(bucket, idx))
                else:
                    return
                self._next = idx + 1
            if not page:
                return

    def tidy(self) -> None:
        """Finish interrupted promotions, and remove what attempts left that lost. Live attempts are left alone."""
        bucket = self.store.bucket(self.job_id)
        for number, attempt, place in self.scratch.leftovers():
            if number == 0:
                continue  # the --then command's; its next attempt removes them
            part = self.store.read(partial(read.part, bucket, self.job_id, number - 1))
            if part is None:
                place.remove()
            elif part["status"] == "succeeded":
                done = msgspec.json.decode(part["result"], type=Done)
                if done.place == place.name:
                    self.place(done)
                else:
                    place.remove()
            elif part["attempt"] != attempt or part["status"] in ("pending", "abandoned"):
                place.remove()
        self.scratch.remove_if_empty()

    def _failure(self, bucket: int, idx: int) -> Failure:
        return self.store.read(lambda: read.failures(bucket, self.job_id, idx, limit=1))[0]

    def _keep_or_discard(self, idx: int, attempt: int, final: bool) -> None:
        """The files of a failed attempt: to the results folder if it was the last, and kept only if they are long."""
        done = self.runner.failed.pop((idx, attempt), None)
        if done is None:
            return
        if final and self.reporter.results is not None:
            self.reporter.write_files(idx + 1, done)
        if not final or max(done.stdout.size, done.stderr.size) <= SAID_BYTES:
            self.scratch.discard(done)
