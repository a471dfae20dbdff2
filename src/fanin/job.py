"""A job as the caller holds it: an id and an application. Nothing is cached; every look is a query."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from fanin.domain import limits
from fanin.domain.durations import Duration, seconds
from fanin.domain.effects import Effect
from fanin.domain.errors import BadOption, JobFailed, NotAllowedNow, UnknownJob, shown
from fanin.domain.flows import FlowProgress, FlowRow
from fanin.domain.model import Failure, JobRow, Progress
from fanin.domain.timeline import Explanation
from fanin.protocol import close, deeds, effect, explain, pause, read, redrive, skip
from fanin.protocol.steps import Rows
from fanin.runtime.codec import Codec
from fanin.runtime.joined import failures_of, first_failure, outputs_of, values
from fanin.runtime.outputs import Output
from fanin.runtime.patience import Patience
from fanin.runtime.task import Application, check_attempts
from fanin.runtime.timeline import explanation
from fanin.runtime.whoever import whoever

log = logging.getLogger("fanin")

PARTING_SECONDS = 0.25
"""A worker that has nothing to finish has ended sooner."""

Look = TypeVar("Look", Progress, FlowRow, FlowProgress)


class Job:
    """One job. ``run=True``: waiting runs the parts in this process, so that a script needs no other worker."""

    def __init__(self, app: Application, job_id: str, *, run: bool = False) -> None:
        self._app = app
        self.id = job_id
        self._bucket = app.store.bucket(job_id)
        self._run = run

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def row(self) -> JobRow:
        """Everything that the database knows of the job itself. Raises `UnknownJob`."""
        row = self._app.store.read(lambda: read.job(self._bucket, self.id))
        if row is None:
            raise UnknownJob(f"there is no job {self.id} in {self._app.url.split('@')[-1]}")
        return row

    @property
    def status(self) -> str:
        """``open``, ``running``, ``completed``, ``failed`` or ``cancelled``."""
        return self.progress().status

    def progress(self, *, tree: bool = False) -> Progress:
        """The counts, in constant time however many parts there are. Raises `UnknownJob`.

        tree: with the parts of all jobs that its parts have ended with (`Part.fan_out`), in a time that grows with the
        number of these jobs. A part that waits for such a job counts as remaining.
        """
        found = self._app.store.read(lambda: read.progress(self._bucket, self.id, tree))
        if found is None:
            raise UnknownJob(f"there is no job {self.id} in {self._app.url.split('@')[-1]}")
        return found

    def wait(self, timeout: Duration | None = None, *, progress: bool = False, run: bool | None = None) -> Job:
        """Wait until the job's run has ended, whatever its outcome. Returns the job.

        progress: show a live line. run: work on the parts here meanwhile (default as given to ``map``). Raises
        `WaitTimeout`; the job goes on.
        """
        patience = Patience(f"job {self.id}", timeout)
        with LocalWorker(self._app, self._run if run is None else run) as worker:
            if progress:
                from fanin.runtime.progress import watch

                watch(worker.polls(self.progress, patience))
            else:
                for _ in worker.polls(self.progress, patience):
                    pass
        return self

    def results(self) -> Iterator[Any]:
        """The results of the succeeded parts in the order of the parts, streamed; those of now if the job goes on."""
        codec = self._codec()
        return (value for _, value in values(self._app.store, self.id, codec, self._batch()))

    def outputs(self, name: str | None = None) -> Iterator[Output]:
        """The files that the succeeded parts left (`Part.output`), by part and name, streamed.

        name: only those called so.
        """
        return outputs_of(self._app.store, self.id, self._batch(), name)

    def effects(self) -> Iterator[Effect]:
        """What the job's parts want done outside (`Part.effect`), and what became of it, by part and name, streamed."""
        after: effect.Place | None = effect.FIRST
        while after is not None:
            page, after = self._app.store.read(partial(effect.of_job, self._bucket, self.id, after))
            yield from page

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the job and return its single result, or the list of all results of a wider one.

        Raises `JobFailed` if it did not complete, with the first failure.
        """
        self.wait(timeout)
        row = self.row()
        if row.status != "completed":
            first = first_failure(self._app.store, self.id, row.batch)
            raise JobFailed(f"job {self.id} {row.status} ({row.outcome}): {first or row.reason}")
        found = list(self.results())
        return found[0] if row.sealed_parts == 1 and row.width is None and found else found

    def failures(self) -> list[Failure]:
        """The parts that failed or were abandoned, with their errors, by index."""
        return list(failures_of(self._app.store, self.id, self._batch()))

    def cancel(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """End the job now, with its event and without its successor. False if it had ended before.

        reason, by: why, and who says so (default: the user and host of this process); both for people. Raises
        `BadOption`.
        """
        done = deed(by, reason)
        return self._app.store.run(lambda: close.cancel(self._bucket, self.id, done))

    def finish(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """End the job now as completed with what has arrived: outcome ``partial``, with its event and its successor.

        What is not done is abandoned. False if it had ended before. Raises `BadOption`.
        """
        done = deed(by, reason)
        return self._app.store.run(lambda: close.finish_now(self._bucket, self.id, done))

    def pause(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Let no part of the job be claimed until `resume`. False if it was paused already.

        Running parts go on, and may end the job; so may its deadline. Jobs that it has started go on, also those for
        which its parts wait; of a job that was split all items are held. Raises `NotAllowedNow` if it has ended,
        `BadOption`.
        """
        done = deed(by, reason)
        did = self._app.store.run(lambda: pause.pause(self._bucket, self.id, done))
        self._walk()
        return did

    def resume(self, reason: str | None = None, *, by: str | None = None) -> bool:
        """Let the parts of a paused job be claimed again. False if it was not paused. Raises `BadOption`."""
        done = deed(by, reason)
        did = self._app.store.run(lambda: pause.resume(self._bucket, self.id, done))
        self._walk()
        return did

    def _walk(self) -> None:
        """The parts are held back, or let go; if this process dies on the way, workers go on with it."""
        while found := self._app.store.read(lambda: pause.walking_of(self._bucket, self.id)):
            for job_id in found:
                while self._app.store.run(partial(pause.walk, self._bucket, job_id)):
                    pass

    def skip(
        self, part: int, *, result: Any = None, failed: bool = False, reason: str | None = None, by: str | None = None
    ) -> bool:
        """Declare that a part has ended, without a run of it: with ``result``, or as failed. True if that ends the job.

        It counts like any other end. Whoever runs it is told to stop, and is not heard any more. Raises `UnknownPart`,
        `NotAllowedNow` if the part or the job has ended, `BadPayload` for a result that the task could not return,
        `BadOption`.
        """
        check_whole(self.row())
        check_part(part)
        if self._app.store.read(lambda: read.part(self._bucket, self.id, part)) is None:
            raise skip.unknown_part(self.id, part)
        text = result_text(self._codec(), part, result, failed)
        done = deed(by, reason)
        return self._app.store.run(lambda: skip.skip(self._bucket, self.id, part, text, done))

    def redrive(
        self,
        parts: Sequence[int] | None = None,
        *,
        attempts: int | None = None,
        give_up_after: Duration | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> int:
        """Open a new run for the failed and abandoned parts (or those chosen by index) of an ended job.

        Returns the number of the new run; 0 if there is nothing to redrive. Raises `NotAllowedNow` while the job runs,
        `UnknownPart`, `BadOption`.
        """
        parts = check_parts(parts)
        allowance = None if attempts is None else check_attempts(attempts)
        done = deed(by, reason)
        row = self.row()
        if parts is not None:
            check_whole(row)
        wait = None if give_up_after is None else seconds(give_up_after, "give_up_after")
        for stripe in range(row.stripes if row.ended else 0):
            while self._app.store.run(lambda: close.sweep(self._bucket, self.id, stripe)):
                pass  # what the end left behind is abandoned first, so that it can be chosen
        return self._app.store.run(
            lambda: redrive.redrive(self._bucket, self.id, row.run, allowance or row.attempts, parts, wait, done)
        )

    @property
    def successor(self) -> Job | None:
        """The job that followed the latest run of this one, or None (yet)."""
        born = self._app.store.read(lambda: read.successor(self._bucket, self.id))
        return Job(self._app, born, run=self._run) if born is not None else None

    def children(self) -> list[Job]:
        """The jobs that parts of this one have started."""
        buckets = range(self._app.store.buckets)
        return [Job(self._app, job_id) for job_id, step in self._children(buckets) if step is None]

    def _children(self, buckets: Iterable[int]) -> list[tuple[str, str | None]]:
        return self._app.store.read(lambda: read.children(buckets, self.id))

    def account(self) -> dict[str, int]:
        """What it took: parts, attempts, leases_lost, stale_refused, retried, released, events, successors, ends."""
        found = self._app.store.read(lambda: read.account(self._bucket, self.id))
        return {**found, "ends": found["events"]}

    def history(self) -> list[dict[str, Any]]:
        """The attempts that did not simply succeed, by time: retried, failed, released, lease_lost, refused."""
        return self._app.store.read(lambda: read.history(self._bucket, self.id))

    def explain(self, part: int | None = None) -> Explanation:
        """What happened, in the order of time, and why: bounded, however wide the job is.

        part: the whole history of this part instead. All parts of the job are read once. Raises `UnknownPart`,
        `BadOption`.
        """
        if part is not None:
            check_part(part)
        buckets = range(self._app.store.buckets)
        found = self._app.store.read(lambda: explain.known(self._bucket, self.id, buckets, part))
        return explanation(self.id, found, part)

    def events(self) -> Rows:
        """(event key, seq, type, payload, at, published at) of the job's events."""
        return self._app.store.read(lambda: read.events(self._bucket, self.id))

    def meta(self) -> Any:
        """What was given as ``meta`` at submit."""
        text = self.row().meta
        return None if text is None else msgspec.json.decode(text)

    def _batch(self) -> int | None:
        return self.row().batch

    def _codec(self) -> Codec:
        task = self._app.tasks.get(self.row().task)
        return task.signature.result if task is not None else Codec(Any, f"a result of job {self.id}")


def deed(by: str | None, reason: str | None) -> deeds.Deed:
    """Who does something, and why. Raises `BadOption`."""
    return deeds.deed(whoever() if by is None else by, reason)


def result_text(codec: Codec, part: int, result: Any, failed: bool) -> str | None:
    """The result of a skipped part as JSON, None for a failure. Raises `BadOption`, `BadPayload`."""
    if not failed:
        return codec.encode(result, limits.RESULT_BYTES, f"the result of part {part}")
    if result is not None:
        raise BadOption(f"result={shown(result)}, failed=True: a part that failed has no result; choose")
    return None


def check_whole(row: JobRow) -> None:
    """Raise `NotAllowedNow` for a job whose parts are batches: none of them is what a caller calls a part."""
    if row.batch is not None:
        raise NotAllowedNow(
            f"job {row.id} was split into jobs of {row.batch} parts: do this with the whole, or look at Job.children()"
        )


def check_part(part: Any) -> None:
    """Raise `BadOption` for what can be no part's index."""
    if type(part) is not int or not 0 <= part < limits.INDEX_PARTS:
        raise BadOption(f"part={shown(part)} is no index of a part: give a whole number from 0")


def check_parts(parts: Any) -> list[int] | None:
    """The chosen parts, None for all. Raises `BadOption` for what can be no part's index."""
    if parts is None:
        return None
    if not isinstance(parts, Iterable) or isinstance(parts, str | bytes):
        raise BadOption(f"parts={shown(parts)}: give a list of the indexes of parts, from 0, or None for all")
    chosen = list(parts)
    for idx in chosen:
        if type(idx) is not int or not 0 <= idx < limits.INDEX_PARTS:
            raise BadOption(f"parts: {shown(idx)} is no index of a part; give whole numbers from 0")
    return chosen


class LocalWorker:
    """A worker in a thread of this process, for as long as somebody waits.

    What it still runs then, of whatever job, it runs to its end, but nobody waits for that but `App.close` and the end
    of the process.
    """

    def __init__(self, app: Application, wanted: bool) -> None:
        self._app = app
        self._problem: BaseException | None = None
        self._left = False
        self._thread: threading.Thread | None = None
        if wanted:
            from fanin.runtime.worker import Worker

            self._worker = Worker(app)
            self._thread = threading.Thread(target=self._work, name="fanin-local-worker")

    def _work(self) -> None:
        try:
            self._worker.run()
        except BaseException as problem:
            self._problem = problem
            if self._left:
                log.exception("the worker of a program that waits no more has failed")

    def check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def polls(self, look: Callable[[], Look], patience: Patience) -> Iterator[Look]:
        """What is seen of something, again and again, until it has ended. Raises `WaitTimeout`, and what broke here."""
        while True:
            found = look()
            yield found
            if found.ended:
                return
            self.check()
            time.sleep(patience.pause(found.status))

    def __enter__(self) -> LocalWorker:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._thread is None:
            return
        self._worker.stop(now=kind is not None)  # whoever asked for a time-out does not wait for a grace
        self._thread.join(None if kind is not None else PARTING_SECONDS)
        if self._thread.is_alive():
            self._left = True
            self._app.leaving[:] = [*filter(threading.Thread.is_alive, self._app.leaving), self._thread]
