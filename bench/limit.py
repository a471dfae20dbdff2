"""The raw limit: the leanest program with the same durable, guarded writes, on the same database in the same session.

One table of parts, one counter, one outbox row. A round is one commit: the batch in hand is completed under its guard
(status, attempt, claim id), the counter goes down, the next batch is claimed. There is no library, no handler, no lease
to renew, one counter for all, and integer keys. A run does what `end_to_end` does: write the parts, work, read all
results in order.
"""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator
from typing import Any, Protocol

from bench.databases import Database
from bench.end_to_end import Void

BATCH = 256
LEASE_SECONDS = 60.0
BUSY_SECONDS = 0.0002
START_SECONDS = 30.0
ROUNDS_SECONDS = 600.0

Held = list[tuple[int, int]]
"""(idx, attempt) of the parts in hand."""


class Raw(Protocol):
    """The program on one database."""

    def create(self) -> None: ...
    def submit(self, parts: int) -> None: ...
    def round(self, held: Held, claim: str, following: str) -> Held:
        """Complete ``held``, claimed as ``claim``, and claim as ``following``, in one transaction."""

    def results(self) -> Iterator[int]: ...
    def ends(self) -> int: ...
    def close(self) -> None: ...


class RawPostgres:
    """A round is one implicit transaction, sent as a pipeline: one journey to the server."""

    PINS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off " \
        "-c enable_hashjoin=off -c enable_mergejoin=off -c jit=off"  # fmt: skip
    COMPLETE = """
        WITH done AS (
            UPDATE raw_part AS p SET status = 2, result = u.result
            FROM unnest(%s::int[], %s::int[], %s::text[]) AS u (idx, attempt, result)
            WHERE p.idx = u.idx AND p.status = 1 AND p.attempt = u.attempt AND p.claim_id = %s RETURNING 1
        ), counted AS (
            UPDATE raw_job SET remaining = remaining - (SELECT count(*)::int FROM done) WHERE id = 1 RETURNING remaining
        )
        INSERT INTO raw_outbox SELECT 1 FROM counted WHERE remaining = 0"""
    CLAIM = f"""
        WITH next AS MATERIALIZED (
            SELECT idx FROM raw_part WHERE status = 0 ORDER BY idx LIMIT {BATCH} FOR NO KEY UPDATE SKIP LOCKED)
        UPDATE raw_part AS p SET status = 1, attempt = p.attempt + 1, claim_id = %s,
            until = extract(epoch FROM statement_timestamp()) + {LEASE_SECONDS}
        FROM next WHERE p.idx = next.idx RETURNING p.idx, p.attempt, p.payload"""

    def __init__(self, address: str) -> None:
        import psycopg

        self.connection = psycopg.connect(address, autocommit=True, prepare_threshold=0, options=self.PINS)
        self.cursor = self.connection.cursor(binary=True)

    def create(self) -> None:
        self.drop()
        self.connection.execute(
            "CREATE TABLE raw_part (idx int PRIMARY KEY, status smallint NOT NULL, attempt int NOT NULL, "
            "claim_id uuid, until double precision, payload text NOT NULL, result text) WITH (fillfactor = 50); "
            "CREATE INDEX raw_ready ON raw_part (idx) WHERE status = 0; "
            "CREATE TABLE raw_job (id int PRIMARY KEY, remaining int NOT NULL) WITH (fillfactor = 10); "
            "CREATE TABLE raw_outbox (job int PRIMARY KEY)",
            prepare=False,
        )
        self.connection.execute("CHECKPOINT")

    def submit(self, parts: int) -> None:
        with self.connection.transaction():
            self.connection.execute("INSERT INTO raw_job VALUES (1, %s)", [parts])
            with self.cursor.copy("COPY raw_part (idx, status, attempt, payload) FROM STDIN") as copy:
                copy.write("".join(f"{n}\t0\t0\t[{n}]\n" for n in range(parts)))

    def round(self, held: Held, claim: str, following: str) -> Held:
        with self.connection.pipeline():
            if held:
                numbers = [idx for idx, _ in held]
                completed = [numbers, [attempt for _, attempt in held], [str(n) for n in numbers], claim]
                self.connection.execute(self.COMPLETE, completed)
            self.cursor.execute(self.CLAIM, [following])
        return [(idx, attempt) for idx, attempt, _ in self.cursor.fetchall()]

    def results(self) -> Iterator[int]:
        for (text,) in self.connection.execute("SELECT result FROM raw_part WHERE status = 2 ORDER BY idx"):
            yield int(text)

    def ends(self) -> int:
        return len(self.connection.execute("SELECT 1 FROM raw_outbox").fetchall())

    def drop(self) -> None:
        self.connection.execute("DROP TABLE IF EXISTS raw_part, raw_job, raw_outbox")

    def close(self) -> None:
        self.connection.close()


class RawSqlite:
    """A round is one BEGIN IMMEDIATE … COMMIT with the log synced, as durable as fanin's."""

    COMPLETE = (
        "UPDATE raw_part SET status = 2, result = ? WHERE idx = ? AND status = 1 AND attempt = ? AND claim_id = ?"
    )
    CLAIM = f"""
        UPDATE raw_part SET status = 1, attempt = attempt + 1, claim_id = ?, until = ?
        WHERE idx IN (SELECT idx FROM raw_part WHERE status = 0 ORDER BY idx LIMIT {BATCH})
        RETURNING idx, attempt, payload"""

    def __init__(self, address: str) -> None:
        import apsw

        self.connection = apsw.Connection(address)
        self.connection.set_busy_handler(_again)
        self.connection.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32768")

    def create(self) -> None:
        self.connection.execute(
            "CREATE TABLE raw_part (idx INTEGER PRIMARY KEY, status INTEGER NOT NULL, attempt INTEGER NOT NULL, "
            "claim_id TEXT, until REAL, payload TEXT NOT NULL, result TEXT); "
            "CREATE INDEX raw_ready ON raw_part (idx) WHERE status = 0; "
            "CREATE TABLE raw_job (id INTEGER PRIMARY KEY, remaining INTEGER NOT NULL); "
            "CREATE TABLE raw_outbox (job INTEGER PRIMARY KEY)"
        )

    def submit(self, parts: int) -> None:
        self.connection.execute("BEGIN IMMEDIATE; INSERT INTO raw_job VALUES (1, ?)", [parts])
        self.connection.executemany(
            "INSERT INTO raw_part (idx, status, attempt, payload) VALUES (?, 0, 0, ?)",
            ((n, f"[{n}]") for n in range(parts)),
        )
        self.connection.execute("COMMIT")

    def round(self, held: Held, claim: str, following: str) -> Held:
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        if held:
            self.connection.executemany(self.COMPLETE, ((str(n), n, attempt, claim) for n, attempt in held))
            counted = run("UPDATE raw_job SET remaining = remaining - ? WHERE id = 1 RETURNING remaining", [len(held)])
            if counted.fetchall() == [(0,)]:
                run("INSERT INTO raw_outbox VALUES (1)")
        claimed: list[Any] = run(self.CLAIM, [following, time.time() + LEASE_SECONDS]).fetchall()
        run("COMMIT")
        return [(idx, attempt) for idx, attempt, _ in claimed]

    def results(self) -> Iterator[int]:
        for (text,) in self.connection.execute("SELECT result FROM raw_part WHERE status = 2 ORDER BY idx"):
            yield int(text)

    def ends(self) -> int:
        return len(self.connection.execute("SELECT 1 FROM raw_outbox").fetchall())

    def close(self) -> None:
        self.connection.close()


def measure(database: Database, parts: int, workers: int) -> dict[str, float | None]:
    """``submit_parts_per_second`` and ``parts_per_second`` of the raw program."""
    with database.fresh() as url:
        address = url.removeprefix("sqlite:///") if database.name == "SQLite" else database.address
        raw = _open(database.name, address)
        raw.create()
        # Spawned, because no connection may cross a fork.
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(workers + 1, timeout=ROUNDS_SECONDS)
        running = [context.Process(target=_work, args=(database.name, address, barrier)) for _ in range(workers)]
        for process in running:
            process.start()
        barrier.wait(START_SECONDS)  # all are connected
        started = time.time()
        raw.submit(parts)
        submitted = time.time()
        barrier.wait()
        barrier.wait()  # all have found nothing left
        results = list(raw.results())
        done = time.time()
        for process in running:
            process.join()
        if results != list(range(parts)) or raw.ends() != 1:
            raise Void(f"the raw program lost something: {len(results)} of {parts} results, {raw.ends()} ends")
        if isinstance(raw, RawPostgres):
            raw.drop()
        raw.close()
    return {
        "submit_parts_per_second": parts / (submitted - started),
        "parts_per_second": parts / (done - started),
    }


def _work(name: str, address: str, barrier: Any) -> None:
    raw = _open(name, address)
    raw.ends()
    barrier.wait()
    barrier.wait()
    held: Held = []
    claim = ""
    while True:
        following = str(uuid.uuid4())
        held, claim = raw.round(held, claim, following), following
        if not held:
            break
    barrier.wait()
    raw.close()


def _again(_: int) -> bool:
    """SQLite asks whether to try for the lock once more; its own pauses are too long for a benchmark."""
    time.sleep(BUSY_SECONDS)
    return True


def _open(name: str, address: str) -> Raw:
    return RawSqlite(address) if name == "SQLite" else RawPostgres(address)
