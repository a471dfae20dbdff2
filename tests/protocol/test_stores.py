"""The stores keep the promise: whole-transaction retries, refusals, forks, threads, lost connections."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import psycopg
import pytest
from psycopg.adapt import AdaptersMap

from fanin.domain.errors import (
    BadOption,
    StoreBusy,
    StoreUnreachable,
    Unavailable,
    UnsafeStore,
)
from fanin.protocol import finish, read
from fanin.protocol.steps import Again, Query, Rows, Txn, TxnFactory
from fanin.stores import base, default_url, migrate, open_store, pg_errors, pg_target, postgres, sqlite
from fanin.stores.base import Store
from fanin.stores.pg_async import AsyncPostgres
from fanin.stores.postgres import PostgresStore
from tests.protocol.helpers import (
    THEN,
    claim,
    claim_all,
    done,
    ending,
    events,
    make,
    say,
    settle,
    states,
    successors,
)
from tests.support.databases import migrate_database
from tests.support.postgres import Server


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, noted instead of slept."""
    noted: list[float] = []
    monkeypatch.setattr(base, "time", SimpleNamespace(sleep=noted.append))
    return noted


def statement(sql: str, **values: Any) -> Any:
    return Query("test", "say", (), {"pg": sql, "lite": sql})(**values)


def with_options(url: str, options: str) -> str:
    return url + "&options=" + options.replace(" ", "%20").replace("=", "%3D")


# What is tried again


def failing(times: int, sql: str) -> tuple[list[int], TxnFactory[str]]:
    """A transaction whose statement fails in the first tries, and the numbers of its tries."""
    tries: list[int] = []

    def factory() -> Txn[str]:
        tries.append(len(tries) + 1)
        if len(tries) <= times:
            yield statement(sql)
        return "done"

    return tries, factory


def raising(code: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION 'planted' USING ERRCODE = '{code}'; END $$"


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("40001", StoreBusy),
        ("40P01", StoreBusy),
        ("55P03", StoreBusy),
        ("53100", Unavailable),
        ("53300", Unavailable),
        ("57P01", Unavailable),
        ("57P03", Unavailable),
        ("58030", Unavailable),
        ("25006", Unavailable),
    ],
)
def test_what_the_database_could_not_do_now_is_tried_again_as_a_whole(
    pg_server: Server, store: Store, no_pause: list[float], code: str, family: type[Unavailable]
) -> None:
    tries, factory = failing(2, raising(code))
    assert store.run(factory) == "done"
    assert tries == [1, 2, 3]
    assert no_pause == sorted(no_pause)
    tries, factory = failing(99, raising(code))
    with pytest.raises(family, match="planted"):
        store.run(factory)
    assert len(tries) == store.tries


def test_an_error_of_the_call_itself_is_not_tried_again(store: Store, no_pause: list[float]) -> None:
    tries, factory = failing(99, "SELECT no_such_function()")
    with pytest.raises((psycopg.Error, apsw.Error), match="no_such_function"):
        store.run(factory)
    assert (tries, no_pause) == ([1], [])


def test_a_transaction_may_ask_to_be_replaced_and_what_it_wrote_is_gone(store: Store) -> None:
    job_id = make(store, 1)

    def second() -> Txn[Rows]:
        return (yield statement("SELECT reason FROM fanin.job"))

    def first() -> Txn[Rows]:
        yield statement("UPDATE fanin.job SET reason = 'written'")
        raise Again(second)

    assert store.run(first) == [(None,)]
    assert ending(store, job_id) == ("running", None)


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_a_transaction_that_raises_has_written_nothing_and_the_store_goes_on(
    store: Store, error: BaseException
) -> None:
    make(store, 1)

    def broken() -> Txn[None]:
        yield statement("UPDATE fanin.job SET reason = 'written'")
        raise error

    for _ in range(3):
        with pytest.raises(type(error)):
            store.run(broken)
    assert say(store, "SELECT reason FROM fanin.job") == [(None,)]


def test_a_busy_file_is_tried_again_until_it_is_free(
    sqlite_url: str, no_pause: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.0)
    store = open_store(sqlite_url)
    make(store, 1)
    other = apsw.Connection(sqlite_url.removeprefix("sqlite:///"))
    other.execute("BEGIN IMMEDIATE")

    def pause(seconds: float) -> None:
        no_pause.append(seconds)
        if len(no_pause) == 3:
            other.execute("COMMIT")

    monkeypatch.setattr(base, "time", SimpleNamespace(sleep=pause))
    assert len(claim(store)) == 1
    assert len(no_pause) == 3
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="is locked by another program"):
        claim(store)
    other.close()
    store.close()


# A disk that is full or broken


def test_a_full_disk_is_no_failure_of_a_part_and_nothing_is_written(sqlite_url: str, no_pause: list[float]) -> None:
    store: Any = open_store(sqlite_url)
    job_id = make(store, 1)
    (held,) = claim(store)
    pages = store._writer.pragma("page_count")
    store._writer.pragma("max_page_count", pages)
    with pytest.raises(Unavailable, match="no space left for"):
        settle(store, done(held, '"' + "x" * 900_000 + '"'))
    assert len(no_pause) == store.tries - 1
    assert states(store, job_id) == ["running"]
    store._writer.pragma("max_page_count", pages + 10_000)
    settle(store, done(held, '"' + "x" * 900_000 + '"'))
    assert ending(store, job_id) == ("completed", "all_ok")
    store.close()


@pytest.mark.parametrize(
    ("problem", "family", "said"),
    [
        (apsw.IOError("disk I/O error"), Unavailable, "input/output error"),
        (apsw.FullError("full"), Unavailable, "no space left"),
        (apsw.BusyError("busy"), StoreBusy, "locked by another program"),
        (apsw.LockedError("locked"), StoreBusy, "locked by another program"),
        (apsw.CantOpenError("no"), StoreUnreachable, "check that its folder exists"),
        (apsw.ReadOnlyError("no"), StoreUnreachable, "for writing"),
        (apsw.NotADBError("no"), UnsafeStore, "is not an SQLite database"),
    ],
)
def test_each_error_of_sqlite_says_what_to_do(problem: Exception, family: type[Exception], said: str) -> None:
    with pytest.raises(family, match=said) as caught, sqlite.translated("/data/x.db"):
        raise problem
    assert "/data/x.db" in str(caught.value)
    assert caught.value.__cause__ is problem


def test_a_file_in_no_folder_and_a_file_that_is_no_database_are_refused(tmp_path: Path, no_pause: list[float]) -> None:
    with pytest.raises(StoreUnreachable, match="nowhere"):
        say(open_store(f"sqlite:///{tmp_path}/nowhere/x.db"), "SELECT 1")
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one " * 100)
    with pytest.raises(UnsafeStore, match=r"text\.db is not an SQLite database"):
        say(open_store(f"sqlite:///{tmp_path}/text.db"), "SELECT 1")


# What cannot keep the promise is refused


def test_a_commit_that_answers_rollback_is_no_commit(pg_server: Server) -> None:
    pg_errors.check_commit("COMMIT")
    for tag in ("ROLLBACK", None):
        with pytest.raises(Unavailable, match=f"answered COMMIT with {tag}"):
            pg_errors.check_commit(tag)
    with psycopg.connect(pg_server.url(), autocommit=True) as connection:
        connection.execute("BEGIN")
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1/0")
        with pytest.raises(Unavailable):
            pg_errors.check_commit(connection.execute("COMMIT").statusmessage)


def test_a_commit_of_a_transaction_that_failed_unseen_is_tried_again(
    pg_server: Server, store: Any, no_pause: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def factory() -> Txn[str]:
        tries.append(1)
        list((yield statement("UPDATE fanin.job SET reason = 'written'")))  # looked at, so the wire is free
        if len(tries) == 1:
            with pytest.raises(psycopg.Error):  # an error that somebody swallows on the way
                connections[-1].execute("SELECT 1/0")
        return "done"

    connections: list[Any] = []
    execute = store._execute

    def spy(connection: Any, asked: Any) -> Rows:
        connections.append(connection)
        found: Rows = execute(connection, asked)
        return found

    job_id = make(store, 1)
    monkeypatch.setattr(store, "_execute", spy)
    assert store.run(factory) == "done"
    assert len(tries) == 2
    assert say(store, "SELECT reason FROM fanin.job") == [("written",)]
    assert ending(store, job_id) == ("running", None)


def test_a_standby_is_refused(own_pg: Callable[..., Server]) -> None:
    pg_errors.check_primary(False, "postgresql://h/d")
    with pytest.raises(UnsafeStore, match="h/d is a standby: decisions can only be made on the primary"):
        pg_errors.check_primary(True, "postgresql://user:secret@h/d")
    server = own_pg()
    server.stop()
    signal = server.data / "standby.signal"
    signal.touch()
    os.chmod(signal, 0o644)
    server.start()
    with pytest.raises(UnsafeStore, match="is a standby"):
        say(open_store(server.url("fanin")), "SELECT 1")


def test_an_old_postgresql_is_refused() -> None:
    target = pg_target.Target("postgresql://h/d")
    old: Any = SimpleNamespace(
        prepare_threshold=5,
        adapters=AdaptersMap(psycopg.adapters),
        info=SimpleNamespace(server_version=120017),
    )
    with pytest.raises(UnsafeStore, match="PostgreSQL 12 is too old: 13 or later"):
        target.prepare(old)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused(pg_server: Server, encoding: str) -> None:
    """A worker would find out with the work done, and do it again and again."""
    name = f"fanin_{encoding.lower()}_{os.getpid()}"
    with psycopg.connect(pg_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        try:
            with pytest.raises(UnsafeStore, match=f"stores text as {encoding}.*ENCODING 'UTF8'"):
                say(open_store(pg_server.url(database=name)), "SELECT 1")
        finally:
            connection.execute(f"DROP DATABASE {name}")


def test_every_text_is_sent_whatever_encoding_the_environment_names(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    migrate_database(pg_url)
    store = open_store(pg_url)
    assert store.table(statement("SELECT :text::text AS said", text="\u20ac\U0001f600")) == [
        {"said": "\u20ac\U0001f600"}
    ]
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_deleted_or_replaced_takes_no_commits(sqlite_url: str, replaced: bool) -> None:
    store = open_store(sqlite_url)
    make(store, 1)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    os.rename(path, path.with_suffix(".kept"))
    if replaced:
        path.touch()
    for call in (lambda: make(store, 1), lambda: say(store, "SELECT 1"), lambda: list(store.check())):
        with pytest.raises(UnsafeStore, match="was deleted or replaced"):
            call()
    assert path.exists() is replaced, "nobody made another in its place"
    os.rename(path.with_suffix(".kept"), path)
    make(store, 1)
    store.close()


def closing_beside(store: Store) -> Txn[int]:
    """A transaction beside which another thread closes the store, as the handler of one part may beside others."""
    ((one,),) = yield statement("SELECT 1")
    other = threading.Thread(target=store.close)
    other.start()
    other.join(0.2)
    ((two,),) = yield statement("SELECT 2")
    closers.append(other)
    return int(one) + int(two)


closers: list[threading.Thread] = []


@pytest.mark.parametrize("kind", ["run", "read"])
def test_a_store_may_be_closed_by_one_thread_while_another_uses_it(store: Store, kind: str) -> None:
    make(store, 1)
    say(store, "SELECT 1")
    call: Callable[[TxnFactory[int]], int] = getattr(store, kind)
    assert call(lambda: closing_beside(store)) == 3
    closers.pop().join(60)
    make(store, 1)
    assert len(store.read(lambda: read.jobs([0], None, 9))) == 2, "it was used again afterwards"


def test_a_store_that_is_closed_meanwhile_still_knows_its_buckets(pg_url: str) -> None:
    """A job that is put into another bucket is never found again."""

    class Closed(PostgresStore):
        """Closed by another thread between the look whether the buckets are known and the answer."""

        known = False
        armed = False

        @property
        def _checked(self) -> bool:
            known = self.known
            if self.armed:
                self.armed = False
                self.close()
            return known

        @_checked.setter
        def _checked(self, known: bool) -> None:
            self.known = known

    with psycopg.connect(pg_url.partition("?")[0], autocommit=True) as connection:
        migrate.postgres(connection, pg_url.partition("fanin_schema=")[2], pg_url, 16)
    store = Closed(pg_url)
    assert store.buckets == 16
    store.armed = True
    assert store.buckets == 16
    store.close()


def test_an_sqlite_with_the_bug_in_wal_mode_is_refused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sqlite.check_library()
    monkeypatch.setattr(sqlite, "MIN_SQLITE", (99, 0, 0))
    with pytest.raises(UnsafeStore, match=r"has a bug that loses commits in WAL mode; 99\.0\.0 or later.*pip install"):
        say(open_store(sqlite_url), "SELECT 1")


MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/me/local ext4 rw 0 0
//server/share /mnt/with\\040space cifs rw 0 0
tmpfs /homework tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/x.db", "nfs4"),
        ("/home/x.db", "nfs4"),
        ("/mnt/with space/x.db", "cifs"),
        ("/home/me/local/x.db", None),
        ("/homework/x.db", None),
        ("/var/x.db", None),
    ],
)
def test_a_file_on_a_network_file_system_is_refused(tmp_path: Path, path: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    if kind is None:
        sqlite.check_file_system(path, str(mounts))
        return
    with pytest.raises(UnsafeStore, match=f"is on a {kind} file system .* or PostgreSQL for several hosts"):
        sqlite.check_file_system(path, str(mounts))


def test_a_system_without_a_table_of_mounts_says_nothing(tmp_path: Path) -> None:
    sqlite.check_file_system("/home/me/x.db", str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://h/d", "is not a database that fanin knows"),
        ("fanin.db", "is not a database that fanin knows"),
        ("sqlite://fanin.db", "name a file"),
        ("sqlite:///", "name a file"),
        ("sqlite:///:memory:", "in memory would be lost"),
        ("sqlite:///x.db?mode=ro", "name a file"),
        ("postgresql://h/d?fanin_schema=Bad-Name", "lower-case letters"),
        ("postgresql://h/d?fanin_schema=" + "x" * 51, "up to 50"),
        ("postgresql://h/d?fanin_schema=" + "\u00e4" * 50, "lower-case letters"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_a_hint(url: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        open_store(url)


def test_the_url_comes_from_the_environment_or_is_a_file_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FANIN_URL", raising=False)
    assert default_url() == "sqlite:///fanin.db"
    monkeypatch.setenv("FANIN_URL", "postgresql://h/d")
    assert default_url() == "postgresql://h/d"


def test_no_message_shows_the_password() -> None:
    store: Any = open_store("postgresql://me:s3cret@127.0.0.1:1/d?connect_timeout=1")
    store.tries = 1
    with pytest.raises(StoreUnreachable, match="cannot reach postgresql://127") as caught:
        say(store, "SELECT 1")
    assert "s3cret" not in str(caught.value)


# Sessions are as the promise needs them, whatever the database's defaults are


def setting(store: Store, name: str) -> str:
    return str(say(store, "SELECT current_setting(:name)", name=name)[0][0])


def test_a_database_with_serializable_read_only_asynchronous_defaults_still_works(
    pg_server: Server, migrated_url: str
) -> None:
    defaults = {
        "default_transaction_isolation": "serializable",
        "default_transaction_read_only": "on",
        "synchronous_commit": "off",
    }
    store = open_store(with_options(migrated_url, " ".join(f"-c {name}={value}" for name, value in defaults.items())))
    assert setting(store, "transaction_isolation") == "read committed"
    assert setting(store, "transaction_read_only") == "off"
    assert setting(store, "synchronous_commit") == "on"
    job_id = make(store, 200, stripes=4, then=THEN)
    held = claim_all(store)
    in_threads(8, lambda n: settle(store, *map(done, held[n::8])))
    assert ending(store, job_id) == ("completed", "all_ok")
    store.close()


def test_a_stronger_durability_is_left_alone(pg_server: Server, migrated_url: str) -> None:
    store = open_store(with_options(migrated_url, "-c synchronous_commit=remote_apply"))
    assert setting(store, "synchronous_commit") == "remote_apply"
    store.close()


def test_behind_a_transaction_pooler_everything_is_said_in_each_transaction(
    pg_server: Server, migrated_url: str
) -> None:
    store: Any = open_store(migrated_url + "&fanin_pooler=transaction&options=-c%20synchronous_commit%3Doff")
    assert setting(store, "synchronous_commit") == "on"
    assert setting(store, "enable_seqscan") == "off"
    assert setting(store, "lock_timeout") == "10s"
    with store.connection() as connection:
        assert connection.prepare_threshold is None
        assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    job_id = make(store, 5)
    settle(store, *map(done, claim(store)))
    assert ending(store, job_id) == ("completed", "all_ok")
    store.close()


def test_a_file_is_written_with_every_commit_on_the_disk(sqlite_url: str) -> None:
    store: Any = open_store(sqlite_url)
    say(store, "SELECT 1")
    assert store._writer.pragma("journal_mode") == "wal"
    assert store._writer.pragma("synchronous") == 2
    assert store._writer.pragma("foreign_keys") == 1
    store.close()


# Threads, forks, and connections that are lost


def in_threads(count: int, work: Callable[[int], object]) -> None:
    problems: list[BaseException] = []

    def run(n: int) -> None:
        try:
            work(n)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_many_threads_share_one_store_and_each_part_counts_once(store: Store) -> None:
    job_id = make(store, 400, stripes=4, then=THEN)

    def work(n: int) -> None:
        while held := claim(store, 7, worker=f"w{n}"):
            settle(store, *map(done, held))

    in_threads(8, work)
    assert ending(store, job_id) == ("completed", "all_ok")
    assert say(store, "SELECT DISTINCT attempt FROM fanin.part WHERE job_id = :j", j=job_id) == [(1,)]
    assert len(events(store, job_id)) == len(successors(store, job_id)) == 1


def test_a_forked_child_uses_connections_of_its_own(store: Store) -> None:
    job_id = make(store, 2)
    first, second = claim(store)
    child = os.fork()
    if child == 0:
        try:
            settle(store, done(first))
            store.close()
            os._exit(0)
        except BaseException as problem:
            sys.stderr.write(f"{problem!r}\n")
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    settle(store, done(second))
    assert ending(store, job_id) == ("completed", "all_ok")


def test_a_store_goes_on_after_it_was_closed(store: Store) -> None:
    job_id = make(store, 1)
    store.close()
    settle(store, *map(done, claim(store)))
    store.close()
    assert ending(store, job_id) == ("completed", "all_ok")


def terminate(store: Any, connection: Any) -> None:
    pid = connection.info.backend_pid
    with psycopg.connect(store.target.conninfo, autocommit=True) as killer:
        killer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_connection_killed_at_any_statement_is_retried_and_the_part_counts_once(
    pg_server: Server, store: Any, no_pause: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = store._execute
    seen: list[str] = []
    cut = [0]

    def spy(connection: Any, asked: Any) -> Rows:
        seen.append(asked.query.name)
        found: Rows = execute(connection, asked)
        if len(seen) == cut[0]:
            terminate(store, connection)
        return found

    monkeypatch.setattr(store, "_execute", spy)
    cuts = 0
    while True:
        cuts += 1
        cut[0] = 0
        job_id = make(store, 1, then=THEN)
        (held,) = claim(store)
        seen.clear()
        cut[0] = cuts
        answer = settle(store, done(held))
        assert [a.verdict.value for a in answer] == ["last"]
        if len(seen) < cuts:
            break
        cut[0] = 0
        assert ending(store, job_id) == ("completed", "all_ok")
        assert len(successors(store, job_id)) == 1
    assert cuts > 8  # every statement of a settle that ends a job was cut once
    assert len(no_pause) == cuts - 1


def test_a_commit_whose_answer_is_lost_is_said_again_and_counts_once(
    pg_server: Server, store: Any, no_pause: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str | None] = []

    def lose(tag: str | None) -> None:
        lost.append(tag)
        if len(lost) == 1:
            raise StoreUnreachable("the answer is lost")

    job_id = make(store, 1, then=THEN)
    (held,) = claim(store)
    monkeypatch.setattr(postgres, "check_commit", lose)
    assert [a.verdict.value for a in settle(store, done(held))] == ["replay"]
    assert lost == ["COMMIT", "COMMIT"]
    assert ending(store, job_id) == ("completed", "all_ok")
    assert len(successors(store, job_id)) == 1


def test_a_server_that_was_restarted_is_found_again(own_pg: Callable[..., Server]) -> None:
    from tests.support.databases import migrate_database

    server = own_pg()
    url = server.url("fanin")
    migrate_database(url)
    store = open_store(url)
    job_id = make(store, 4)
    held = claim(store)
    in_threads(4, lambda n: settle(store, done(held[n])) if n else None)
    server.restart("immediate")
    assert not any(found for _, _, found in store.check())
    server.restart("immediate")
    settle(store, done(held[0]))
    assert ending(store, job_id) == ("completed", "all_ok")
    store.close()


def test_heartbeats_have_a_connection_that_no_other_thread_can_use_up(pg_server: Server, migrated_url: str) -> None:
    store = PostgresStore(migrated_url, connections=1)
    reserved = store.reserve()
    with store.connection():
        assert say(reserved, "SELECT 1") == [(1,)]
    reserved.close()
    store.close()


# The bell


def test_a_bell_rings_when_another_store_has_made_parts(store: Store, migrated_url: str) -> None:
    bell = store.bell(["q"])
    other = open_store(migrated_url)
    if store.dialect == "pg":
        assert bell.wait(5.0) is True  # the first ring says that it listens
    while bell.wait(0.05):
        pass  # what the making of the tables has rung
    make(other, 1)
    assert bell.wait(5.0) is True
    bell.ring()
    assert bell.wait(5.0) is True
    bell.close()
    other.close()


# An event loop


def test_the_same_transactions_run_on_an_event_loop(pg_server: Server, store: Any) -> None:
    job_id = make(store, 40, stripes=2, then=THEN)
    held = claim_all(store)

    async def main() -> None:
        loop = AsyncPostgres(store)
        await asyncio.gather(
            *(
                loop.run(lambda n=n: finish.settle(0, [done(c) for c in held[n::4]], "async"))  # type: ignore[misc]
                for n in range(4)
            )
        )
        row = await loop.read(lambda: read.job(0, job_id))
        assert row is not None
        assert row.outcome == "all_ok"
        tries, factory = failing(2, raising("40001"))
        assert await loop.run(factory) == "done"
        assert len(tries) == 3
        await loop.close()

    asyncio.run(main())
    assert len(events(store, job_id)) == len(successors(store, job_id)) == 1
