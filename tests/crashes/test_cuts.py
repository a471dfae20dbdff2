"""A transaction that dies anywhere has happened as a whole or not at all, and saying it again makes it happen."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import fanin.protocol
from fanin.domain import limits
from fanin.protocol.steps import Query, Room
from fanin.stores import Store
from fanin.testing.clock import Clock
from fanin.testing.cuts import Cut, When, cuts, run_cut, statements
from fanin.testing.invariants import FORGET, Judge, Seen, violations
from fanin.testing.state import Snapshot
from tests.crashes.repairing import TABLE
from tests.crashes.table import every_row
from tests.races.stage import Stage
from tests.support.figures import record

NOON = 1_700_000_000.0

PIECES = {
    "effect.register": "finish.settle",
    "finish.reap": "lease.reap",
    "counting.count": "finish.settle",
    "counting.count_held": "finish.settle",
    "ending.end": "finish.settle",
    "ending.end_emptied": "submit.seal",
    "finish.write": "finish.settle",
    "counting.emptied_jobs": "finish.settle",
    "growth.grow": "growth.spawn",
    "growth.add_keys": "growth.spawn",
    "deeds.write_down": "close.cancel",
    "close.stop": "flow.end_running",
    "pause.came": "submit.append",
    "pause.pause_row": "repair.mend",
    "redrive.tell_again": "flow.run_again",
    "success.expect": "exchange.exchange",
    "success.end": "exchange.exchange",
    "advance.advance": "finish.settle",
    "advance.lock": "finish.settle",
    "advance.start_following": "finish.settle",
    "advance.undo_next": "finish.settle",
    "advance.wrap_up": "finish.settle",
    "waiting.rise": "finish.settle",
    "ending.announce_refused": "nest.refuse",
    "submit.insert_job": "submit.create",
}
"""Writing generators that are only a part of another transaction, and that one."""
WRITES = re.compile(r"\b(INSERT INTO|UPDATE fanin|DELETE FROM|FOR NO KEY UPDATE)\b")


@pytest.fixture
def stage(witnessed: Store, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(limits, "STRIPE_RUN_PARTS", 1)  # neighbours on different counters
    Clock(witnessed).freeze(NOON)
    return Stage(witnessed)


@pytest.mark.parametrize("name", every_row())
def test_a_cut_transaction_said_again_ends_as_if_it_had_not_been_cut(stage: Stage, name: str) -> None:
    store = stage.store
    factory = TABLE[name].stage(stage)
    judge, start = Judge(), Snapshot(store)
    before = judge.look(store)
    made = statements(store, factory)
    after = judge.look(store)
    left = TABLE[name].left(before.broken)
    assert after.broken == left, "the uncut run"
    assert before.rows != after.rows, "a transaction that changes nothing proves nothing here"
    for cut in cuts(len(made)):
        start.restore(FORGET)
        run_cut(store, factory, cut)
        _compare(judge.look(store), cut, before, after)
        store.run(factory)
        again = judge.look(store)
        assert again.rows == after.rows, f"cut {cut}: the replay left another state than the uncut run"
        assert again.broken == left, f"cut {cut}, then said again: {again.broken}"
    if not left:
        stage.drain()
        assert not violations(store, history=True), "after workers had finished the rest"
    record("crashes", transactions={store.dialect: 1}, cuts={store.dialect: len(list(cuts(len(made))))})


def _compare(found: Seen, cut: Cut, before: Seen, after: Seen) -> None:
    """What is there right after the cut."""
    allowed = {When.STATEMENT: [before], When.COMMITTING: [before, after], When.COMMITTED: [after]}[cut.when]
    assert found.rows in [seen.rows for seen in allowed], f"cut {cut}: neither all nor nothing of it has happened"
    assert found in allowed, f"cut {cut}: {found.broken}"


def test_every_writing_generator_of_the_protocol_has_a_row() -> None:
    rows = {transaction.of for transaction in TABLE.values()}
    missing = set(_writing_generators()) - rows - PIECES.keys()
    assert not missing, f"write a row in tests/crashes/table.py for {sorted(missing)}"
    stale = (PIECES.keys() | set(PIECES.values())) - set(_writing_generators()) - rows
    assert not stale, f"these are gone: {sorted(stale)}"


@pytest.mark.plants_corruption
def test_every_writing_statement_of_the_protocol_is_made_by_some_row(stage: Stage) -> None:
    made: set[Query] = set()
    empty = Snapshot(stage.store)
    for transaction in TABLE.values():
        empty.restore(FORGET)
        made.update(statement.query for statement in statements(stage.store, transaction.stage(stage)))
    dialect = stage.store.dialect
    writing = {query for room in _rooms().values() for query in room if WRITES.search(query.texts.get(dialect, ""))}
    assert made, "the rows make statements"
    never = writing - made
    assert not never, f"no row makes these statements, so they are never cut: {sorted(map(repr, never))}"


def _rooms() -> dict[str, Room]:
    return {
        name: module.SQL
        for name in (module.name for module in pkgutil.iter_modules(fanin.protocol.__path__))
        if isinstance(getattr(module := importlib.import_module(f"fanin.protocol.{name}"), "SQL", None), Room)
    }


def _writing_generators() -> Iterator[str]:
    """The public generators whose own body makes a writing statement, or goes through a private one that does."""
    for name in _rooms():
        module = importlib.import_module(f"fanin.protocol.{name}")
        for title, function in vars(module).items():
            ours = inspect.isgeneratorfunction(function) and function.__module__ == module.__name__
            if ours and not title.startswith("_") and _writes(function, module, set()):
                yield f"{name}.{title}"


def _writes(function: Any, module: Any, seen: set[str]) -> bool:
    source = inspect.getsource(function)
    for room, query in re.findall(r"yield (\w+\.)?SQL\.(\w+)", source):
        owner = getattr(module, room.rstrip(".")) if room else module
        if any(WRITES.search(text) for text in getattr(owner.SQL, query).texts.values()):
            return True
    for owner_name, called in re.findall(r"yield from (\w+\.)?(\w+)\(", source):
        owner = getattr(module, owner_name.rstrip("."), None) if owner_name else module
        target = getattr(owner, called, None)
        if target is not None and called not in seen and inspect.isfunction(target):
            seen.add(called)
            home = importlib.import_module(target.__module__)
            if _writes(target, home, seen):
                return True
    return False
