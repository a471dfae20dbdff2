"""The guards of the protocol's SQL, and each statement without one of them.

A guard is a condition of a write, or of the statement that locks its rows, about more than the key: a state, a token,
a clock, a counter; or the lock itself.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fanin.protocol import steps

VARIABLE = "FANIN_MUTANT"
UNTRIED: tuple[str, ...] = ()
"""Rooms whose guards have not been taken out yet. The report names them."""
DATABASES = {"pg": "PostgreSQL", "lite": "SQLite"}

_WRITES = re.compile(r"\b(UPDATE|INSERT|DELETE|FOR KEY SHARE)\b")
_KEY = re.compile(
    r"(\w\.)?(bucket|job_id|id|idx|stripe|ctid|queue|task|value|event_key|name|key|flow_id|n|waiter_id|waiter_idx"
    r"|priority) "
    r"(=|IN|>=|<=|<) "
    r"|\(:everything OR|true$"
    r"|\((\w\.\w+, )+\w\.\w+\) IN "
    r"|s\.remaining > 0$|[oe]\.due_at >= 0$|j\.stale_at IS NOT NULL$|f\.status = 'running'$"
    # these name an index: of unswept stripes, of events on their way, of jobs with an age, of flows with a deadline
)
_GUARD = re.compile(
    r"\b(status|attempt|claim_id|closed|sealed|judged|ready|due_at|open_stripes|give_up_at|finished_at|outcome|seq"
    r"|needs|undo_job_id|by_hand|run|remaining|mode|calls|relayed|doubtful|mark|paused_at|walk_from|asked_at|timing|error|what|step|waiting|nested_id"
    r"|progress_at|progress_told|stale_at|slot|batch|seen_\w+|job_id IS NULL|kept)"
    r"\b|\bat <=? "
)
_CLAUSE_END = re.compile(
    r"(WHERE|JOIN|LEFT|CROSS|SET|RETURNING|ORDER BY|GROUP BY|HAVING|LIMIT|FOR (?:NO )?KEY|ON CONFLICT)\b|;"
)
_LOCK = re.compile(r"FOR (?:NO KEY UPDATE|KEY SHARE)(?: OF \w)?(?: SKIP LOCKED| NOWAIT)?")
_PATIENCE = ("SKIP LOCKED", "NOWAIT")


class Mutant(NamedTuple):
    room: str
    statement: str
    guard: str
    dialect: str

    @property
    def name(self) -> str:
        return f"{self.room}.{self.statement}: {self.guard} ({DATABASES[self.dialect]})"

    @property
    def is_lock(self) -> bool:
        return self.guard in _PATIENCE or _LOCK.match(self.guard) is not None

    def encode(self) -> str:
        return "\x1f".join(self)


def rooms() -> list[str]:
    return sorted({path.stem for path in Path(steps.__file__).parent.glob("*.sql")} - set(UNTRIED))


def mutants() -> Iterator[Mutant]:
    for room in rooms():
        for query in steps.Room(room):
            if any(_WRITES.search(_bare(text)) for text in query.texts.values()):
                for dialect, text in query.texts.items():
                    for guard in dict.fromkeys(guard for _, _, guard in guards(text)):
                        yield Mutant(room, query.name, guard, dialect)


def guards(text: str) -> Iterator[tuple[int, int, str]]:
    """(start, end, words) of each guard of a statement. Raises LookupError for a condition of an unknown kind."""
    bare = _bare(text)
    for match in re.finditer(r"\b(WHERE|ON)\s+(?!CONFLICT)", bare):
        for start, end in _conjuncts(bare, match.end()):
            words = " ".join(re.sub(r" INDEXED BY \S+", "", bare[start:end]).split()).replace("( ", "(")
            if _KEY.match(words):
                continue
            if not _GUARD.search(words):
                raise LookupError(f"{words!r} is neither of a key (_KEY) nor a guard (_GUARD); say in {__file__} which")
            yield start, end, words
    for match in _LOCK.finditer(bare):
        yield *match.span(), match[0]
        for patience in _PATIENCE:
            if match[0].endswith(patience):
                yield match.end() - len(patience), match.end(), patience


def _bare(text: str) -> str:
    """The text with blanks for comments."""
    return re.sub(r"--.*$", lambda comment: " " * len(comment[0]), text, flags=re.MULTILINE)


def _conjuncts(text: str, start: int) -> Iterator[tuple[int, int]]:
    """The conditions joined by AND at the depth of ``start``, up to the end of their clause."""
    depth, position = 0, start
    while position < len(text):
        char, word = text[position], not text[position - 1].isalnum()
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth < 0:
                break
        elif depth == 0 and word and _CLAUSE_END.match(text, position):
            break
        elif depth == 0 and word and re.match(r"AND\b", text[position:]):
            yield start, position
            start = position = position + 3
            continue
        position += 1
    yield start, position


def mutated(text: str, guard: str) -> str:
    """The text without the guard, and free to use any index. Raises LookupError if the guard does not stand there."""
    spans = [(start, end) for start, end, words in guards(text) if words == guard]
    if not spans:
        raise LookupError(f"there is no {guard!r} in: {text}")
    for start, end in reversed(spans):
        put = "" if guard in _PATIENCE or _LOCK.match(guard) else " true "
        text = text[:start] + put + text[end:]
    return re.sub(r" INDEXED BY \S+", "", text)


def apply_from_environment() -> str | None:
    """For the test run of a mutant: change the loaded protocol. The name of the mutant, if there is one."""
    encoded = os.environ.get(VARIABLE)
    if not encoded:
        return None
    mutant = Mutant(*encoded.split("\x1f"))
    query = getattr(importlib.import_module(f"fanin.protocol.{mutant.room}").SQL, mutant.statement)
    query.texts = {**query.texts, mutant.dialect: mutated(query.texts[mutant.dialect], mutant.guard)}
    return mutant.name
