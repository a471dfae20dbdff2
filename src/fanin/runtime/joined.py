"""What a successor receives: the outcome of the job before it, with the results in the order of the parts."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from fanin.domain.model import Failure
from fanin.protocol import read
from fanin.runtime.codec import Codec
from fanin.runtime.outputs import Output, is_large, large_result, output_pages
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
        for idx, status, text in pages(self._store, self.job_id):
            if status == "succeeded" and text is not None:
                yield idx, self._codec.decode(text)

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


def pages(store: Store, job_id: str) -> Iterator[tuple[int, str, str | None]]:
    """(idx, status, result as JSON) of all parts by index, a page at a time: memory stays flat."""
    bucket, first = store.bucket(job_id), 0
    while page := store.read(lambda: read.results(bucket, job_id, first)):
        for idx, status, text in page:
            yield idx, status, large_result(store, job_id, idx) if is_large(text) else text
        first = page[-1][0] + 1


def failure_pages(store: Store, job_id: str) -> Iterator[Failure]:
    bucket, first = store.bucket(job_id), 0
    while page := store.read(lambda: read.failures(bucket, job_id, first)):
        yield from page
        first = page[-1].idx + 1
