"""The judge of the kit: `check_all` fails a test with every broken rule, and each rule of the history can be broken."""

from __future__ import annotations

import pytest

from fanin.protocol import check
from fanin.stores.base import Store
from fanin.testing import invariants
from fanin.testing.invariants import FORGET, HISTORY, Judge, check_all, history_violations
from fanin.testing.state import Snapshot, execute
from tests.protocol.helpers import claim, done, make, say, settle

PLANTED = {
    "p1": "UPDATE fanin.part SET status = 'failed', result = NULL",
    "p2": "UPDATE fanin.part SET result = '9'",
    "p5": "UPDATE fanin.part SET status = 'running', result = NULL",
    "j1": "UPDATE fanin.job SET status = 'failed'",
    "j9": "UPDATE fanin.job SET run = run + 1",
    "e1": "UPDATE fanin.outbox SET payload = '{}'",
    "f4": "UPDATE fanin.part SET attempt = attempt + 1, attempts_allowed = attempts_allowed + 1",
}


def ended(store: Store) -> None:
    """A job of one part that has ended, under the eyes of the witness."""
    invariants.install(store)
    make(store, 1)
    settle(store, *map(done, claim(store)))


def test_a_healthy_history_has_no_finding(store: Store) -> None:
    ended(store)
    assert history_violations(store) == []
    check_all(store, history=True)


def test_every_rule_of_the_history_has_planted_corruption() -> None:
    assert PLANTED.keys() == HISTORY.keys()


@pytest.mark.plants_corruption
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_change_is_found_by_the_witness(store: Store, name: str) -> None:
    ended(store)
    say(store, PLANTED[name])
    assert name in {line.partition(":")[0] for line in history_violations(store)}
    with pytest.raises(AssertionError, match=rf"(?s)these rules do not hold:\n.*\b{name}: "):
        check_all(store, history=True)


@pytest.mark.plants_corruption
def test_a_broken_rule_is_named_with_its_sentence_and_a_row(store: Store) -> None:
    make(store, 2)
    check_all(store)
    say(store, "UPDATE fanin.job_stripe SET remaining = remaining + 1, created = created + 1")
    with pytest.raises(AssertionError) as caught:
        check_all(store)
    assert f"c1: {check.CHECKS['c1']}" in str(caught.value)


def test_the_judge_sees_all_that_a_rule_asks_for() -> None:
    """`dump` leaves columns out, and the clock is no row: rows that it has seen are not judged again."""
    texts = {name: check.statement(name).query.texts["pg"] for name in check.CHECKS}
    assert [name for name, text in texts.items() if "xid" in text or "job_log" in text or "fanin.repair" in text] == []
    assert [name for name, text in texts.items() if "clock()" in text] == ["i7"]
    assert "fanin.clock() + 63072000" in texts["i7"]


def test_the_judge_remembers_rows_with_their_history(witnessed: Store) -> None:
    judge = Judge()
    make(witnessed, 1)
    (held,) = claim(witnessed)
    first = judge.look(witnessed)
    assert (judge.look(witnessed), first.broken) == (first, [])
    settle(witnessed, done(held))
    sound = Snapshot(witnessed)
    assert judge.look(witnessed).broken == []
    execute(witnessed, "UPDATE fanin.part SET result = '9'")
    assert [line[:2] for line in judge.look(witnessed).broken] == ["p2", "p5"]
    sound.restore()
    assert [line[:2] for line in judge.look(witnessed).broken] == ["p2", "p5"], "sound rows, and what was done to them"
    sound.restore(FORGET)
    assert judge.look(witnessed).broken == []
