"""The proxy cuts real transactions around their COMMIT; saying the same again finds out what became of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from fanin.domain.errors import StoreUnreachable
from fanin.domain.model import Spec, Verdict
from fanin.stores import open_store
from fanin.stores.base import Store
from fanin.stores.postgres import PostgresStore
from fanin.testing.proxy import CUTS, PgProxy
from fanin.testing.state import select
from tests.protocol.helpers import claim, done, make, settle, verdicts
from tests.support.databases import migrate_database


@pytest.fixture
def direct(pg_url: str) -> Iterator[Store]:
    migrate_database(pg_url)
    store = open_store(pg_url)
    yield store
    store.close()


@pytest.fixture
def proxy(pg_url: str) -> Iterator[PgProxy]:
    parts = urlsplit(pg_url)
    assert parts.hostname
    assert parts.port
    with PgProxy((parts.hostname, parts.port), seed=1) as made:
        yield made


@pytest.fixture
def cut_off(pg_url: str, direct: Store, proxy: PgProxy) -> Iterator[Store]:
    """A store behind the proxy that tries once."""
    parts = urlsplit(pg_url)
    store = PostgresStore(parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}").geturl())
    store.tries = 1
    yield store
    store.close()


def events(store: Store) -> int:
    return len(select(store, "SELECT event_key FROM fanin.outbox"))


def test_what_is_not_cut_goes_through(direct: Store, cut_off: Store, proxy: PgProxy) -> None:
    make(cut_off, 3)
    assert Verdict.LAST in verdicts(cut_off, *map(done, claim(cut_off)))
    assert events(direct) == 1
    assert proxy.counts["commits"] >= 3
    assert proxy.counts["messages"] > proxy.counts["commits"]


@pytest.mark.parametrize("warm", [1, 8], ids=["simple", "prepared"])
@pytest.mark.parametrize("kind", CUTS)
def test_a_cut_around_commit_is_resolved_by_saying_it_again(
    direct: Store, cut_off: Store, proxy: PgProxy, kind: str, warm: int
) -> None:
    for _ in range(warm):  # after a few times psycopg prepares its statements, COMMIT too
        make(cut_off, 1)
        settle(cut_off, *map(done, claim(cut_off)))
    make(cut_off, 1, then=Spec(task="next", queue="other"))
    (held,) = claim(cut_off)
    proxy.cut_next_commit(kind)
    with pytest.raises(StoreUnreachable):
        settle(cut_off, done(held))
    assert proxy.counts[f"cut_{kind}"] == 1
    # A late COMMIT may still be under way: the same report waits for its lock, then learns the outcome.
    expected = {"request": Verdict.LAST, "reply": Verdict.REPLAY, "late": Verdict.REPLAY}[kind]
    assert verdicts(cut_off, done(held)) == [expected]
    assert events(direct) == warm + 1
    assert len(select(direct, "SELECT id FROM fanin.job WHERE parent_id IS NOT NULL")) == 1


def test_a_store_that_tries_again_never_shows_the_cut(direct: Store, cut_off: Store, proxy: PgProxy) -> None:
    cut_off.tries = 12
    proxy.cut_next_commit("request", "reply", "late", "reply")
    make(cut_off, 2, key="once")
    assert set(verdicts(cut_off, *map(done, claim(cut_off)))) <= {Verdict.OK, Verdict.LAST, Verdict.REPLAY}
    assert len(select(direct, "SELECT id FROM fanin.job")) == 1


@pytest.mark.parametrize("kind", CUTS)
def test_a_round_trip_is_cut_at_the_message_that_was_named(
    direct: Store, cut_off: Store, proxy: PgProxy, kind: str
) -> None:
    make(cut_off, 1, then=Spec(task="next", queue="other"))
    (held,) = claim(cut_off)
    assert verdicts(cut_off, done(held)) == [Verdict.LAST]
    before = proxy.counts["rounds"]
    assert verdicts(cut_off, done(held)) == [Verdict.REPLAY]
    rounds = proxy.counts["rounds"] - before
    assert rounds >= 3  # BEGIN, what looks, COMMIT
    for number in range(1, rounds + 1):
        for message in (1, 3, 99):
            proxy.cut_round(number, kind, message)
            with pytest.raises(StoreUnreachable):
                verdicts(cut_off, done(held))
            assert verdicts(cut_off, done(held)) == [Verdict.REPLAY]
    assert proxy.counts[f"cut_{kind}"] == 3 * rounds
    assert events(direct) == 1


def test_a_reset_is_an_unreachable_store_and_the_next_call_works(cut_off: Store, proxy: PgProxy) -> None:
    make(cut_off, 1)
    assert proxy.reset() == 1
    with pytest.raises(StoreUnreachable):
        claim(cut_off)
    assert len(claim(cut_off)) == 1


def test_a_delay_is_waited_for(cut_off: Store, proxy: PgProxy) -> None:
    make(cut_off, 1)
    proxy.delay(0.05)
    began = time.monotonic()
    assert len(claim(cut_off)) == 1
    assert time.monotonic() - began > 0.15  # begin, claim, commit
    proxy.delay(0)


def test_a_black_hole_answers_when_it_is_opened(cut_off: Store, proxy: PgProxy) -> None:
    make(cut_off, 1)
    proxy.black_hole()
    found: list[int] = []
    worker = threading.Thread(target=lambda: found.append(len(claim(cut_off))))
    worker.start()
    worker.join(0.2)
    assert found == []
    proxy.black_hole(False)
    worker.join(90)
    assert found == [1]


def test_a_share_of_the_commits_is_cut(cut_off: Store, proxy: PgProxy) -> None:
    cut_off.tries = 12
    make(cut_off, 1)
    proxy.cut_commits(0.5, ["request"])
    for _ in range(20):
        make(cut_off, 1)
    proxy.cut_commits(0)
    assert 5 < proxy.counts["cut_request"] < 40


def test_a_client_without_tls_is_served_and_one_that_insists_is_told(proxy: PgProxy) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not support SSL"):
        psycopg.connect(f"host=127.0.0.1 port={proxy.port} user=x sslmode=require")


def test_an_unknown_cut_is_refused(proxy: PgProxy) -> None:
    with pytest.raises(ValueError, match="request, reply, late"):
        proxy.cut_next_commit("sometimes")
