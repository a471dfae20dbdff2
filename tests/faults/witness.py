"""Remembers outside the database what it has acknowledged, to ask afterwards whether all of it is there."""

from __future__ import annotations

import threading

from fanin.domain.model import Report, Settled, Verdict
from fanin.stores.base import Store
from fanin.testing.state import select

ACCEPTED = (Verdict.OK, Verdict.LAST, Verdict.REPLAY)


class Witness:
    """Give `on_part` to the workers; any number of them may share one witness."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: dict[tuple[str, int, int], tuple[str, str | None]] = {}
        self.twice: list[tuple[str, int, int]] = []
        """Reports of one attempt that were accepted twice."""
        self.ends = 0
        """How many of them ended the run of a job."""

    def on_part(self, report: Report, answer: Settled) -> None:
        if report.verb != "succeed" or answer.verdict not in ACCEPTED:
            return
        claim = report.claim
        key = (claim.job_id, claim.idx, claim.attempt)
        with self._lock:
            if key in self._said:
                self.twice.append(key)
            self._said[key] = (claim.claim_id, report.result)
            self.ends += answer.verdict is Verdict.LAST

    @property
    def count(self) -> int:
        return len(self._said)

    def missing(self, store: Store) -> list[tuple[str, int, int]]:
        """The acknowledged results that are not in the table just so."""
        rows = select(store, "SELECT job_id, idx, attempt, claim_id, result FROM fanin.part WHERE status = 'succeeded'")
        there = {
            (str(r["job_id"]), r["idx"], r["attempt"]): (str(r["claim_id"]), r["result"]) for r in rows
        }  # fmt: skip
        return [key for key, said in self._said.items() if there.get(key) != said]
