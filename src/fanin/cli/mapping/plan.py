"""What one command line asks for: the template, the inputs, the key that makes the same line the same job."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from typing import Any

import msgspec

from fanin.cli.mapping.inputs import stems
from fanin.cli.mapping.quoting import Hole
from fanin.cli.mapping.template import Template, part_value

GENERATIONS = 10_000
"""How often --again may start the same command line anew."""


class Plan(msgspec.Struct, frozen=True):
    """``tolerate`` and ``give_up_after`` as the user wrote them. ``key`` is None unless the user named one."""

    template: Template
    then: Template | None
    items: list[str]
    outdir: str
    null: bool
    key: str | None
    tolerate: str | None
    fail_fast: bool
    give_up_after: str | None

    def meaning(self) -> list[Any]:
        """Everything that makes it another job when it changes."""
        return [
            self.template.source, self.template.shell, self.then.source if self.then else None, self.outdir,
            self.tolerate, self.fail_fast, self.give_up_after,
        ]  # fmt: skip

    def fingerprint(self) -> str:
        """A digest of the meaning and of all inputs; tells whether a key is used for something else."""
        digest = hashlib.sha256(msgspec.json.encode([clean(x) for x in self.meaning()]))
        for item in self.items:
            data = os.fsencode(item)
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.hexdigest()

    def base_key(self) -> str:
        """The key of this command line: the user's, or one that follows from the line and the current folder."""
        if self.key is not None:
            return self.key
        here = os.fsencode(os.getcwd())
        return "map/" + hashlib.sha256(here + b"\0" + self.fingerprint().encode()).hexdigest()[:32]

    def meta(self) -> dict[str, Any]:
        """What is stored with the job, for people and for the check of a reused key."""
        return {
            "command": clean(self.template.source), "then": clean(self.then.source) if self.then else None,
            "cwd": clean(os.getcwd()), "outdir": clean(self.outdir), "fingerprint": self.fingerprint(),
        }  # fmt: skip

    def stems(self) -> list[str]:
        return stems(self.items) if self.template.out_suffixes() else []

    def command(self, item: str, number: int, out: Callable[[str], str]) -> str | list[str]:
        """The command of one part."""

        def value(hole: Hole) -> str:
            return part_value(hole, item, number, out)

        return self.template.render(value)


def latest_key(base: str, exists: Callable[[str], bool], ended: Callable[[str], bool], again: bool) -> str:
    """The key to use: of the newest job that was started under ``base``, or, ``again``, of the one after it if that
    has ended. So the same line with --again resumes too, until it has ended."""
    key, number = base, 1
    while number < GENERATIONS and exists(following := f"{base}#{number + 1}"):
        key, number = following, number + 1
    if again and exists(key) and ended(key):
        return f"{base}#{number + 1}"
    return key


def clean(value: Any) -> Any:
    """A text that JSON can carry: bytes that are not UTF-8 are written out."""
    return os.fsencode(value).decode("utf-8", "backslashreplace") if isinstance(value, str) else value
