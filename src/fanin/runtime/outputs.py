"""Files that a part leaves, and results too large for its row: staged before they are written, read when they count."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from fanin.domain import limits
from fanin.domain.errors import BadOption, BrokenOutput, Refused, shown
from fanin.domain.model import Claim
from fanin.protocol import outputs
from fanin.protocol.outputs import Placed
from fanin.runtime.objects import CHUNK_BYTES, objects
from fanin.stores.base import Store

VARIABLE = "FANIN_OUTPUTS"
RESULT = ".result"
LARGE = ">"
"""Stands before the digest in the row of a large result. No JSON text begins with it."""


class Output:
    """One file of a succeeded part."""

    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self._idx = placed.idx

    @property
    def idx(self) -> int:
        """The part's place in the job, from 0."""
        return self._idx

    @property
    def name(self) -> str:
        return self._placed.name

    @property
    def size(self) -> int:
        """Bytes."""
        return self._placed.size

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes, in hexadecimal."""
        return self._placed.digest

    @property
    def url(self) -> str:
        """Where it lies: a path, or the URL of the object."""
        return f"{self._placed.root}/{self._placed.path}"

    def chunks(self) -> Iterator[bytes]:
        """The bytes, a piece at a time. Raises `BrokenOutput` at the end if they are not those that were written."""
        seen = hashlib.sha256()
        for chunk in objects(self._placed.root).read(self._placed.path):
            seen.update(chunk)
            yield chunk
        if seen.hexdigest() != self.digest:
            raise BrokenOutput(f"{self.url} is not what part {self.idx} wrote: SHA-256 {seen.hexdigest()}")

    def read(self) -> bytes:
        """All bytes. Raises `BrokenOutput`."""
        return b"".join(self.chunks())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, which appears as a whole. Raises `BrokenOutput`."""
        target = Path(path)
        half = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with open(half, "xb") as file:
                file.writelines(self.chunks())
            os.replace(half, target)
        finally:
            half.unlink(missing_ok=True)
        return target

    def __repr__(self) -> str:
        return f"<Output {self.name} of part {self.idx}: {self.size} bytes>"


def root_of(store: Store) -> str:
    """Where new outputs go: ``FANIN_OUTPUTS``, else beside the SQLite file. Raises `BadOption` where neither says."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        return chosen.rstrip("/") if "://" in chosen and not chosen.startswith("file://") else _directory(chosen)
    if store.file is not None:
        return f"{store.file}.outputs"
    raise BadOption(
        f"outputs, and results over {limits.RESULT_BYTES} bytes, need a place that all hosts share: set {VARIABLE} "
        "to a directory, or to s3://, gs:// or az://"
    )


def _directory(text: str) -> str:
    return os.path.abspath(text.removeprefix("file://"))


@contextmanager
def staging(store: Store, held: Claim, name: str, lost: Callable[[], NoReturn]) -> Iterator[Path]:
    """Gives the path to write to, and makes what was written an output of the attempt.

    lost: called where the claim does not hold its part, before the writing or after it; raises. Raises `Refused` if
    nothing was written.
    """
    root = root_of(store)
    there = objects(root)
    placed = Placed(held.job_id, held.idx, held.attempt, held.claim_id, name, root)
    if not store.run(lambda: outputs.stage(held, name, root)):
        lost()
    with tempfile.TemporaryDirectory(prefix="fanin-") as folder:
        path = there.place(placed.path) or Path(folder) / name
        yield path
        if not path.is_file():
            raise Refused(f"output {name!r}: nothing was written to {path}")
        there.write(placed.path, path)
        size, digest = _measure(path)
    if not store.run(lambda: outputs.mark_ready(held, name, size, digest)):
        lost()


def check_output_name(name: object) -> str:
    """Raises `BadOption` for a name that cannot be the last step of a path everywhere."""
    if not isinstance(name, str) or not name or len(name) > limits.NAME_CHARS:
        raise BadOption(f"output name {shown(name)}: give 1 to {limits.NAME_CHARS} characters")
    if name.startswith(".") or "/" in name or "\\" in name or not name.isprintable():
        raise BadOption(f"output name {shown(name)}: printable, without / and \\, and not beginning with a dot")
    return name


def renumbered(output: Output, idx: int) -> Output:
    """The same file as that of part ``idx``."""
    output._idx = idx
    return output


def output_pages(store: Store, job_id: str, name: str | None = None) -> Iterator[Output]:
    """The outputs that count, by part and name, a page at a time. name: only those called so."""
    bucket, after = store.bucket(job_id), (-1, "")
    while page := store.read(lambda: outputs.counting(bucket, job_id, after)):
        yield from (Output(one) for one in page if not one.name.startswith(".") and name in (None, one.name))
        after = (page[-1].idx, page[-1].name)


def large_result(store: Store, job_id: str, idx: int) -> str:
    """The result of a part as JSON, from outside. Raises `BrokenOutput`."""
    placed = store.read(lambda: outputs.one_counting(store.bucket(job_id), job_id, idx, RESULT))
    if placed is None:
        raise BrokenOutput(f"the result of part {idx} of job {job_id} is noted, and its output is not")
    return Output(placed).read().decode()


def _measure(path: Path) -> tuple[int, str]:
    size, seen = 0, hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            size += len(chunk)
            seen.update(chunk)
    return size, seen.hexdigest()


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


Source = bytes | bytearray | memoryview | str | os.PathLike[str] | Any
"""What ``part.put`` takes: bytes, text (as UTF-8), a path, or a file open for reading in binary."""


def write_source(path: Path, source: Source) -> None:
    """Write the source to the path. Raises `BadOption` for another kind."""
    with open(path, "wb") as file:
        if isinstance(source, str):
            file.write(source.encode())
        elif isinstance(source, bytes | bytearray | memoryview):
            file.write(source)
        elif isinstance(source, os.PathLike):
            with open(source, "rb") as original:
                _copy(original, file)
        elif hasattr(source, "read"):
            _copy(source, file)
        else:
            raise BadOption(f"an output cannot be made of {type(source).__name__}: give bytes, text, a path or a file")


def _copy(source: Any, target: Any) -> None:
    while chunk := source.read(CHUNK_BYTES):
        target.write(chunk)
