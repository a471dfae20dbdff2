"""The engine itself: it runs every order once, sees waits and deadlocks, and follows a schedule again."""

from __future__ import annotations

from math import comb

import pytest

from fanin.protocol.steps import Statement, Txn
from fanin.testing.explorer import Actor, Diverged, Explorer
from fanin.testing.priorities import Priorities
from fanin.testing.state import select
from fanin.testing.stepper import Session, Watcher, once
from tests.races.arena import Arena
from tests.races.broken import ask
from tests.races.test_broken_forms import two_sessions


def put(name: str) -> Statement:
    text = "INSERT INTO fanin.setting (name, value) VALUES (:word, '') ON CONFLICT (name) DO UPDATE SET value = 'again'"
    return ask("put", text, word=name)


def putting(actor: str, *names: str) -> Actor:
    def txn() -> Txn[str]:
        for name in names:
            yield put(name)
        return "DONE"

    return Actor(actor, lambda: once(txn))


def explorer(arena: Arena, *actors: Actor) -> Explorer:
    return Explorer(arena.store, actors, arena.reset)


@pytest.fixture(autouse=True)
def kept(arena: Arena) -> None:
    arena.keep()


@pytest.mark.parametrize(("left", "right"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_transactions_that_never_wait_have_as_many_schedules_as_their_steps_can_be_mixed(
    arena: Arena, left: int, right: int
) -> None:
    actors = putting("A", *"abc"[:left]), putting("B", *"xyz"[:right])
    with explorer(arena, *actors) as every:
        runs = list(every.every())
    schedules = [run.schedule for run in runs]
    assert len(schedules) == len(set(schedules)) == comb(left + right + 2, left + 1)
    assert all(run.outcomes == {"A": "DONE", "B": "DONE"} for run in runs)


def test_a_bound_keeps_the_schedules_with_so_few_interruptions(arena: Arena) -> None:
    actors = putting("A", "a", "b"), putting("B", "x", "y")
    with explorer(arena, *actors) as every:
        found = {bound: {run.schedule for run in every.every(bound)} for bound in (0, 1, 2, None)}
    assert found[0] == {"AAABBB", "BBBAAA"}
    assert found[0] < found[1] < found[2] < found[None]
    assert found[1] == {s for s in found[None] if _interruptions(s) <= 1}
    assert found[2] == {s for s in found[None] if _interruptions(s) <= 2}


def _interruptions(schedule: str) -> int:
    """Switches away from somebody who had steps left."""
    return sum(1 for n in range(1, len(schedule)) if schedule[n] != schedule[n - 1] and schedule[n - 1] in schedule[n:])


def test_a_wait_is_seen_and_ends_with_the_other_s_commit(arena: Arena) -> None:
    with explorer(arena, putting("A", "same"), putting("B", "same")) as every:
        run = every.replay("ABA")
    assert run.steps == ["  A broken.put", "  B broken.put  waits", "  A COMMIT", "  B goes on", "  B COMMIT"]
    assert run.deadlocks == 0


def test_a_deadlock_is_counted_and_the_victim_tries_again(arena: Arena) -> None:
    with explorer(arena, putting("A", "one", "two"), putting("B", "two", "one")) as every:
        run = every.replay("ABAB")
    assert run.deadlocks == 1
    assert run.outcomes == {"A": "DONE", "B": "DONE"}
    assert "  all wait: a deadlock" in run.steps


def test_a_schedule_is_followed_again_and_an_impossible_one_is_refused(arena: Arena) -> None:
    with explorer(arena, putting("A", "same", "a"), putting("B", "same")) as every:
        for run in list(every.every()):
            assert every.replay(run.schedule).steps == run.steps
    with explorer(arena, putting("A", "same", "a"), putting("B", "same")) as every, pytest.raises(Diverged):
        every.replay("ABB")


def test_a_seed_draws_the_same_schedule_again_and_seeds_draw_many(arena: Arena) -> None:
    actors = [putting("A", "a", "one"), putting("B", "one", "b"), putting("C", "c", "two"), putting("D", "two")]
    with explorer(arena, *actors) as every:
        first = {run.seed: run for run in every.drawn(range(20))}
        (again,) = every.drawn([7])
        plain = [run.schedule for run in every.drawn(range(20), depth=1)]
    assert (again.schedule, again.steps) == (first[7].schedule, first[7].steps)
    assert "seed 7" in again.story()
    assert len({run.schedule for run in first.values()}) > 10
    assert all(_interruptions(schedule) == 0 for schedule in plain), "nobody falls back, so nobody is interrupted"


def test_a_change_of_priority_lets_the_next_one_move() -> None:
    names, steps = "ABC", 9

    def schedule(choose: Priorities) -> str:
        made = ""
        while len(made) < steps:
            made += choose(made, "".join(name for name in names if made.count(name) < 3))
        return made

    orders = {schedule(Priorities(seed, names, steps, 1)) for seed in range(50)}
    assert len(orders) == 6, "without a change everybody runs to its end, in all six orders"
    for depth in (2, 3):
        drawn = [schedule(Priorities(seed, names, steps, depth)) for seed in range(200)]
        assert all(_interruptions(one) <= depth - 1 for one in drawn)
        assert {_interruptions(one) for one in drawn} == set(range(depth))
    with pytest.raises(ValueError, match="depth=0: give 1 to 10"):
        Priorities(1, names, steps, 0)


def test_a_held_session_shows_nothing_and_a_cut_one_leaves_nothing(arena: Arena) -> None:
    def names() -> set[str]:
        return {row["name"] for row in select(arena.store, "SELECT name FROM fanin.setting")}

    before = names()
    with two_sessions(arena) as (one, two):
        one.play(putting("A", "a").script())
        one.hold("COMMIT")
        assert names() == before
        one.cut()
        two.play(putting("B", "a").script())  # waits until the server has noticed the cut
        assert two.finish() == "DONE"
        assert names() == before | {"a"}
        two.play(putting("B", "b").script())
        with pytest.raises(LookupError, match="ended before"):
            two.hold("broken.never")


def test_a_refusal_rolls_back_and_reaches_the_script(arena: Arena) -> None:
    def txn() -> Txn[None]:
        yield put("refused")
        raise ValueError("no")

    watcher = Watcher(arena.store)
    session = Session(arena.store, "A", watcher)
    session.play(once(txn))
    assert isinstance(session.finish(), ValueError)
    assert not select(arena.store, "SELECT name FROM fanin.setting WHERE name = 'refused'")
    session.close()
    watcher.close()
