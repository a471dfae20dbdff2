"""Where the bytes of outputs lie: a directory, or a bucket of S3, Google Cloud or Azure.

A root is an absolute directory or a URL such as ``s3://bucket/prefix``; a path is relative to it, with slashes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from fanin.domain.errors import BadOption, BrokenOutput, Unavailable

CHUNK_BYTES = 1 << 20
CLOUDS = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")


class Objects(Protocol):
    """One root."""

    def place(self, path: str) -> Path | None:
        """Where a writer may write the object itself; None where it has to be uploaded with `write`."""

    def write(self, path: str, source: Path) -> None:
        """Make the object durable: from the file, which is the object's own place where there is one."""

    def read(self, path: str) -> Iterator[bytes]:
        """Its bytes in chunks. Raises `BrokenOutput` if it is not there."""

    def remove(self, path: str) -> None:
        """Remove it if it is there. Raises `BrokenOutput` where that cannot be known."""


@lru_cache(maxsize=16)
def objects(root: str) -> Objects:
    """The objects below a root. Raises `BadOption` for one that fanin does not know."""
    scheme, colon, _ = root.partition("://")
    if not colon:
        return Directory(root)
    if scheme not in CLOUDS:
        raise BadOption(f"outputs in {root}: give a directory, s3://, gs:// or az://")
    return Cloud(root)


class Directory:
    """Files below a directory that all workers and readers share."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    def place(self, path: str) -> Path:
        found = self.root / path
        found.parent.mkdir(parents=True, exist_ok=True)
        return found

    def write(self, path: str, source: Path) -> None:
        """The file and every directory on the way to it are synced: the row that names it is durable, too."""
        with open(source, "rb") as file:
            os.fsync(file.fileno())
        below = self.root / path
        for folder in (*below.parents[: len(Path(path).parts)], self.root.parent):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def read(self, path: str) -> Iterator[bytes]:
        try:
            with open(self.root / path, "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise BrokenOutput(
                f"{self.root / path} is not there: was it removed by hand, or does this host not see the directory?"
            ) from None

    def remove(self, path: str) -> None:
        if not self.root.is_dir():
            raise BrokenOutput(f"{self.root} is not there: this host does not see the directory")
        found = self.root / path
        with contextlib.suppress(FileNotFoundError):
            found.unlink()
        with contextlib.suppress(OSError):  # not empty, or gone: others use the same folders
            for folder in found.parents[: len(Path(path).parts) - 1]:
                folder.rmdir()


class Cloud:
    """A bucket, through obstore, which takes its credentials from the environment as the clouds' own tools do."""

    def __init__(self, root: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as problem:
            raise BadOption(f"outputs in {root} need obstore ({problem}): pip install 'fanin[outputs]'") from problem
        self.root = root
        self._obstore: Any = obstore
        self._store: Any = from_url(root)

    def place(self, path: str) -> None:
        return None

    def write(self, path: str, source: Path) -> None:
        """In several requests when it is large."""
        with self._translated(path):
            self._obstore.put(self._store, path, source)

    def read(self, path: str) -> Iterator[bytes]:
        with self._translated(path):
            for chunk in self._obstore.get(self._store, path).stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    def remove(self, path: str) -> None:
        with self._translated(path), contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, path)

    @contextlib.contextmanager
    def _translated(self, path: str) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except (FileNotFoundError, exceptions.NotFoundError):
            raise BrokenOutput(f"{self.root}/{path} is not there: was it removed by hand?") from None
        except exceptions.BaseError as problem:
            raise Unavailable(f"{self.root}: {problem}") from problem
