"""A store with a fence accepts the newest attempt and refuses those that come back too late."""

from __future__ import annotations

import sqlite3
import threading

import pytest

import fanin
from fanin import fence
from tests.boundaries.clerks import Clerk


def test_the_zombie_of_attempt_4_is_refused_after_attempt_5_has_written(clerk: Clerk) -> None:
    """A claims as attempt 4 and stalls; its lease ends; B claims as attempt 5 and writes; A wakes up and writes."""
    clerk.write("page 7", 5, "B's page")
    with pytest.raises(fanin.StaleToken, match="page 7: token 5 was accepted, 4 comes too late"):
        clerk.write("page 7", 4, "A's page")
    clerk.write("page 7", 5, "B's second line")
    clerk.write("page 8", 4, "another page")
    assert clerk.ledger() == ["B's page", "B's second line", "another page"]


def test_a_zombie_that_writes_first_is_overtaken_and_cannot_write_again(clerk: Clerk) -> None:
    clerk.write("page 7", 4, "A before it stalled")
    clerk.write("page 7", 5, "B")
    with pytest.raises(fanin.StaleToken):
        clerk.write("page 7", 4, "A")
    assert clerk.ledger() == ["A before it stalled", "B"]


def test_a_refused_token_does_not_lower_the_fence(clerk: Clerk) -> None:
    clerk.write("r", 9, "9")
    for token in (3, 8):
        with pytest.raises(fanin.StaleToken):
            clerk.write("r", token, str(token))
    assert clerk.look("SELECT resource, token FROM fanin_fence") == [("r", 9)]


def test_attempts_that_write_at_the_same_moment_leave_the_newest_in_front(clerk: Clerk) -> None:
    meet = threading.Barrier(3)
    refused: list[int] = []

    def attempt(token: int) -> None:
        meet.wait(60)
        try:
            clerk.write("r", token, f"attempt {token}")
        except fanin.StaleToken:
            refused.append(token)

    threads = [threading.Thread(target=attempt, args=(token,)) for token in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 3 not in refused
    assert clerk.ledger() == [f"attempt {token}" for token in (1, 2, 3) if token not in refused]
    assert clerk.look("SELECT token FROM fanin_fence") == [(3,)]


def test_a_connection_that_commits_by_itself_is_refused(clerk: Clerk) -> None:
    for connection in clerk.careless():
        with pytest.raises(fanin.NotAllowedNow, match="two transactions"):
            fence.guard(connection, "r", 1)
        connection.close()
    assert clerk.look("SELECT count(*) FROM fanin_fence") == [(0,)]


@pytest.mark.parametrize("token", [-1, 2**63, True, "4", 1.5], ids=repr)
def test_a_token_that_is_no_whole_number_is_refused(token: object) -> None:
    with pytest.raises(fanin.BadOption, match="whole number"):
        fence.guard(sqlite3.connect(":memory:"), "r", token)  # type: ignore[arg-type]


def test_an_unusable_resource_or_dialect_is_refused() -> None:
    with pytest.raises(fanin.BadOption, match="resource=''"):
        fence.guard(sqlite3.connect(":memory:"), "", 1)
    with pytest.raises(fanin.BadOption, match="choose postgresql or sqlite"):
        fence.ddl("mysql")
