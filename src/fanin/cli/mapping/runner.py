"""The two tasks of a map: the command of a part, and the ``--then`` command."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable
from typing import IO

import msgspec

import fanin
from fanin.cli.mapping.inputs import Item
from fanin.cli.mapping.outputs import Done, Kept, Place, Scratch, settle_on_disk
from fanin.cli.mapping.plan import Plan, clean
from fanin.cli.mapping.process import Exit, Guardian, run
from fanin.cli.mapping.quoting import Hole
from fanin.domain.errors import LeaseLost, Permanent
from fanin.domain.model import Failure

SAID_BYTES = 3_000
"""So much of a failed command's standard error goes into the recorded failure."""
SCRIPT_BYTES = 100_000
"""A longer shell text is run from a file: one argument of a program has at most 128 KiB on Linux."""


class CommandFailed(Exception):
    """The command of a part did not succeed; it may be tried again."""


class CommandGivenUp(CommandFailed, Permanent):
    """The command of a part did not succeed, and will not be tried again."""

    __qualname__ = "CommandFailed"


class ThenDone(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of the ``--then`` command."""

    seconds: float
    host: str
    stdout: Kept = Kept()
    stderr: Kept = Kept()


class Runner:
    """Runs commands for the worker. ``run_of`` gives the job's current run; ``stopping`` ends all commands at once."""

    def __init__(
        self, plan: Plan, scratch: Scratch, guardian: Guardian, attempts: int, timeout: float | None,
        run_of: Callable[[], int],
    ) -> None:  # fmt: skip
        self.plan = plan
        self.scratch = scratch
        self.guardian = guardian
        self.attempts = attempts
        self.timeout = timeout
        self.run_of = run_of
        self.stems = plan.stems()
        self.suffixes = plan.template.out_suffixes()
        self.stopping = threading.Event()
        self.failed: dict[tuple[int, int], Done] = {}
        """What failed attempts of this process printed, by index and attempt, until their reports are settled."""
        self.ran_then = False
        self._active = 0
        self._idle = threading.Condition()

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no command runs any more; False if some still do."""
        with self._idle:
            return self._idle.wait_for(lambda: self._active == 0, seconds)

    def run_part(self, item: Item) -> Done:
        """The handler of a part."""
        part = fanin.current()
        place = self.scratch.place(part.idx + 1, part.attempt)
        self._make(place)
        names = {suffix: self.stems[part.idx] + suffix for suffix in self.suffixes}
        command = self.plan.command(item.value, part.idx + 1, lambda suffix: place.out(names[suffix]))
        extra = {"FANIN_ITEM": item.value, "FANIN_NUMBER": str(part.idx + 1)}
        found = self._run(command, place, extra)
        problem = None if not found.ok else self._missing_output(place, names)
        if found.ok and problem is None:
            return Done(
                place.name, round(found.seconds, 3), [clean(name) for name in names.values()],
                place.keep("stdout"), place.keep("stderr"), _raw(list(names.values())),
            )  # fmt: skip
        message = _message(problem or str(found), place)
        self.failed[part.idx, part.attempt] = Done(
            place.name, round(found.seconds, 3), [], place.keep("stdout"), place.keep("stderr")
        )
        shutil.rmtree(os.path.join(place.path, "out"), ignore_errors=True)
        if found.code in (126, 127):
            raise CommandGivenUp(message)
        self._count_failure(message)
        raise CommandFailed(message)

    def run_then(self, parts: fanin.Joined[Done]) -> ThenDone:
        """The handler of the ``--then`` command: the outputs in the order of the inputs, the failures in a file."""
        assert self.plan.then is not None
        for number, _, left in self.scratch.leftovers():
            if number == 0:
                left.remove()
        place = self.scratch.place(0, fanin.current().attempt)
        self._make(place)
        failures = place.stream("failures")
        self._write_failures(failures, parts.failures)
        outs: list[str] = []
        with tempfile.TemporaryFile(dir=place.path) as collected:
            for idx, done in parts.items():
                if problem := self.scratch.promote(done):
                    raise CommandGivenUp(problem)
                if missing := self.scratch.missing(done):
                    raise CommandGivenUp(
                        f"the output {missing[0]} of part {idx + 1} is not on this host: let all hosts write to one "
                        "shared folder (--outdir), then say the same command with --redrive"
                    )
                outs += [self.scratch.final(name) for name in done.names]
                self._collect(collected, idx, done)
            outs_file = place.stream("outs")
            with open(outs_file, "wb") as file:
                end = b"\0" if self.plan.null else b"\n"
                file.writelines(os.fsencode(out) + end for out in outs)
            command = self.plan.then.render(lambda hole: _then_value(hole, outs, outs_file, failures))
            collected.seek(0)
            found = self._run(command, place, {"FANIN_FAILURES": failures}, stdin=collected)
        if not found.ok:
            raise CommandGivenUp(_message(str(found), place))
        done_then = ThenDone(round(found.seconds, 3), socket.gethostname(), place.keep("stdout"), place.keep("stderr"))
        self.ran_then = True
        if done_then.stdout.file is None and done_then.stderr.file is None:
            place.remove()
        return done_then

    def _run(
        self, command: str | list[str], place: Place, extra: dict[str, str], stdin: IO[bytes] | None = None
    ) -> Exit:
        part = fanin.current()
        environment = {
            **os.environ, "FANIN_JOB": part.job_id, "FANIN_ATTEMPT": str(part.attempt),
            "FANIN_IDEMPOTENCY_KEY": part.idempotency_key, **extra,
        }  # fmt: skip
        if isinstance(command, str) and len(os.fsencode(command)) > SCRIPT_BYTES:
            with open(place.stream("script"), "wb") as script:
                script.write(os.fsencode(command) + b"\n")
            command = ["/bin/sh", place.stream("script")]
        with self._idle:
            self._active += 1
        try:
            with open(place.stream("stdout"), "wb") as stdout, open(place.stream("stderr"), "wb") as stderr:
                found = run(
                    command, environment, stdout, stderr, self.guardian,
                    timeout=None if stdin is not None else self.timeout,
                    unwanted=lambda: part.cancelled or self.stopping.is_set(), stdin=stdin,
                )  # fmt: skip
        except (OSError, ValueError) as problem:
            place.remove()
            raise CommandGivenUp(_cannot_start(command, problem)) from None
        finally:
            with self._idle:
                self._active -= 1
                self._idle.notify_all()
        if found.unwanted:
            place.remove()
            raise LeaseLost(f"part {part.idx + 1} was stopped: it is not ours any more")
        return found

    def _make(self, place: Place) -> None:
        try:
            place.make()
        except OSError as problem:
            raise CommandGivenUp(f"cannot write in {place.path}: {problem.strerror}; try another --outdir") from None

    def _missing_output(self, place: Place, names: dict[str, str]) -> str | None:
        """Check the outputs of a command that said it succeeded, and wait until they are on the disk."""
        for suffix, name in names.items():
            try:
                mode = os.lstat(place.out(name)).st_mode
            except FileNotFoundError:
                return f"exit 0, but nothing was written to {{out}}{suffix}"
            if not stat.S_ISREG(mode):
                return f"exit 0, but {{out}}{suffix} is not a regular file: pack a folder into one file"
            settle_on_disk(place.out(name))
        return None

    def _count_failure(self, message: str) -> None:
        """Give up after ``attempts`` failures of the command itself; a lost worker does not count as one.

        The count travels in the part's checkpoint, together with the run, so that a redrive starts from zero.
        """
        part, run_now = fanin.current(), self.run_of()
        before = part.last_checkpoint or {}
        failures = 1 + (before.get("failures", 0) if before.get("run") == run_now else 0)
        if failures >= self.attempts:
            raise CommandGivenUp(message)
        part.checkpoint({"run": run_now, "failures": failures})

    def _write_failures(self, path: str, failures: list[Failure]) -> None:
        with open(path, "wb") as file:
            for failure in failures:
                file.write(msgspec.json.encode(describe(failure, self.plan.items)) + b"\n")

    def _collect(self, collected: IO[bytes], idx: int, done: Done) -> None:
        if done.stdout.file is None:
            collected.write(done.stdout.data)
            return
        try:
            with open(os.path.join(self.scratch.root, done.stdout.file), "rb") as file:
                shutil.copyfileobj(file, collected)
        except OSError as problem:
            raise CommandGivenUp(
                f"the standard output of part {idx + 1} ({done.stdout.size} bytes) is kept in {done.stdout.file}, "
                f"which is not on this host: {problem.strerror}"
            ) from None


def _raw(names: list[str]) -> list[bytes] | None:
    return [os.fsencode(name) for name in names] if any(clean(name) != name for name in names) else None


def describe(failure: Failure, items: list[str]) -> dict[str, object]:
    """One failed part as a JSON object: a line of the failures file, and of ``--json``."""
    item = Item.of(items[failure.idx]) if failure.idx < len(items) else Item("")
    return {
        "number": failure.idx + 1, "item": item.text, "status": failure.status, "attempt": failure.attempt,
        "error": failure.message,
    }  # fmt: skip


def _then_value(hole: Hole, outs: list[str], outs_file: str, failures: str) -> str | list[str]:
    if hole.name == "outs":
        return outs
    return outs_file if hole.name == "outs-file" else failures


def _message(what: str, place: Place) -> str:
    """How it ended, and the end of what it wrote to standard error (or, if nothing, to standard output)."""
    for name in ("stderr", "stdout"):
        kept = place.keep(name)
        if said := kept.data.decode("utf-8", "backslashreplace").rstrip():
            cut = said[-SAID_BYTES:]
            more = "" if len(cut) == len(said) and kept.file is None else f"\n(all of it: {place.stream(name)})"
            return f"{what}\n{cut}{more}"
    return what


def _cannot_start(command: str | list[str], problem: Exception) -> str:
    name = "sh" if isinstance(command, str) else command[0]
    if isinstance(problem, OSError) and problem.errno == errno.E2BIG:
        return f"{name}: the command line is too long; with --then use {{outs-file}} in place of {{outs}}"
    if isinstance(problem, FileNotFoundError):
        return (
            f"{name}: no such program. Several words after -- are run without a shell; for shell syntax give one string"
        )
    said = problem.strerror if isinstance(problem, OSError) else str(problem)
    return f"{name} cannot be started: {said}"
