"""What a successor receives: the outcome of the job before it, with the results in the order of the parts."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from fanin.domain.errors import UnknownJob
from fanin.domain.model import NESTED, Failure, JobRow
from fanin.protocol import read
from fanin.runtime.codec import Codec
from fanin.runtime.outputs import LARGE, Output, large_result, output_pages
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

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self.items())

    def __len__(self) -> int:
        """How many parts succeeded."""
        return self.succeeded

    def items(self) -> Iterator[tuple[int, T]]:
        """(index, result) of the succeeded parts, by index."""
        return values(self._store, self.job_id, self._codec)

    def outputs(self, name: str | None = None) -> Iterator[Output]:
        """The files that the succeeded parts left, by part and name, streamed. name: only those called so."""
        return output_pages(self._store, self.job_id, name)

    @property
    def failures(self) -> list[Failure]:
        """The parts without a result, each with its status and error, by index."""
        return list(failure_pages(self._store, self.job_id))

    def __repr__(self) -> str:
        counts = f"{self.succeeded} succeeded, {self.failed} failed, {self.abandoned} abandoned"
        return f"<Joined {self.job_id} run {self.run}: {self.outcome}, {counts}>"


def join(store: Store, facts: dict[str, Any], annotation: Any) -> Joined[Any]:
    """The argument of a successor, from the facts in its payload and its parameter's annotation."""
    arguments = typing.get_args(annotation)
    kind = arguments[0] if arguments and not isinstance(arguments[0], TypeVar) else Any
    return Joined(store, facts, Codec(kind, f"a result of job {facts['job_id']}"))


def values(store: Store, job_id: str, codec: Codec) -> Iterator[tuple[int, Any]]:
    """(idx, result) of the succeeded parts by index, streamed."""
    for idx, text in texts(store, job_id):
        yield idx, value_of(store, job_id, idx, text, codec)


def texts(store: Store, job_id: str) -> Iterator[tuple[int, str]]:
    """(idx, what stands in the row) of the succeeded parts by index."""
    return ((idx, text) for idx, status, text in pages(store, job_id) if status == "succeeded" and text is not None)


def pages(store: Store, job_id: str) -> Iterator[tuple[int, str, str | None]]:
    """(idx, status, what stands in the row) of all parts by index, a page at a time: memory stays flat."""
    bucket, first = store.bucket(job_id), 0
    while page := store.read(lambda: read.results(bucket, job_id, first)):
        yield from page
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
        "failed": job.failed_parts, "abandoned": job.abandoned_parts,
    }  # fmt: skip


def failure_pages(store: Store, job_id: str) -> Iterator[Failure]:
    bucket, first = store.bucket(job_id), 0
    while page := store.read(lambda: read.failures(bucket, job_id, first)):
        yield from page
        first = page[-1].idx + 1
