"""The parts of a new job on their way to the database: read once, counted, hashed, bounded in memory."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from fanin.domain import identity, limits
from fanin.domain.errors import KeyConflict, LimitExceeded, NotAllowedNow
from fanin.domain.model import JobRow, NewJob
from fanin.protocol import read, split, submit
from fanin.protocol.steps import Again, Txn, TxnFactory

Wanted = str | tuple[str, str]
"""The payload of a part. In a job that grows: its key, and its payload."""
W = TypeVar("W", bound=Wanted)


class Spool:
    """All payloads, kept in memory or in a temporary file, so that nothing is written before all are checked.

    ``digest`` is over each of them; ``chunks`` gives them again, as often as the transaction is tried, and ``keys``
    gives their keys if there are any. Raises `LimitExceeded` for more than ``width``.
    """

    def __init__(self, payloads: Iterable[Wanted], width: int) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=limits.SPOOL_BYTES)  # noqa: SIM115 - lives with the spool
        self._index: list[tuple[int, int]] = []
        self._count = 0
        hashed = identity.request_hash()
        for chunk in bounded(payloads):
            self._count += len(chunk)
            _hash(hashed, _payloads(chunk))
            if self._count > width:
                raise LimitExceeded(
                    f"the job has more than {width} parts, which is the limit: put several items in one part, raise "
                    "App(max_parts=…) if that is lower than you need, or split the job. Nothing was written"
                )
            data = msgspec.msgpack.encode(chunk)
            self._index.append((self._file.tell(), len(data)))
            self._file.write(data)
        self.digest = hashed.hexdigest()

    def __len__(self) -> int:
        return self._count

    def chunks(self) -> Iterator[list[str]]:
        return map(_payloads, self._chunks())

    def keys(self) -> Iterator[list[str]]:
        return ([key for key, _ in chunk] for chunk in self._chunks())

    def _chunks(self) -> Iterator[list[Any]]:
        for offset, size in self._index:
            self._file.seek(offset)
            yield msgspec.msgpack.decode(self._file.read(size))

    def create(self, new: NewJob) -> TxnFactory[bool]:
        """The one transaction that creates the job with all of its parts."""
        new = self.sealed(new)
        keys = None if new.width is None else self.keys
        return lambda: split.create(new, len(self), self.chunks, keys)

    def sealed(self, new: NewJob) -> NewJob:
        """The same job with the hash of its content, parts included."""
        return msgspec.structs.replace(new, request_hash=content_hash(new, self.digest))


class Feed:
    """Payloads that are written while they come: open, a chunk at a time, seal. Saying all of it again adds nothing.

    Each method gives the transaction to run now, or None. Parts may run before the seal; the job cannot end before it.
    """

    def __init__(self, new: NewJob, width: int) -> None:
        self._keep = new.give_up_after is not None or new.give_up_at is not None
        self._asked = new
        self._new = new if self._keep else msgspec.structs.replace(new, give_up_after=limits.OPEN_SECONDS)
        self._width = width
        self._chunk: list[Wanted] = []
        self._size = 0
        self._said = 0
        self._left_out: dict[int, int] = {}
        """Of a chunk, by its first index: how many of its items a growing job had seen before."""
        self._hashed = identity.request_hash()
        self._sealed = False
        self.ended = False
        """Whether the job has ended meanwhile, so that no further item need be read."""

    def open(self) -> TxnFactory[None]:
        return self._open

    def _open(self) -> Txn[None]:
        yield from submit.open_job(self._new)
        row = yield from read.job(self._new.bucket, self._new.id)
        self._sealed = row is not None and row.request_hash is not None
        if row is not None and not self._sealed and _rules(row) != _rules(self._new):
            raise KeyConflict(
                f"the key {row.key!r} stands for a streamed job of another task or other options: choose another key, "
                "or ask for the same"
            )

    def add(self, wanted: Wanted) -> TxnFactory[int] | None:
        """`take`, and what is to be written then."""
        return self.flush() if self.take(wanted) else None

    def take(self, wanted: Wanted) -> bool:
        """Whether a chunk is full. Raises `LimitExceeded` past the width; what came before is kept."""
        if self._said + len(self._chunk) >= self._width:
            raise LimitExceeded(
                f"more than {self._width} parts, which is the most here: end with these, or allow more "
                f"(App(max_parts=…), up to {limits.JOB_WIDTH_PARTS}) and make the same call again; job {self._new.id} "
                "stays open until then, is cancelled, or ends at its deadline"
            )
        payload = wanted if isinstance(wanted, str) else wanted[1]
        _hash(self._hashed, [payload])
        self._chunk.append(wanted)
        self._size += len(payload)
        return len(self._chunk) >= limits.CHUNK_PARTS or self._size >= limits.CHUNK_BYTES

    def flush(self) -> TxnFactory[int] | None:
        first, chunk, self._chunk, self._size = self._said, self._chunk, [], 0
        self._said += len(chunk)
        if not chunk or self._sealed:
            return None
        return lambda: self._append(first, chunk)

    def _append(self, first: int, chunk: list[Wanted]) -> Txn[int]:
        bucket, job_id = self._new.bucket, self._new.id
        payloads = _payloads(chunk)
        try:
            if self._new.width is None:
                return (yield from submit.append(bucket, job_id, first, payloads, self._new.delay))
            items = [wanted for wanted in chunk if not isinstance(wanted, str)]
            planned = yield from submit.append_new(bucket, job_id, first, items, self._new.delay)
        except NotAllowedNow:
            raise Again(lambda: self._late(first, payloads)) from None  # nothing of the chunk may stay
        self._left_out[first] = len(chunk) - planned
        return planned

    def _late(self, first: int, payloads: list[str]) -> Txn[int]:
        """The job takes no more parts: it has ended early, or the same request made elsewhere has sealed it."""
        row = yield from read.job(self._new.bucket, self._new.id)
        yield from submit.compare(self._new.bucket, self._new.id, self._new.key, first, payloads)
        self._sealed = True
        self.ended = row is not None and row.request_hash is None
        return 0

    def seal(self) -> TxnFactory[bool]:
        content = content_hash(self._asked, self._hashed.hexdigest())
        planned = self._said - sum(self._left_out.values())
        return lambda: submit.seal(self._new.bucket, self._new.id, planned, content, self._keep)


def _rules(job: NewJob | JobRow) -> tuple[object, ...]:
    """What a continued stream must ask for again, beside its parts."""
    return job.task, job.queue, job.attempts, job.policy, job.successor, job.priority, job.width


def content_hash(new: NewJob, digest: str) -> str:
    """What makes two requests under one key the same: the parts and everything that decides how they run and join."""
    pieces: tuple[str, ...] = (
        new.task, new.queue, str(new.attempts), new.policy, new.successor or "", str(new.give_up_after),
        str(new.priority), digest,
    )  # fmt: skip
    if new.width is not None:
        pieces += (str(new.width),)
    if new.give_up_at is not None:
        pieces += (f"at {new.give_up_at}",)
    return identity.request_hash(*(piece.encode() for piece in pieces)).hexdigest()


def _hash(digest: hashlib._Hash, payloads: list[str]) -> None:
    """One payload after the other, whatever chunks they travel in: a stream is the same request as a whole."""
    pieces: list[bytes] = []
    for payload in payloads:
        data = payload.encode()
        pieces += (len(data).to_bytes(8, "big"), data)
    digest.update(b"".join(pieces))


def _payloads(chunk: list[Any]) -> list[str]:
    """Of a chunk that is not empty."""
    return chunk if isinstance(chunk[0], str) else [payload for _, payload in chunk]


def bounded(payloads: Iterable[W]) -> Iterator[list[W]]:
    """Chunks of at most so many parts and about so many bytes, the same for the same payloads."""
    chunk: list[W] = []
    size = 0
    for wanted in payloads:
        chunk.append(wanted)
        size += len(wanted if isinstance(wanted, str) else wanted[1])
        if len(chunk) >= limits.CHUNK_PARTS or size >= limits.CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
