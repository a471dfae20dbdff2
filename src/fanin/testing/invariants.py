"""Judge a database by its rows and by its history.

The rows are judged by the queries of ``fanin check``. What a table cannot show afterwards (that a part counted once
per run, that no attempt number ever fell, that no state changed against the tables of ``fanin.domain.states``) is
judged by a witness: triggers that write down every change of a job, part or event.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

from fanin.domain.states import EVENT_EDGES, JOB_EDGES, PART_EDGES, Edge
from fanin.protocol import check
from fanin.protocol.steps import Rows, Statement
from fanin.stores.base import Store
from fanin.testing.state import WITNESS, ask, dump, execute, select, statement

_COLUMNS = "what, job_id, idx, run, old, new, old_attempt, new_attempt, old_result, new_result"
_TABLE = {
    "pg": "CREATE TABLE IF NOT EXISTS fanin.witness (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text, "
    "job_id text, idx integer, run integer, old text, new text, old_attempt integer, new_attempt integer, "
    "old_result text, new_result text)",
    "lite": "CREATE TABLE IF NOT EXISTS fanin.witness (n integer PRIMARY KEY, what text, job_id text, idx integer, "
    "run integer, old text, new text, old_attempt integer, new_attempt integer, old_result text, new_result text)",
}
_PART = f"""INSERT INTO fanin.witness ({_COLUMNS}) SELECT 'part', NEW.job_id, NEW.idx, j.run, OLD.status, NEW.status,
    OLD.attempt, NEW.attempt, OLD.result, NEW.result
    FROM fanin.job AS j WHERE j.bucket = NEW.bucket AND j.id = NEW.job_id;"""
_JOB = f"""INSERT INTO fanin.witness ({_COLUMNS})
    VALUES ('job', NEW.id, NULL, NEW.run, OLD.status, NEW.status, OLD.run, NEW.run, NULL, NULL);"""
_EVENT = f"""INSERT INTO fanin.witness ({_COLUMNS})
    VALUES ('event', NEW.job_id, NEW.seq, NULL, OLD.status, NEW.status, OLD.tries, NEW.tries, OLD.payload,
    NEW.payload);"""
_CHANGED = {
    "outbox": "OLD.status <> NEW.status OR OLD.tries <> NEW.tries OR OLD.payload <> NEW.payload",
    "part": "OLD.status <> NEW.status OR OLD.attempt <> NEW.attempt "
    "OR coalesce(OLD.result, '') <> coalesce(NEW.result, '')",
    "job": "OLD.status <> NEW.status OR OLD.run <> NEW.run",
}


_BODIES = {"part": _PART, "job": _JOB, "outbox": _EVENT}
FUNCTIONS = tuple(
    f"CREATE OR REPLACE FUNCTION fanin.witness_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ "
    f"BEGIN {body} RETURN NULL; END $$"
    for table, body in _BODIES.items()
)
"""What PostgreSQL's triggers call. They know the name of the schema: one that has been renamed needs them anew."""


def install(store: Store) -> None:
    """Put the witness into a database of a test: one table, three triggers."""
    texts = [_TABLE[store.dialect]]
    if store.dialect == "pg":
        texts += FUNCTIONS
        texts += [
            f"CREATE TRIGGER witness AFTER UPDATE ON fanin.{table} FOR EACH ROW WHEN ({_CHANGED[table]}) "
            f"EXECUTE FUNCTION fanin.witness_{table}()"
            for table in _BODIES
        ]
    else:
        texts += [
            f"CREATE TRIGGER fanin.witness_{table} AFTER UPDATE ON fanin.{table} "
            f"WHEN {_CHANGED[table]} BEGIN {body} END"
            for table, body in _BODIES.items()
        ]
    execute(store, *texts)


FORGET = "DELETE FROM fanin.witness"
"""The statement that empties the witness, for a test that goes back to its beginning."""


def _edges(edges: tuple[Edge, ...]) -> str:
    return ", ".join(f"('{edge.source}', '{edge.target}')" for edge in edges)


HISTORY: dict[str, tuple[str, str]] = {
    "p1": (
        "In one run a part contributes once.",
        "SELECT job_id, idx, run, count(*) AS n FROM fanin.witness WHERE what = 'part' AND old <> new "
        "AND new IN ('succeeded', 'failed') GROUP BY job_id, idx, run HAVING count(*) > 1",
    ),
    "p2": (
        "A recorded result never changes.",
        "SELECT job_id, idx, old, new, old_result, new_result FROM fanin.witness "
        "WHERE what = 'part' AND old = 'succeeded'",
    ),
    "p5": (
        "A part changes its state only along the edges of its machine.",
        "SELECT job_id, idx, old, new FROM fanin.witness WHERE what = 'part' "
        f"AND (old, new) NOT IN (VALUES {_edges(PART_EDGES)})",
    ),
    "j1": (
        "A run ends once.",
        "SELECT job_id, run, count(*) AS n FROM fanin.witness WHERE what = 'job' AND new IN "
        "('completed', 'failed', 'cancelled') GROUP BY job_id, run HAVING count(*) > 1",
    ),
    "j9": (
        "A job changes its state only along the edges of its machine, and opens runs one by one.",
        "SELECT job_id, old, new, old_attempt AS old_run, new_attempt AS new_run FROM fanin.witness WHERE what = 'job' "
        f"AND ((old, new) NOT IN (VALUES {_edges(JOB_EDGES)}) "
        "OR new_attempt - old_attempt <> CASE WHEN new = 'running' AND old <> 'open' THEN 1 ELSE 0 END)",
    ),
    "e1": (
        "An event changes its state only along the edges of its machine, and its content never.",
        "SELECT job_id, idx AS seq, old, new, old_attempt, new_attempt FROM fanin.witness WHERE what = 'event' "
        f"AND ((old, new) NOT IN (VALUES {_edges(EVENT_EDGES)}) OR old_result <> new_result)",
    ),
    "f4": (
        "The attempt of a part grows by one with each claim and each skip, and never falls.",
        "SELECT job_id, idx, old, new, old_attempt, new_attempt FROM fanin.witness WHERE what = 'part' AND "
        "new_attempt - old_attempt NOT IN ("
        "CASE WHEN new = 'running' OR old = 'pending' AND new IN ('succeeded', 'failed') THEN 1 ELSE 0 END, "
        "CASE WHEN old IN ('pending', 'running') AND new IN ('running', 'succeeded', 'failed') THEN 1 ELSE 0 END)",
    ),
}
"""Name to (sentence, query over the witness)."""


def violations(store: Store, *, history: bool = False) -> list[str]:
    """What is wrong, one line per invariant: its name, its sentence, and a row that breaks it.

    All queries see one snapshot, so this may be asked while transactions are under way. ``history`` asks the witness
    too.
    """
    rows = ask(store, _everything(store.dialect, history))
    return [f"{row['name']}: {_sentence(row['name'])} {row['broken']}" for row in rows]


class Seen(NamedTuple):
    """A state of a database."""

    rows: dict[str, Rows]
    """Those of the protocol's tables."""
    broken: list[str]
    """Its `violations`, with its history."""


class Judge:
    """Looks at a database whose states come again and again; the same rows are judged once.

    No rule asks for a column that `dump` leaves out, and the clock matters only to moments two years ahead of it.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, list[str]] = {}

    def look(self, store: Store) -> Seen:
        """Needs the witness."""
        rows = dump(store, witness=True)
        seen = hashlib.sha256(repr(rows).encode()).digest()
        if seen not in self._known:
            self._known[seen] = violations(store, history=True)
        del rows[WITNESS]
        return Seen(rows, self._known[seen])


def check_all(store: Store, *, history: bool = False) -> None:
    """`violations` as an assertion for a test. Raises AssertionError with a line for every rule that is broken."""
    broken = violations(store, history=history)
    assert not broken, "these rules do not hold:\n" + "\n".join(broken)


def history_violations(store: Store) -> list[str]:
    """What the witness alone knows against the database."""
    return [f"{name}: {sentence} {row}" for name, (sentence, text) in HISTORY.items() for row in select(store, text)]


def _sentence(name: str) -> str:
    return check.CHECKS[name] if name in check.CHECKS else HISTORY[name][0]


@cache
def _everything(dialect: str, history: bool) -> Statement:
    texts = {name: check.statement(name).query.texts[dialect] for name in check.CHECKS}
    if history:
        texts |= {name: text for name, (_, text) in HISTORY.items()}
    arms = [_arm(name, _bare(text), dialect) for name, text in texts.items()]
    return statement("\nUNION ALL\n".join(arms))


def _arm(name: str, text: str, dialect: str) -> str:
    if dialect == "pg":
        return f"SELECT '{name}' AS name, row_to_json(q)::text AS broken FROM (\n{text}\n) AS q"
    return f"SELECT '{name}' AS name, 'rows: ' || count(*) AS broken FROM (\n{text}\n) AS q HAVING count(*) > 0"


def _bare(text: str) -> str:
    lines = (line.partition("--")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line).strip().rstrip(";")
