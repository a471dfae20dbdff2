"""The raw program on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from bench.raw import Held
from fanin.domain.limits import CLAIM_PARTS


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
    CLAIM = """
        WITH next AS MATERIALIZED (
            SELECT idx FROM raw_part WHERE status = 0 ORDER BY idx LIMIT {batch} FOR NO KEY UPDATE SKIP LOCKED)
        UPDATE raw_part AS p SET status = 1, attempt = p.attempt + 1, claim_id = %s,
            until = extract(epoch FROM statement_timestamp()) + 60
        FROM next WHERE p.idx = next.idx RETURNING p.idx, p.attempt, p.payload"""

    def __init__(self, address: str, batch: int = CLAIM_PARTS) -> None:
        self.claim = self.CLAIM.replace("{batch}", str(batch))  # a parameter would hide it from the planner
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
            self.cursor.execute(self.claim, [following])
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
