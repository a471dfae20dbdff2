"""A consumer with an inbox makes its change once, whatever is delivered when."""

from __future__ import annotations

import sqlite3
import threading

import pytest

import fanin
from fanin import inbox
from tests.boundaries.clerks import Clerk, Died


def test_a_change_is_made_once_though_its_event_comes_again_and_again(clerk: Clerk) -> None:
    answers = [clerk.deliver("billing", "job/1/finished/1") for _ in range(1 + clerk.redeliveries)]
    assert answers == [True] + [False] * clerk.redeliveries
    assert clerk.ledger() == ["billing job/1/finished/1"]


def test_a_consumer_that_dies_before_its_commit_has_done_nothing_and_does_it_next_time(clerk: Clerk) -> None:
    with pytest.raises(Died):
        clerk.deliver("billing", "k", dies=True)
    assert clerk.ledger() == []
    assert clerk.deliver("billing", "k") is True
    assert clerk.deliver("billing", "k") is False, "it died before its acknowledgement: the event came again"
    assert clerk.ledger() == ["billing k"]


def test_two_consumers_do_not_hide_events_from_each_other(clerk: Clerk) -> None:
    assert clerk.deliver("billing", "k") is True
    assert clerk.deliver("mailing", "k") is True
    assert clerk.deliver("billing", "other") is True
    assert clerk.ledger() == ["billing k", "billing other", "mailing k"]


def test_deliveries_at_the_same_moment_are_applied_once(clerk: Clerk) -> None:
    meet = threading.Barrier(4)
    answers: list[bool] = []

    def consume() -> None:
        for number in range(5):
            meet.wait(60)
            answers.append(clerk.deliver("billing", f"k{number}"))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 15 + [True] * 5
    assert clerk.ledger() == [f"billing k{number}" for number in range(5)]


def test_old_notes_are_forgotten_in_portions_and_young_ones_are_not(clerk: Clerk) -> None:
    for number in range(5):
        clerk.deliver("billing" if number < 4 else "mailing", f"k{number}")
    assert clerk.forget("1h") == 0
    assert clerk.forget("0s", consumer="mailing") == 1
    assert clerk.forget("0s", rows=3) == 3
    assert clerk.forget("0s", rows=3) == 1
    assert clerk.forget("0s", rows=3) == 0
    assert clerk.deliver("billing", "k0") is True, "what was forgotten counts as new"


def test_a_connection_that_commits_by_itself_is_refused(clerk: Clerk) -> None:
    for connection in clerk.careless():
        with pytest.raises(fanin.NotAllowedNow, match="two transactions"):
            inbox.once(connection, "billing", "k")
        connection.close()
    assert clerk.look("SELECT count(*) FROM fanin_inbox") == [(0,)]


@pytest.mark.parametrize(
    ("consumer", "key", "said"),
    [
        ("", "k", "consumer=''"),
        ("billing", "", "event_key=''"),
        ("billing", "k" * 501, "501 characters, at most 500"),
        ("billing", "k\0", "NUL"),
        ("billing", "\ud800", "lone surrogates"),
        ("billing", 7, "event_key=7"),
    ],
)
def test_an_unusable_key_is_refused_before_anything_is_written(consumer: str, key: str, said: str) -> None:
    with pytest.raises(fanin.BadOption, match=said):
        inbox.once(sqlite3.connect(":memory:"), consumer, key)


def test_an_unusable_connection_table_or_dialect_is_refused_with_what_is_possible() -> None:
    with pytest.raises(fanin.BadOption, match="psycopg, SQLAlchemy, Django, sqlite3 and apsw"):
        inbox.once(object(), "billing", "k")
    with pytest.raises(fanin.BadOption, match="letters, digits"):
        inbox.once(sqlite3.connect(":memory:"), "billing", "k", table="inbox; --")
    with pytest.raises(fanin.BadOption, match="choose postgresql or sqlite"):
        inbox.ddl("oracle")
    with pytest.raises(fanin.BadOption, match="rows=0"):
        inbox.forget(sqlite3.connect(":memory:"), "1d", rows=0)
