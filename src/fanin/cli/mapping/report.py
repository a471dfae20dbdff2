"""How the end of each part is told: on the terminal, as JSON lines, or as files in the ``--results`` folder."""

from __future__ import annotations

import os
import shutil

import msgspec

from fanin.cli.mapping.inputs import Item
from fanin.cli.mapping.outputs import Done, Kept, Scratch
from fanin.cli.mapping.plan import Plan, clean
from fanin.cli.mapping.screen import Screen
from fanin.domain.model import Failure

FAILURES_SHOWN = 10
"""Failed parts told in full; the others are counted."""
RETRIES_SHOWN = 5


class Reporter:
    """Tells of parts by their number, from 1. A failure is told once by one process."""

    def __init__(self, plan: Plan, scratch: Scratch, screen: Screen, results: str | None) -> None:
        self.plan = plan
        self.scratch = scratch
        self.screen = screen
        self.results = results
        self._told: set[int] = set()
        self._retries = 0

    def succeeded(self, number: int, done: Done, attempt: int | None = None) -> None:
        """A part's commit was accepted."""
        if self.results is not None:
            self.write_files(number, done)
        if self.screen.json:
            self.screen.event(
                event="part", number=number, item=self._item(number), status="succeeded", attempt=attempt,
                seconds=done.seconds, outs=[clean(self.scratch.final(name)) for name in done.names],
                stdout=readable(done.stdout), stderr=readable(done.stderr),
            )  # fmt: skip
        elif self.results is None:
            stdout, whole = self.scratch.read(done.stdout)
            stderr, _ = self.scratch.read(done.stderr)
            self.screen.output(stdout)
            self.screen.output(stderr, error=True)
            if not whole:
                self.screen.problem(
                    f"part {number} printed {done.stdout.size} bytes on another host; the last {len(stdout)} are here"
                )

    def failed(self, failure: Failure) -> None:
        """A part ended without a result."""
        number = failure.idx + 1
        if number in self._told:
            return
        self._told.add(number)
        if self.screen.json:
            self.screen.event(
                event="part", number=number, item=self._item(number), status=failure.status,
                attempt=failure.attempt, error=failure.message,
            )  # fmt: skip
            return
        if len(self._told) > FAILURES_SHOWN:
            return
        what, _, said = failure.message.partition("\n")
        self.screen.problem(f"part {number} ({self._item(number)!r}) {failure.status}: {what or failure.type}")
        if said:
            self.screen.output(indented(said), error=True)

    def retried(self, number: int, attempt: int, message: str, delay: float) -> None:
        """An attempt failed; the part will be tried again."""
        what, _, said = message.partition("\n")
        self.screen.event(
            event="retry", number=number, item=self._item(number), attempt=attempt, error=message, delay=round(delay, 3)
        )
        self._retries += 1
        if self._retries == RETRIES_SHOWN + 1:
            self.screen.note("more commands fail and are tried again; only the last failures are told from here on")
        if not self.screen.json and self._retries <= RETRIES_SHOWN:
            last = f" ({said.splitlines()[-1][:100]})" if said else ""
            self.screen.note(f"part {number} ({self._item(number)!r}): {what}{last}; again in {delay:.1f} s")

    def rest(self, failures: list[Failure]) -> None:
        """The failures that this process has not told yet, at the end."""
        for failure in failures:
            if failure.status == "failed":
                self.failed(failure)
        if len(self._told) > FAILURES_SHOWN and not self.screen.json:
            self.screen.problem(f"… and {len(self._told) - FAILURES_SHOWN} more parts failed")

    def write_files(self, number: int, done: Done) -> None:
        """NUMBER.stdout and NUMBER.stderr in the results folder. Written aside and renamed: never half a file."""
        assert self.results is not None
        for name, kept in (("stdout", done.stdout), ("stderr", done.stderr)):
            path = os.path.join(self.results, f"{number}.{name}")
            aside = f"{path}.{os.getpid()}"
            source = None if kept.file is None else os.path.join(self.scratch.root, kept.file)
            if source is not None and os.path.exists(source):
                shutil.copyfile(source, aside)
            else:
                with open(aside, "wb") as file:
                    file.write(kept.data)
            os.replace(aside, path)

    def has_files(self, number: int) -> bool:
        assert self.results is not None
        return os.path.exists(os.path.join(self.results, f"{number}.stderr"))

    def _item(self, number: int) -> str:
        return Item.of(self.plan.items[number - 1]).text if number <= len(self.plan.items) else "?"


def readable(kept: Kept) -> str:
    """Text for JSON; bytes that are not UTF-8 are written out."""
    return kept.data.decode("utf-8", "backslashreplace")


def failure_of(idx: int, status: str, attempt: int, error: str | None) -> Failure:
    """A failure as it was reported by this process."""
    said = msgspec.json.decode(error) if error else {}
    return Failure(idx, status, attempt, said.get("type", ""), said.get("message", ""))


def indented(said: str) -> bytes:
    """What a command said, set off from our own lines."""
    return "".join(f"  | {line}\n" for line in said.splitlines()).encode("utf-8", "backslashreplace")
