"""The report of the mutants is what the tool would write of the guards that stand in the SQL today.

A guard that is new, or worded anew, is missing in the report until ``python tools/mutants.py run --new --write
docs/mutation.md`` has shown that a test notices when it is gone.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from fanin.protocol import steps
from fanin.protocol.steps import Query
from fanin.stores.base import Store
from tools import guards, mutants
from tools.mutants_equivalent import EQUIVALENT

SEED, SAMPLE = 7, 2
REPORT = mutants.REPORT.read_text("utf-8")
NOTICED = {
    mutant: noticed
    for mutant in guards.mutants()
    if (noticed := mutants.reported(REPORT).get(mutants.where(mutant))) is not None
}
AGAIN = "say: python tools/mutants.py run --new --write docs/mutation.md"


def test_every_guard_is_in_the_report_and_no_mutant_goes_unnoticed() -> None:
    tried = [mutant for mutant in guards.mutants() if mutant.name not in EQUIVALENT]
    assert [mutant.name for mutant in tried if mutant not in NOTICED] == [], f"not tried; {AGAIN}"
    assert [mutant.name for mutant, noticed in NOTICED.items() if not noticed.suites] == [], "a guard without a test"
    assert [noticed.test for noticed in NOTICED.values() if not noticed.stands] == [], f"no such tests now; {AGAIN}"


def test_the_report_is_as_the_tool_writes_it() -> None:
    assert mutants.report(NOTICED) == REPORT, AGAIN


def test_what_is_called_equivalent_is_a_mutant_of_today() -> None:
    assert set(EQUIVALENT) <= {mutant.name for mutant in guards.mutants()}


def without(mutant: guards.Mutant) -> Query:
    (query,) = (query for query in steps.Room(mutant.room) if query.name == mutant.statement)
    text = guards.mutated(query.texts[mutant.dialect], mutant.guard)
    return Query(mutant.room, mutant.statement, query.columns, {mutant.dialect: text})


def test_every_mutant_is_a_statement_that_the_database_takes(store: Store) -> None:
    """A mutant that is no SQL would be noticed by every test, and show nothing."""
    refused = []
    for mutant in guards.mutants():
        if mutant.dialect == store.dialect and (said := complaint(store, without(mutant))):
            refused.append(f"{mutant.name}: {said}")
    assert refused == []


def complaint(store: Store, query: Query) -> str | None:
    """What the database says to the statement when it plans it."""
    made = store.connect()  # type: ignore[attr-defined]
    names = query.parameters | set(query.columns) | ({"rows"} if query.columns else set())
    try:
        if store.dialect == "lite":
            made.execute("EXPLAIN " + query.for_sqlite(), dict.fromkeys(names)).fetchall()
        else:
            made.execute("EXPLAIN " + query.for_postgres(store.schema), dict.fromkeys(names))  # type: ignore[attr-defined]
    except Exception as problem:
        return str(problem)
    finally:
        made.close()
    return None


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_mutant_of_a_sample_is_noticed_again(database: str, number: int) -> None:
    """The whole list takes long; these few are run each time, by the test that noticed them. It is green without."""
    dialect = "lite" if database == "sqlite" else "pg"
    names = {m.name: m for m, noticed in NOTICED.items() if m.dialect == dialect and "protocol" in noticed.suites[:1]}
    mutant = names[random.Random(SEED).sample(sorted(names), SAMPLE)[number]]
    test = NOTICED[mutant].test
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test],
        cwd=mutants.ROOT, env={**os.environ, guards.VARIABLE: mutant.encode()}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, f"{test} did not notice {mutant.name}:\n{done.stdout[-2000:]}{done.stderr[-1000:]}"


def test_guards_are_found_wherever_they_stand_and_an_unknown_condition_is_an_error() -> None:
    text = """WITH n AS (SELECT ctid AS place FROM fanin.part AS p WHERE p.bucket = :bucket AND ready -- AND not this
        FOR NO KEY UPDATE SKIP LOCKED) UPDATE fanin.part AS p SET status = 'x' FROM n
        WHERE p.ctid = n.place AND p.status IN ('a', 'b') AND (p.attempt = 1 OR p.idx = 2) RETURNING p.idx;"""
    assert [words for _, _, words in guards.guards(text)] == [
        "ready", "p.status IN ('a', 'b')", "(p.attempt = 1 OR p.idx = 2)",
        "FOR NO KEY UPDATE SKIP LOCKED", "SKIP LOCKED",
    ]  # fmt: skip
    assert " true " in guards.mutated(text, "ready")
    with pytest.raises(LookupError, match="colour"):
        list(guards.guards("UPDATE fanin.part SET idx = 1 WHERE bucket = :bucket AND colour = 'red'"))
    with pytest.raises(LookupError, match="closed"):
        guards.mutated(text, "closed")
