"""Where the placeholders of a shell command stand, so that what replaces them is always one word and never code.

A value in plain text is put in quotes; inside double or single quotes it is escaped for these quotes. So ``"{}"``,
``'{}'`` and ``{}`` all give the same word, whatever the file's name. Where no escaping is safe (backquotes, here
documents, $'...') the template is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from fanin.domain.errors import BadOption


class Hole(NamedTuple):
    """A placeholder. ``quoting`` is plain, double, single, or word (no shell). ``suffix`` belongs to {out} alone."""

    name: str
    quoting: str
    suffix: str = ""


Piece = str | Hole

_OUT_SUFFIX = re.compile(r"[A-Za-z0-9._+-]*")
_IN_DOUBLE = re.compile(r'([\\"$`])')


def quote(value: str, quoting: str) -> str:
    """``value`` as it must stand at a hole."""
    if quoting == "plain":
        return shlex.quote(value)
    if quoting == "double":
        return _IN_DOUBLE.sub(r"\\\1", value)
    if quoting == "single":
        return value.replace("'", "'\\''")
    return value


def word_pieces(word: str, names: re.Pattern[str]) -> list[Piece]:
    """One word of a command that is run without a shell."""
    pieces: list[Piece] = []
    at = 0
    while match := names.search(word, at):
        pieces.append(word[at : match.start()])
        hole, at = _hole(word, match, "word")
        pieces.append(hole)
    pieces.append(word[at:])
    return [piece for piece in pieces if piece != ""]


def shell_pieces(text: str, names: re.Pattern[str]) -> list[Piece]:
    """A command for ``sh -c``. Raises `BadOption` where a placeholder cannot be made safe."""
    pieces: list[Piece] = []
    literal: list[str] = []
    for piece in _scan(text, names):
        if isinstance(piece, Hole):
            if literal:
                pieces.append("".join(literal))
                literal.clear()
            pieces.append(piece)
        else:
            literal.append(piece)
    if literal:
        pieces.append("".join(literal))
    return pieces


def _scan(text: str, names: re.Pattern[str]) -> Iterator[Piece]:
    frames = ["plain"]  # plain, paren, double, single, ansi, tick; the innermost last
    here_document = parens = False
    at = 0
    while at < len(text):
        frame, char = frames[-1], text[at]
        if char == "{" and (match := names.match(text, at)):
            _refuse_unsafe(match[0], frames, here_document, parens, text)
            hole, at = _hole(text, match, "plain" if frame in ("plain", "paren") else frame)
            yield hole
            continue
        step = 1
        if frame in ("single", "ansi"):
            if char == "'":
                frames.pop()
            elif char == "\\" and frame == "ansi":
                step = 2
        elif char == "\\":
            step = 2
        elif char == "`":
            if "tick" in frames:
                del frames[frames.index("tick") :]
            else:
                frames.append("tick")
        elif text.startswith("$(", at):
            frames.append("paren")
            parens, step = True, 2
        elif char == '"':
            if frame == "double":
                frames.pop()
            else:
                frames.append("double")
        elif frame != "double":
            if char == "'":
                frames.append("ansi" if text[at - 1 : at] == "$" else "single")
            elif char == "(":
                frames.append("paren")
                parens = True
            elif char == ")" and frame == "paren":
                frames.pop()
            elif char == "#" and (at == 0 or text[at - 1] in " \t\n;&|()"):
                end = text.find("\n", at)
                step = (len(text) if end < 0 else end) - at
            elif text.startswith("<<", at) and text[at + 2 : at + 3] != "<":
                here_document = True
                step = 2
        yield text[at : at + step]
        at += step


def _refuse_unsafe(placeholder: str, frames: list[str], here_document: bool, parens: bool, text: str) -> None:
    if "tick" in frames:
        raise BadOption(f"{placeholder} stands inside `backquotes`, where no quoting is safe: write $(...) instead")
    if "ansi" in frames:
        raise BadOption(f"{placeholder} stands inside $'...', where no quoting is safe: use other quotes, or none")
    if here_document:
        raise BadOption(
            f"{placeholder} stands after a here document (<<): put the text in a file or a script of its own"
        )
    if parens and re.search(r"\bcase\b", text):
        raise BadOption(
            f"{placeholder} stands after (...) in a command with `case`, which cannot be read safely: use a script"
        )


def _hole(text: str, match: re.Match[str], quoting: str) -> tuple[Hole, int]:
    name, end, suffix = match[0][1:-1], match.end(), ""
    if name == "out":
        found = _OUT_SUFFIX.match(text, end)
        assert found is not None
        suffix, end = found[0], found.end()
    return Hole(name, quoting, suffix), end
