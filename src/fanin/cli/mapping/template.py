"""The command of a map and its ``--then`` command, with their placeholders."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

import msgspec

from fanin.cli.mapping.quoting import Hole, Piece, quote, shell_pieces, word_pieces
from fanin.domain.errors import BadOption

PART_HOLES = re.compile(r"\{(?:\.|/|//|/\.|#|out)?\}")
THEN_HOLES = re.compile(r"\{(?:outs|outs-file|failures)\}")


class Template(msgspec.Struct, frozen=True):
    """A parsed command: pieces of one shell text, or of each word when no shell is used."""

    shell: bool
    words: list[list[Piece]]
    source: str
    """The command as a person would say it, for messages."""

    def holes(self) -> list[Hole]:
        return [piece for word in self.words for piece in word if isinstance(piece, Hole)]

    def out_suffixes(self) -> list[str]:
        """The different things that stand right after {out}, in order: one output file of a part each."""
        return list(dict.fromkeys(hole.suffix for hole in self.holes() if hole.name == "out"))

    def render(self, value: Callable[[Hole], str | list[str]]) -> str | list[str]:
        """The text for ``sh -c``, or the words. A list of values becomes several words of the shell text."""
        rendered = []
        for word in self.words:
            text = []
            for piece in word:
                if isinstance(piece, Hole):
                    found = value(piece)
                    values = [found] if isinstance(found, str) else found
                    text.append(" ".join(quote(one, piece.quoting) for one in values))
                else:
                    text.append(piece)
            rendered.append("".join(text))
        return rendered[0] if self.shell else rendered


def part_template(command: Sequence[str], shell: bool) -> Template:
    """The command after ``--``: one string is for the shell, several words are run as they are unless ``shell``."""
    if not command or not "".join(command).strip():
        raise BadOption("no command: put it after --, as in: fanin map -- 'gzip -k {}' ::: *.txt")
    if "\0" in "".join(command):
        raise BadOption("the command holds a NUL character, which no program can receive")
    use_shell = shell or len(command) == 1
    words = _pieces(list(command), use_shell, PART_HOLES)
    source = " ".join(command)
    if match := THEN_HOLES.search(source):
        raise BadOption(f"{match[0]} belongs in the --then command; in the command of the parts write {{out}}")
    if not any(isinstance(p, Hole) and p.name != "out" for word in words for p in word):
        if use_shell:
            words[0] += [" ", Hole("", "plain")]
        else:
            words.append([Hole("", "word")])
    return Template(use_shell, words, source)


def then_template(command: str, has_out: bool) -> Template:
    """The ``--then`` command, always for the shell. ``has_out``: whether the parts' command writes any {out}."""
    if not command.strip():
        raise BadOption("--then is empty: leave it away, or give a command")
    words = _pieces([command], True, THEN_HOLES)
    for hole in Template(True, words, command).holes():
        if hole.name == "outs" and hole.quoting != "plain":
            raise BadOption("--then: write {outs} without quotes around it: it becomes several words, each quoted")
        if hole.name != "failures" and not has_out:
            raise BadOption(
                f"--then uses {{{hole.name}}}, but the command writes no {{out}}: write its output to {{out}}"
            )
    return Template(True, words, command)


def part_value(hole: Hole, item: str, number: int, out: Callable[[str], str]) -> str:
    """What a placeholder stands for. ``number`` counts from 1; ``out`` gives the path of an output by its suffix."""
    if hole.name == "out":
        return out(hole.suffix)
    if hole.name == "#":
        return str(number)
    if hole.name == "":
        return item
    if hole.name == ".":
        return os.path.splitext(item)[0]
    if hole.name == "//":
        return os.path.dirname(item) or "."
    base = os.path.basename(item)
    return base if hole.name == "/" else os.path.splitext(base)[0]


def _pieces(command: list[str], shell: bool, names: re.Pattern[str]) -> list[list[Piece]]:
    if shell:
        return [shell_pieces(" ".join(command), names)]
    return [word_pieces(word, names) for word in command]
