"""Where a part's files are until its commit is accepted, and how they get their final names.

    OUTDIR/.fanin/JOB/NUMBER/ATTEMPT-TOKEN/out/album.jpg     written by the command as {out}.jpg
    OUTDIR/album.jpg                                         after the commit of this very attempt was accepted

The recorded result names the attempt's folder, so whoever reads it can finish an interrupted promotion, and nobody can
promote the files of an attempt that lost. Both folders are on one file system, so a rename is all that happens.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator

import msgspec

INLINE_BYTES = 64_000
"""So much of a part's standard output, and of its standard error, is stored in the database."""


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a command wrote to one stream: all of it, or its end and the file (below the job's scratch) that has all."""

    text: str = ""
    encoding: str = "utf-8"
    size: int = 0
    file: str | None = None

    @property
    def data(self) -> bytes:
        return self.text.encode(self.encoding)


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a part: the attempt's folder, its output names, what it printed, and how long it took."""

    place: str
    seconds: float
    outs: list[str] = []
    stdout: Kept = Kept()
    stderr: Kept = Kept()
    raw_outs: list[bytes] | None = None
    """The output names again, as bytes, when one of them is not UTF-8."""

    @property
    def names(self) -> list[str]:
        """The names of the outputs as Python hands them to the system."""
        return self.outs if self.raw_outs is None else [os.fsdecode(name) for name in self.raw_outs]


class Place:
    """The folder of one attempt."""

    def __init__(self, root: str, name: str) -> None:
        self.name = name
        self.path = os.path.join(root, name)

    def make(self) -> None:
        os.makedirs(os.path.join(self.path, "out"))

    def out(self, name: str) -> str:
        return os.path.join(self.path, "out", name)

    def stream(self, name: str) -> str:
        return os.path.join(self.path, name)

    def keep(self, name: str) -> Kept:
        """What the command wrote to ``name`` (stdout or stderr)."""
        path = self.stream(name)
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            file.seek(max(0, size - INLINE_BYTES))
            data = file.read(INLINE_BYTES)
        where = None if size <= INLINE_BYTES else f"{self.name}/{name}"
        try:
            return Kept(data.decode(), "utf-8", size, where)
        except UnicodeDecodeError:
            return Kept(data.decode("latin-1"), "latin-1", size, where)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.path))


class Scratch:
    """The scratch folder of one job, inside the folder of its outputs."""

    def __init__(self, outdir: str, job_id: str) -> None:
        self.outdir = outdir
        self.root = os.path.abspath(os.path.join(outdir, ".fanin", job_id))

    def place(self, number: int, attempt: int) -> Place:
        """A new folder's name for an attempt; the token keeps apart two that the database gave one number."""
        return Place(self.root, f"{number}/{attempt}-{secrets.token_hex(4)}")

    def final(self, name: str) -> str:
        """The final path of an output."""
        return final_path(self.outdir, name)

    def promote(self, done: Done) -> str | None:
        """Give the outputs of an accepted attempt their final names. Saying it again changes nothing.

        Returns what stood in the way, for people; the files stay in their place until the next call.
        """
        place = Place(self.root, done.place)
        for name in done.names:
            try:
                os.replace(place.out(name), os.path.join(self.outdir, name))
            except FileNotFoundError:
                continue  # somebody has done it already
            except OSError as problem:
                final, source = self.final(name), place.out(name)
                return f"cannot name {final}: {problem.strerror}. It is kept in {source}; the same command tries again"
        if done.stdout.file is None and done.stderr.file is None:
            place.remove()
        return None

    def discard(self, done: Done) -> None:
        """Remove the files of an attempt that lost, or whose files nobody needs."""
        Place(self.root, done.place).remove()

    def missing(self, done: Done) -> list[str]:
        """The final paths of outputs that are not here: written on another host, or removed since."""
        return [path for name in done.names if not os.path.lexists(path := self.final(name))]

    def read(self, kept: Kept) -> tuple[bytes, bool]:
        """All that was written to a stream, and whether it is all: a large file may be on another host."""
        if kept.file is None:
            return kept.data, True
        try:
            with open(os.path.join(self.root, kept.file), "rb") as file:
                return file.read(), True
        except OSError:
            return kept.data, False

    def leftovers(self) -> Iterator[tuple[int, int, Place]]:
        """(number, attempt, place) of every folder that an attempt has left."""
        for number in _names(self.root):
            if number.isdigit():
                for name in _names(os.path.join(self.root, number)):
                    attempt = name.partition("-")[0]
                    if attempt.isdigit():
                        yield int(number), int(attempt), Place(self.root, f"{number}/{name}")

    def remove_if_empty(self) -> None:
        """Remove the folders that nothing is left in."""
        with contextlib.suppress(OSError):
            os.rmdir(self.root)
            os.rmdir(os.path.dirname(self.root))


def _names(folder: str) -> list[str]:
    """What is in a folder; nothing if it is gone, as others tidy up too."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def final_path(outdir: str, name: str) -> str:
    """The path of an output as the user may write it: never mistaken for an option."""
    path = os.path.join(outdir, name) if outdir != "." else name
    return f"./{path}" if path.startswith("-") else path


def settle_on_disk(path: str) -> None:
    """Wait until a file that a command wrote is on the disk: its commit must not outlive it in a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
