"""What a successor receives: the outcome of the job before it, with the results in the order of the parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

from fanin.domain import identity
from fanin.domain.errors import UnknownJob
from fanin.domain.model import NESTED, NESTED_FAILED, Failure, JobRow
from fanin.protocol import read
from fanin.runtime.codec import Codec, joined_type
from fanin.runtime.outputs import LARGE, Output, large_result, output_pages, renumbered
from fanin.stores.base import Store

T = TypeVar("T")


class Joined(Generic[T]):
    """The parts of an ended job. Iterating gives the results of the succeeded parts by index, streamed in pages.

    Annotate the successor's parameter ``Joined[str]`` (or any type) to have the results decoded as that type.
    """

    __fanin_joined__ = True

    def __init__(self, store: Store, facts: dict[str, Any], codec: Codec) -> None:
        self._store = store
        self._codec = codec
        self.job_id: str = facts["job_id"]
        self.run: int = facts["run"]
        self.outcome: str = facts["outcome"]
        self.succeeded: int = facts["succeeded"]
        self.failed: int = facts["failed"]
        self.abandoned: int = facts["abandoned"]
        self._batch: int | None = facts.get("batch")
        """How many items there are in each part of a job that was split."""

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self.items())

    def __len__(self) -> int:
        """How many parts succeeded."""
        return self.succeeded

    def items(self) -> Iterator[tuple[int, T]]:
        """(index, result) of the succeeded parts, by index."""
        return values(self._store, self.job_id, self._codec, self._batch)

    def outputs(self, name: str | None = None) -> Iterator[Output]:
        """The files that the succeeded parts left, by part and name, streamed. name: only those called so."""
        return outputs_of(self._store, self.job_id, self._batch, name)

    @property
    def failures(self) -> list[Failure]:
        """The parts without a result, each with its status and error, by index."""
        return list(failures_of(self._store, self.job_id, self._batch))

    def __repr__(self) -> str:
        counts = f"{self.succeeded} succeeded, {self.failed} failed, {self.abandoned} abandoned"
        return f"<Joined {self.job_id} run {self.run}: {self.outcome}, {counts}>"


def join(store: Store, facts: dict[str, Any], annotation: Any) -> Joined[Any]:
    """The argument of a successor, from the facts in its payload and its parameter's annotation."""
    if facts.get("batch") is not None:
        facts = {**facts, **_counts_below(store, facts["job_id"])}
    return Joined(store, facts, Codec(joined_type(annotation), f"a result of job {facts['job_id']}"))


def values(store: Store, job_id: str, codec: Codec, batch: int | None = None) -> Iterator[tuple[int, Any]]:
    """(idx, result) of the succeeded parts by index, streamed. batch: that of a job that was split."""
    for piece, first in pieces(store, job_id, batch):
        for idx, text in texts(store, piece):
            yield first + idx, value_of(store, piece, idx, text, codec)


def pieces(store: Store, job_id: str, batch: int | None) -> Iterator[tuple[str, int]]:
    """(job, index of its first part in the whole): the jobs of a split job's batches; else the job itself."""
    if batch is None:
        yield job_id, 0
        return
    row = store.read(lambda: read.job(store.bucket(job_id), job_id))
    for n in range(0 if row is None else row.sealed_parts or 0):
        yield identity.nested_id(job_id, n), n * batch


def outputs_of(store: Store, job_id: str, batch: int | None, name: str | None = None) -> Iterator[Output]:
    """The outputs that count, by part and name. name: only those called so."""
    for piece, first in pieces(store, job_id, batch):
        for output in output_pages(store, piece, name):
            yield renumbered(output, first + output.idx)


def failures_of(store: Store, job_id: str, batch: int | None) -> Iterator[Failure]:
    """The parts that failed or were abandoned, by index."""
    for piece, first in pieces(store, job_id, batch):
        for failure in failure_pages(store, piece):
            yield failure if batch is None else msgspec.structs.replace(failure, idx=first + failure.idx)


def first_failure(store: Store, job_id: str, batch: int | None) -> str | None:
    """The first part without a result, and why; with what failed first at the bottom of its nested job, if any."""
    for piece, first in pieces(store, job_id, batch):
        for failure in failure_pages(store, piece):
            bucket, idx, below = store.bucket(piece), failure.idx, None
            if failure.type == NESTED_FAILED:
                below = store.read(lambda: read.below(bucket, piece, idx))
            said = msgspec.structs.replace(failure, idx=first + idx)
            return f"{said}; {below}" if below else str(said)
    return None


def _counts_below(store: Store, job_id: str) -> dict[str, int]:
    found = store.read(lambda: read.progress(store.bucket(job_id), job_id))
    assert found is not None, f"job {job_id} has a successor, and is gone"
    return {"succeeded": found.succeeded, "failed": found.failed, "abandoned": found.abandoned + found.remaining}


def texts(store: Store, job_id: str) -> Iterator[tuple[int, str]]:
    """(idx, what stands in the row) of the succeeded parts by index."""
    return ((idx, text) for idx, status, text in pages(store, job_id) if status == "succeeded" and text is not None)


def pages(store: Store, job_id: str) -> Iterator[tuple[int, str, str | None]]:
    """(idx, status, what stands in the row) of all parts by index, a page at a time: memory stays flat."""
    bucket, first = store.bucket(job_id), 0
    while page := store.read(lambda: read.results(bucket, job_id, first)):
        yield from page
        if len(page) < read.PAGE_PARTS:
            return
        first = page[-1][0] + 1


def value_of(store: Store, job_id: str, idx: int, text: str, codec: Codec) -> Any:
    """A part's result from what stands in its row: JSON, or where it is."""
    if text.startswith(LARGE):
        return codec.decode(large_result(store, job_id, idx))
    if not text.startswith(NESTED):
        return codec.decode(text)
    nested = store.read(lambda: read.job(store.bucket(job_id), text[len(NESTED) :]))
    if nested is None:
        raise UnknownJob(
            f"the result of part {idx} of job {job_id} is that of job {text[len(NESTED) :]}, which is gone"
        )
    if nested.step is None:
        return join(store, facts_of(nested), codec.annotation)
    return next(value for _, value in values(store, nested.id, codec))  # a successor has one part


def facts_of(job: JobRow) -> dict[str, Any]:
    """What a `Joined` is told of an ended job."""
    return {
        "job_id": job.id, "run": job.run, "outcome": job.outcome, "succeeded": job.succeeded_parts,
        "failed": job.failed_parts, "abandoned": job.abandoned_parts, "batch": job.batch,
    }  # fmt: skip


def failure_pages(store: Store, job_id: str) -> Iterator[Failure]:
    bucket, first = store.bucket(job_id), 0
    while page := store.read(lambda: read.failures(bucket, job_id, first)):
        yield from page
        first = page[-1].idx + 1
