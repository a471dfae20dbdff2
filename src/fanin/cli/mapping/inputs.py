"""The inputs of a map: after ``:::``, from files, or from standard input; and the names of their outputs."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import BinaryIO

import msgspec

from fanin.domain import limits
from fanin.domain.errors import BadOption, LimitExceeded

STEM_BYTES = 180
"""The longest stem of an output's name; a file name has at most 255 bytes on common file systems."""


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input as it is stored. ``raw`` holds the bytes when they are not UTF-8, as names of files may be."""

    text: str
    raw: bytes | None = None

    @classmethod
    def of(cls, text: str) -> Item:
        try:
            text.encode()
        except UnicodeEncodeError:
            return cls(os.fsencode(text).decode("utf-8", "backslashreplace"), os.fsencode(text))
        return cls(text)

    @property
    def value(self) -> str:
        """The input as Python hands it to programs."""
        return self.text if self.raw is None else os.fsdecode(self.raw)


def gather(after_colons: Sequence[str] | None, files: Sequence[str], null: bool) -> list[str]:
    """All inputs in order: those of ``files`` (``-`` is standard input), then those after ``:::``.

    Standard input is read when neither is given. Raises `BadOption` if there is nowhere to take inputs from.
    """
    found: list[str] = []
    for file in files:
        if file == "-":
            found += split(sys.stdin.buffer, null, "standard input")
            continue
        try:
            with open(file, "rb") as stream:
                found += split(stream, null, file)
        except OSError as problem:
            raise BadOption(f"-a {file}: {problem.strerror or problem}") from None
    if after_colons is not None:
        found += after_colons
    elif not files:
        if sys.stdin is None or sys.stdin.isatty():
            raise BadOption("no inputs: give them after :::, with -a FILE, or through a pipe")
        found += split(sys.stdin.buffer, null, "standard input")
    if len(found) > limits.JOB_WIDTH_PARTS:
        raise LimitExceeded(
            f"{len(found)} inputs are more than one job may have ({limits.JOB_WIDTH_PARTS}): split them"
        )
    return found


def split(stream: BinaryIO, null: bool, name: str) -> list[str]:
    """Lines, or pieces ended by NUL. Empty ones are left out."""
    data = stream.read()
    if null:
        return [os.fsdecode(piece) for piece in data.split(b"\0") if piece]
    lines = data.split(b"\n")
    if b"\0" in data:
        number = next(n for n, line in enumerate(lines, 1) if b"\0" in line)
        raise BadOption(f"{name}, line {number}: holds a NUL character; add -0 if the inputs are separated by NUL")
    return [os.fsdecode(line) for line in lines if line]


def stems(items: Iterable[str]) -> list[str]:
    """The stem of each input's outputs: its base name without extension, made unique by its number where two collide.

    Follows from the list alone, so every host and every later run gives the same names. Two names that differ only
    in case collide too: some file systems cannot keep them apart.
    """
    plain = [_stem(item, number) for number, item in enumerate(items, 1)]
    often = Counter(stem.casefold() for stem in plain)
    taken = {stem for stem, count in often.items() if count == 1}
    unique = []
    for number, stem in enumerate(plain, 1):
        if often[stem.casefold()] > 1:
            stem = f"{stem}-{number}"
            while stem.casefold() in taken:
                stem = f"{stem}-{number}"
            taken.add(stem.casefold())
        unique.append(stem)
    return unique


def _stem(item: str, number: int) -> str:
    stem = os.path.splitext(os.path.basename(item.rstrip("/")))[0]
    data = os.fsencode(stem)
    if len(data) > STEM_BYTES:
        stem = data[:STEM_BYTES].decode("utf-8", "ignore") + f"-{number}"
    return stem if stem.strip(".") else f"item-{number}"
