"""The last words of a map: what became of the job and of its ``--then`` command, and the exit code."""

from __future__ import annotations

from typing import Any

import msgspec

import fanin
from fanin.cli import exits
from fanin.cli.mapping.outputs import Done, Scratch
from fanin.cli.mapping.report import Reporter, indented
from fanin.cli.mapping.runner import ThenDone
from fanin.cli.mapping.screen import Screen
from fanin.cli.tables import short
from fanin.domain.model import Progress
from fanin.runtime.joined import texts
from fanin.runtime.progress import line


class Ending(msgspec.Struct, frozen=True):
    """``over``: the job and its then command have ended; else we were interrupted. ``then_is_ours``: print what it
    printed. ``worked``: whether there was anything to do for this process."""

    job: fanin.Job
    key: str
    progress: Progress
    over: bool
    then: fanin.Job | None
    then_is_ours: bool
    worked: bool
    rate: float

    def tell(self, screen: Screen, reporter: Reporter, scratch: Scratch) -> int:
        """Say it all. Returns the exit code."""
        progress = self.progress
        screen.progress(f"{line(progress, self.rate)}    (job {short(self.job.id)})", progress.failed, last=True)
        if self.over and progress.failed:
            reporter.rest(self.job.failures())
        then_ok = self.then is None or self._tell_then(self.then, screen, scratch)
        if screen.json:
            screen.event(**self._facts())
        else:
            self._tell_job(screen)
        if not self.over:
            return exits.INTERRUPTED
        return exits.OK if progress.status == "completed" and then_ok else exits.FAILED

    def _tell_then(self, then: fanin.Job, screen: Screen, scratch: Scratch) -> bool:
        """What the then command printed, or why it failed. Whether it is well."""
        if then.progress().status == "completed":
            done: ThenDone = next(then.results())
            if self.then_is_ours and not screen.json:
                screen.output(scratch.read(done.stdout)[0])
                screen.output(scratch.read(done.stderr)[0], error=True)
            return True
        if not screen.json:
            what, _, said = _why(then).partition("\n")
            screen.problem(f"the --then command failed: {what}; --redrive starts it again")
            screen.output(indented(said), error=True)
        return False

    def _tell_job(self, screen: Screen) -> None:
        progress, name = self.progress, short(self.job.id)
        if not self.over:
            done = progress.total - progress.remaining
            screen.problem(f"stopped with {done} of {progress.total} parts done; the same command goes on (job {name})")
        elif progress.status != "completed":
            screen.problem(
                f"the job {progress.status}: {self.job.row().reason}. The same command with --redrive tries these "
                f"parts again; see also: fanin show {name}"
            )
        elif progress.failed:
            screen.note(f"{progress.failed} failed parts were tolerated; see: fanin show {name}")
        elif progress.total == 0:
            screen.note("there were no inputs")
        elif not self.worked:
            screen.note("done before; --again runs it all once more")

    def _facts(self) -> dict[str, Any]:
        progress = self.progress
        then: dict[str, Any] | None = None
        if self.then is not None:
            then = {"job": self.then.id, "status": self.then.progress().status}
            if then["status"] == "completed":
                done: ThenDone = next(self.then.results())
                then |= {"seconds": done.seconds, "stdout": done.stdout.text, "stderr": done.stderr.text}
            else:
                then["error"] = _why(self.then)
        return {
            "event": "end", "job": self.job.id, "key": self.key, "status": progress.status,
            "outcome": progress.outcome, "reason": self.job.row().reason, "run": progress.run, "parts": progress.total,
            "succeeded": progress.succeeded, "failed": progress.failed, "abandoned": progress.abandoned, "then": then,
            "interrupted": not self.over,
        }  # fmt: skip


def complete_results(app: fanin.App, job: fanin.Job, reporter: Reporter) -> None:
    """Write the files of parts that ended while we were not there."""
    for idx, result in texts(app.store, job.id):
        if not reporter.has_files(idx + 1):
            reporter.write_files(idx + 1, msgspec.json.decode(result, type=Done))


def _why(then: fanin.Job) -> str:
    failure = next(iter(then.failures()), None)
    return failure.message if failure else then.row().reason or then.progress().status
