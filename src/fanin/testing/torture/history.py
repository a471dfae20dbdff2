"""What the processes of a torture have written down, as the judge thinks of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

ACCEPTED = ("ok", "last")
Token = tuple[str, int, int, str]
"""(job, idx, attempt, claim id)."""


class History:
    """What the processes have written down. `read` may be called again and again."""

    def __init__(self) -> None:
        self.bodies = 0
        self.says: dict[Token, set[str | None]] = defaultdict(set)
        """The digests with which a success was reported, before it was sent."""
        self.sent: Counter[tuple[Token, str]] = Counter()
        self.acks: dict[tuple[Token, str], list[dict[str, Any]]] = defaultdict(list)
        self.verdicts: Counter[str] = Counter()
        self.highest: dict[tuple[str, int], int] = defaultdict(int)
        self.begun: dict[int, dict[str, Any]] = {}
        self.submitted: dict[int, set[str]] = defaultdict(set)
        self.cancels: Counter[bool] = Counter()
        self.redrives: list[dict[str, Any]] = []
        self.refused_redrives = 0
        self.wrong: list[str] = []
        self.drained = 0
        self.delivered: Counter[str] = Counter()
        self.contents: dict[str, set[str]] = defaultdict(set)
        """Event key to the fingerprints of what was sent under it."""
        self.mails: dict[tuple[str, int], set[str]] = defaultdict(set)
        """Part to the keys under which it has called outside: as many mails were sent."""
        self.mail_calls = 0
        self.wishes: dict[tuple[str, int, int], set[str]] = defaultdict(set)
        """(job, idx, attempt) to the names of the effects that it has asked for."""
        self.effect_calls: Counter[tuple[str, int, str]] = Counter()
        self.trips: dict[int, dict[str, Any]] = {}
        self.started: dict[int, str] = {}
        self.undos: dict[tuple[int, str], list[float]] = defaultdict(list)
        """(trip, step) to the moments at which something began to undo it."""
        self.nests: dict[tuple[str, int], int] = {}
        """Part to the width of the job that it ends with."""
        self.unanswered = 0
        self.late = 0

    def read(self, lines: Any) -> History:
        for line in lines:
            getattr(self, f"_on_{line['e']}", self._ignore)(line)
        return self

    def _ignore(self, line: dict[str, Any]) -> None:
        """A line for people."""

    def _on_body(self, line: dict[str, Any]) -> None:
        self.bodies += 1
        key = (line["j"], line["i"])
        self.highest[key] = max(self.highest[key], line["a"])

    def _on_say(self, line: dict[str, Any]) -> None:
        token = (line["j"], line["i"], line["a"], line["c"])
        self.sent[token, line["v"]] += 1
        if line["v"] == "succeed":
            self.says[token].add(line["d"])

    def _on_ack(self, line: dict[str, Any]) -> None:
        self.acks[(line["j"], line["i"], line["a"], line["c"]), line["v"]].append(line)
        self.verdicts[line["r"]] += 1

    def _on_submit(self, line: dict[str, Any]) -> None:
        self.begun[line["n"]] = line

    def _on_submitted(self, line: dict[str, Any]) -> None:
        self.submitted[line["n"]].add(line["j"])

    def _on_cancel(self, line: dict[str, Any]) -> None:
        self.cancels[line["won"]] += 1

    def _on_redrive(self, line: dict[str, Any]) -> None:
        self.redrives.append(line)

    def _on_refused(self, line: dict[str, Any]) -> None:
        self.refused_redrives += 1

    def _on_wrong(self, line: dict[str, Any]) -> None:
        self.wrong.append(line["why"])

    def _on_drained(self, line: dict[str, Any]) -> None:
        self.drained += 1

    def _on_delivered(self, line: dict[str, Any]) -> None:
        self.delivered[line["k"]] += 1
        self.contents[line["k"]].add(line["d"])

    def _on_mail(self, line: dict[str, Any]) -> None:
        self.mail_calls += 1
        self.mails[line["j"], line["i"]].add(line["k"])

    def _on_trip(self, line: dict[str, Any]) -> None:
        self.trips[line["n"]] = line

    def _on_started(self, line: dict[str, Any]) -> None:
        self.started[line["n"]] = line["f"]

    def _on_undo(self, line: dict[str, Any]) -> None:
        self.undos[line["t"], line["s"]].append(line["at"])

    def _on_nest(self, line: dict[str, Any]) -> None:
        self.nests[line["j"], line["i"]] = line["w"]

    def _on_wish(self, line: dict[str, Any]) -> None:
        self.wishes[line["j"], line["i"], line["a"]].add(line["n"])

    def _on_call(self, line: dict[str, Any]) -> None:
        self.effect_calls[line["j"], line["i"], line["n"]] += 1

    def _on_unanswered(self, line: dict[str, Any]) -> None:
        self.unanswered += 1

    def _on_late(self, line: dict[str, Any]) -> None:
        self.late += 1

    @property
    def resolved(self) -> tuple[int, int]:
        """Reports that were sent more than once: those that had been done already, and those done by the repeat."""
        already = done = 0
        for (token, verb), times in self.sent.items():
            verdicts = [ack["r"] for ack in self.acks.get((token, verb), ())]
            if "replay" in verdicts:
                already += 1
            elif times > 1 and any(verdict in ACCEPTED for verdict in verdicts):
                done += 1
        return already, done

    @property
    def stale(self) -> tuple[int, int, int]:
        """Refused reports: by a later attempt, by the claim id alone, and because the job was closed."""
        by_attempt = by_claim = 0
        for (token, _), acks in self.acks.items():
            for ack in acks:
                if ack["r"] == "lost":
                    by_attempt += int(ack["h"] != token[2])
                    by_claim += int(ack["h"] == token[2])
        return by_attempt, by_claim, self.verdicts["closed"]
