"""Somebody else commits between two statements of a transaction: what was read before is not relied upon.

One case for each place where a transaction decides on something that it does not hold yet. Every schedule of these
transactions is in ``tests/races``. On SQLite there is one writer, so there is no such moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from fanin.domain.errors import KeyConflict, NotAllowedNow
from fanin.protocol import close, finish, lease, submit
from fanin.protocol.steps import Txn
from fanin.stores.base import Store
from tests.protocol.helpers import (
    THEN,
    Clock,
    append,
    cancel,
    claim,
    done,
    ending,
    events,
    job,
    make,
    make_open,
    new_job,
    run_all,
    say,
    seal,
    settle,
    states,
    successors,
)

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("pg_server")


def meanwhile(factory: Callable[[], Txn[T]], before: str, happens: Callable[[], object]) -> Callable[[], Txn[T]]:
    """The transaction, with something happening once, elsewhere, before the statement of this name."""
    pending = [happens]

    def interrupted() -> Txn[T]:
        txn = factory()
        statement = next(txn)
        while True:
            if statement.query.name == before and pending:
                pending.pop()()
            rows = yield statement
            try:
                statement = txn.send(rows)
            except StopIteration as stop:
                value: T = stop.value
                return value

    return interrupted


@pytest.mark.parametrize("how", ["sealed", "cancelled"])
def test_an_append_during_the_end_of_appending_adds_nothing(store: Store, how: str) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 2)
    stop = {"sealed": lambda: seal(store, job_id, 2), "cancelled": lambda: cancel(store, job_id)}[how]
    with pytest.raises(NotAllowedNow, match="was sealed or closed meanwhile"):
        store.run(meanwhile(lambda: submit.append(0, job_id, 2, ["2"]), "add_created", stop))
    assert len(states(store, job_id)) == 2
    assert say(store, "SELECT created FROM fanin.job_stripe") == [(2,)]


def test_a_seal_during_another_seal_changes_nothing(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    again = meanwhile(
        lambda: submit.seal(0, job_id, 1, "h", False), "lock_for_seal", lambda: seal(store, job_id, 1, "h")
    )
    assert store.run(again) is False
    assert ending(store, job_id) == ("running", None)


def test_a_seal_during_another_content_s_seal_is_a_conflict(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    other = meanwhile(
        lambda: submit.seal(0, job_id, 1, "h2", False), "lock_for_seal", lambda: seal(store, job_id, 1, "h1")
    )
    with pytest.raises(KeyConflict):
        store.run(other)


def test_a_seal_during_a_cancel_does_not_start_the_job(store: Store) -> None:
    job_id = make_open(store)
    append(store, job_id, 0, 1)
    late = meanwhile(lambda: submit.seal(0, job_id, 1, None, False), "lock_for_seal", lambda: cancel(store, job_id))
    assert store.run(late) is False
    assert ending(store, job_id) == ("cancelled", "cancelled")


def test_two_creators_with_one_key_make_one_job(store: Store) -> None:
    wanted = new_job(store, key="album", request_hash="h1")

    def create() -> Txn[bool]:
        return submit.create(wanted, 1, lambda: [["1"]])

    assert store.run(meanwhile(create, "create_job", lambda: store.run(create))) is False
    assert states(store, wanted.id) == ["pending"]


def test_two_creators_with_one_key_and_two_contents_are_told_apart(store: Store) -> None:
    second = new_job(store, key="album", request_hash="h2")
    race = meanwhile(
        lambda: submit.create(second, 1, lambda: [["2"]]),
        "create_job",
        lambda: make(store, ["1"], key="album", request_hash="h1"),
    )
    with pytest.raises(KeyConflict, match="'album'"):
        store.run(race)
    assert say(store, "SELECT payload FROM fanin.part") == [("1",)]


def test_two_openers_with_one_key_open_one_job(store: Store) -> None:
    wanted = new_job(store, key="stream", give_up_after=60.0)

    def opening() -> Txn[bool]:
        return submit.open_job(wanted)

    assert store.run(meanwhile(opening, "create_job", lambda: store.run(opening))) is False
    assert job(store, wanted.id).status == "open"


@pytest.mark.parametrize("statement", ["settle_parts", "count_down"])
def test_a_report_during_a_cancel_is_closed_and_counts_nothing(store: Store, statement: str) -> None:
    job_id = make(store, 1, then=THEN)
    other = make(store, 1)
    held = claim(store)
    answers = store.run(
        meanwhile(lambda: finish.settle(0, [done(c) for c in held]), statement, lambda: cancel(store, job_id))
    )
    assert {c.job_id: a.verdict.value for c, a in zip(held, answers, strict=True)} == {job_id: "closed", other: "last"}
    assert states(store, job_id) == ["running"]
    assert successors(store, job_id) == []


def test_a_cancel_during_the_last_report_finds_the_job_ended(store: Store) -> None:
    job_id = make(store, 1)
    late = meanwhile(lambda: close.cancel(0, job_id), "lock_all_stripes", lambda: run_all(store))
    assert store.run(late) is False
    assert ending(store, job_id) == ("completed", "all_ok")


def test_two_cancels_at_once_end_the_job_once(store: Store) -> None:
    job_id = make(store, 1)
    late = meanwhile(lambda: close.cancel(0, job_id), "lock_all_stripes", lambda: cancel(store, job_id))
    assert store.run(late) is False
    assert len(events(store, job_id)) == 1


def test_a_lease_renewed_while_the_reaper_looks_is_left_alone(store: Store, clock: Clock) -> None:
    job_id = make(store, 1, attempts=1)
    (held,) = claim(store)
    clock.advance(61)
    reaped = meanwhile(lambda: lease.reap(0), "reap_parts", lambda: store.run(lambda: lease.renew(0, [(held, 60.0)])))
    assert store.run(reaped) == 0
    settle(store, done(held))
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_part_claimed_while_its_late_holder_reports_is_lost_to_the_late_one(store: Store, clock: Clock) -> None:
    job_id = make(store, 1)
    (late,) = claim(store)
    clock.advance(61)
    store.run(lambda: lease.wake(0))
    answers = store.run(meanwhile(lambda: finish.settle(0, [done(late, "1")]), "settle_parts", lambda: claim(store)))
    assert [(a.verdict.value, a.attempt) for a in answers] == [("lost", 2)]
    assert states(store, job_id) == ["running"]


def test_a_part_settled_between_a_refusal_and_its_explanation_is_explained_as_it_stands(store: Store) -> None:
    make(store, 2)
    held, _ = claim(store)
    settle(store, done(held, "1"))
    answers = store.run(meanwhile(lambda: finish.settle(0, [done(held, "1")]), "look_at_part", lambda: run_all(store)))
    assert [a.verdict.value for a in answers] == ["replay"]
