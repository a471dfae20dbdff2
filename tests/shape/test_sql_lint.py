"""Each rule of the SQL lint catches the mistake that it is for, and the protocol's rooms have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fanin.protocol import steps
from tools.sql_lint import PROTOCOL, lint, main
from tools.sql_lint_rules import lint_migration, lint_room
from tools.sql_lint_text import cut

TABLES = {"job", "job_stripe", "part", "outbox"}


def rules(tmp_path: Path, sql: str, python: str | None = None) -> list[str]:
    """The rules that a room of these statements breaks. Without ``python`` each statement counts as used."""
    (tmp_path / "room.sql").write_text(sql)
    names = {text.name for text in cut(tmp_path / "room.sql")}
    (tmp_path / "room.py").write_text(python or "\n".join(f"SQL.{name}" for name in sorted(names)))
    findings, _ = lint_room(tmp_path / "room.sql", TABLES)
    return [finding.rule for finding in findings]


def statement(sql: str, heading: str = "-- Why it is so.") -> str:
    return f"-- name: it\n{heading}\n{sql};\n"


CLAIM = """WITH c AS MATERIALIZED (
    SELECT p.ctid AS place FROM fanin.part AS p WHERE p.bucket = :bucket AND p.ready
    ORDER BY p.turn LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED)
UPDATE fanin.part AS p SET attempt = p.attempt + 1, due_at = fanin.clock() + :lease
FROM c WHERE p.ctid = c.place AND p.ready RETURNING p.idx"""

SETTLE = """WITH mine AS MATERIALIZED (
    SELECT held.ctid AS place, u.verb FROM unnest(:idx::int[], :verb::text[]) AS u (idx, verb)
    CROSS JOIN LATERAL (SELECT p.ctid FROM fanin.part AS p
        WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = u.idx FOR NO KEY UPDATE) AS held)
UPDATE fanin.part AS p SET status = m.verb FROM mine AS m
WHERE p.ctid = m.place AND p.status = 'running' RETURNING p.idx"""


@pytest.mark.parametrize("sql", [CLAIM, SETTLE], ids=["claim", "settle"])
def test_a_batch_in_the_right_form_passes(tmp_path: Path, sql: str) -> None:
    assert rules(tmp_path, statement(sql)) == []


@pytest.mark.parametrize(
    "sql",
    [
        CLAIM.replace(" SKIP LOCKED", ""),
        "UPDATE fanin.part SET ready = false WHERE bucket = :bucket AND idx IN ("
        "SELECT p.idx FROM fanin.part AS p WHERE p.bucket = :bucket LIMIT 2 FOR NO KEY UPDATE SKIP LOCKED)",
        "UPDATE fanin.part SET ready = false WHERE bucket = :bucket AND idx IN ("
        "SELECT p.idx FROM fanin.part AS p WHERE p.bucket = :bucket FOR NO KEY UPDATE SKIP LOCKED)",
        "DELETE FROM fanin.job AS d USING (SELECT j.id FROM fanin.job AS j WHERE j.bucket = :bucket "
        "LIMIT 2) AS x WHERE d.bucket = :bucket AND d.id = x.id",
        SETTLE.replace("FOR NO KEY UPDATE", "LIMIT 1 FOR NO KEY UPDATE"),
    ],
    ids=["waits", "IN with LIMIT", "IN with a lock", "USING with LIMIT", "LIMIT in a lateral"],
)
def test_a_limited_write_in_another_form_is_caught(tmp_path: Path, sql: str) -> None:
    assert rules(tmp_path, statement(sql)) == ["claim"]


@pytest.mark.parametrize(
    ("sql", "broken"),
    [
        (CLAIM.replace("AS MATERIALIZED", "AS"), ["claim", "bucket", "place"]),
        (CLAIM.replace("FOR NO KEY UPDATE SKIP LOCKED", ""), ["claim", "bucket", "place"]),
        (CLAIM.replace("p.bucket = :bucket AND", ""), ["bucket", "place"]),
        (CLAIM.replace("p.bucket = :bucket", "(p.bucket = :bucket OR p.ready)"), ["bucket", "place"]),
        (CLAIM.replace("SELECT p.ctid", "SELECT p.xmin"), ["bucket", "place"]),
        (CLAIM.replace("p.ctid = c.place", "p.ctid = c.other"), ["bucket", "place"]),
        (CLAIM.replace("p.ctid = c.place", "p.ctid = :place"), ["bucket", "place"]),
        (CLAIM.replace("UPDATE fanin.part AS p", "UPDATE fanin.job AS p"), ["bucket", "place"]),
        (CLAIM.replace(" AND p.ready RETURNING", " RETURNING"), ["place"]),
        (CLAIM.replace("AND p.ready RETURNING", "AND c.ready RETURNING"), ["place"]),
        (SETTLE.replace("AS MATERIALIZED", "AS"), ["claim", "bucket", "place"]),
        (SETTLE.replace("CROSS JOIN LATERAL", "CROSS JOIN"), ["claim", "bucket", "place"]),
        (SETTLE.replace(" FOR NO KEY UPDATE", ""), ["bucket", "place"]),
        (SETTLE.replace("p.bucket = :bucket AND", ""), ["bucket", "place"]),
        (SETTLE.replace("AND p.status = 'running'", ""), ["place"]),
        ("UPDATE fanin.part AS p SET ready = false FROM unnest(:idx::int[]) AS u (idx) "
         "WHERE p.bucket = :bucket AND p.job_id = :job_id AND p.idx = u.idx AND p.ready", ["place"]),
    ],
    ids=[
        "not materialized", "not locked", "no bucket", "a bucket that is no conjunct", "another column",
        "a column that is no place", "a place from outside", "a place in another table", "no guard",
        "a guard on the wrong table", "list not materialized", "list not lateral", "list not locked",
        "list without bucket", "list without guard", "a plain join on a list",
    ],
)  # fmt: skip
def test_a_write_by_a_place_that_is_not_locked_and_guarded_is_caught(
    tmp_path: Path, sql: str, broken: list[str]
) -> None:
    said = rules(tmp_path, statement(sql))
    assert sorted(set(said)) == sorted(broken)


@pytest.mark.parametrize("strength", ["FOR UPDATE", "FOR SHARE", "FOR KEY SHARE"])
def test_a_lock_of_another_strength_is_caught(tmp_path: Path, strength: str) -> None:
    sql = f"SELECT stripe FROM fanin.job_stripe WHERE bucket = :bucket AND job_id = :job_id {strength}"
    assert rules(tmp_path, statement(sql)) == ["lock"]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE fanin.job SET status = 'running' WHERE id = :id",
        "UPDATE fanin.job SET status = 'running' WHERE id = :id AND (bucket = :bucket OR run = 1)",
        "UPDATE fanin.job AS j SET run = 2 FROM fanin.part AS p WHERE p.bucket = :bucket AND j.bucket = p.bucket",
        "UPDATE fanin.job AS j SET run = 2 FROM fanin.part AS p WHERE j.bucket = :bucket AND j.id = p.job_id",
        SETTLE.replace("fanin.part", "fanin.job_stripe").replace("p.ctid = m.place", "p.stripe = m.place"),
        "DELETE FROM fanin.part WHERE job_id = :job_id",
        "SELECT idx FROM fanin.part WHERE job_id = :job_id FOR NO KEY UPDATE",
        "SELECT p.idx FROM fanin.part AS p JOIN fanin.job AS j ON j.id = p.job_id WHERE j.bucket = :bucket",
        "SELECT id FROM fanin.job AS j WHERE bucket = :bucket AND EXISTS (SELECT 1 FROM fanin.part AS p "
        "WHERE p.job_id = j.id)",
        "SELECT count(*) FROM fanin.job",
        "SELECT id FROM fanin.job WHERE bucket = :bucket UNION ALL SELECT job_id FROM fanin.part",
        "INSERT INTO fanin.outbox (event_key) VALUES (:key)",
        "INSERT INTO fanin.outbox (bucket, event_key) VALUES (:bucket, :key) ON CONFLICT (event_key) DO NOTHING",
        "INSERT INTO fanin.outbox (bucket, event_key) SELECT j.bucket, j.key FROM fanin.job AS j",
    ],
    ids=[
        "UPDATE",
        "OR is no conjunct",
        "a write by a join alone",
        "the table beside a write",
        "a join on a locked CTE without its place",
        "DELETE",
        "lock",
        "joined by id alone",
        "EXISTS by id alone",
        "read",
        "UNION",
        "INSERT",
        "ON CONFLICT",
        "INSERT from SELECT",
    ],
)
def test_a_statement_that_leaves_its_bucket_open_is_caught(tmp_path: Path, sql: str) -> None:
    assert rules(tmp_path, statement(sql)) == ["bucket"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT p.idx FROM fanin.part AS p JOIN fanin.job AS j ON j.bucket = p.bucket AND j.id = p.job_id "
        "WHERE p.bucket = :bucket",
        "SELECT idx FROM fanin.part AS p JOIN fanin.job AS j USING (bucket) WHERE j.bucket = :bucket::smallint",
        "SELECT id FROM fanin.job AS j WHERE bucket = :bucket AND EXISTS (SELECT 1 FROM fanin.part AS p "
        "WHERE (p.bucket, p.job_id) = (j.bucket, j.id))",
        "INSERT INTO fanin.outbox (bucket, event_key) VALUES (:bucket, :key) "
        "ON CONFLICT (bucket, event_key) DO NOTHING",
        "SELECT value FROM fanin.setting WHERE name = 'buckets'",
    ],
    ids=["joined by bucket", "USING", "rows compared", "INSERT", "a table without buckets"],
)
def test_a_statement_that_names_its_bucket_passes(tmp_path: Path, sql: str) -> None:
    assert rules(tmp_path, statement(sql)) == []


def test_only_a_read_may_ask_for_all_buckets(tmp_path: Path) -> None:
    heading = "-- Why it is so.\n-- all buckets"
    assert rules(tmp_path, statement("SELECT count(*) FROM fanin.job", heading)) == []
    assert rules(tmp_path, statement("UPDATE fanin.job SET run = 2", heading)) == ["bucket"]
    assert rules(tmp_path, statement("SELECT id FROM fanin.job FOR NO KEY UPDATE", heading)) == ["bucket"]


@pytest.mark.parametrize("clock", ["now()", "clock_timestamp()", "statement_timestamp()", "CURRENT_TIMESTAMP"])
def test_a_clock_other_than_our_own_is_caught(tmp_path: Path, clock: str) -> None:
    assert rules(tmp_path, statement(f"SELECT {clock}")) == ["time"]


@pytest.mark.parametrize("call", ["random()", "gen_random_uuid()", "nextval('s')"])
def test_a_volatile_function_in_a_write_is_caught(tmp_path: Path, call: str) -> None:
    sql = f"UPDATE fanin.part SET worker = {call} WHERE bucket = :bucket AND idx = :idx"
    assert rules(tmp_path, statement(sql)) == ["volatile"]


def test_a_fifth_line_for_one_database_is_caught(tmp_path: Path) -> None:
    four = "\n".join(f"SELECT {n} --lite" for n in range(3)) + "\nSELECT :x --pg\n"
    assert rules(tmp_path, statement(four)) == []
    assert rules(tmp_path, statement("SELECT 9 --lite\n" + four)) == ["tags"]


def test_a_statement_without_a_why_is_caught(tmp_path: Path) -> None:
    assert rules(tmp_path, "-- name: it\n-- rows: a, b\nSELECT :a, :b;\n") == ["why"]


def test_an_unused_statement_and_an_unknown_name_are_caught(tmp_path: Path) -> None:
    assert rules(tmp_path, statement("SELECT 1"), python="SQL.other\n") == ["used", "used"]


def test_a_statement_taken_by_getattr_is_used_if_its_name_is_written_down(tmp_path: Path) -> None:
    by_table = "TABLE = {'%s': 'a sentence'}\ndef get(name): return getattr(SQL, name)\n"
    assert rules(tmp_path, statement("SELECT 1"), python=by_table % "it") == []
    assert rules(tmp_path, statement("SELECT 1"), python=by_table % "other") == ["used"]


def test_a_name_given_twice_is_caught_unless_each_is_for_one_database(tmp_path: Path) -> None:
    once = statement("SELECT 1")
    assert rules(tmp_path, once + once) == ["used"]
    both = once.replace(": it", ": it --pg") + once.replace(": it", ": it --lite")
    assert rules(tmp_path, both) == []
    assert rules(tmp_path, both + once) == ["used", "used"]


@pytest.mark.parametrize("sql", ["SELEC 1", "SELECT 1; SELECT 2"])
def test_a_text_that_is_not_one_statement_is_caught(tmp_path: Path, sql: str) -> None:
    assert rules(tmp_path, statement(sql)) == ["parse"]


@pytest.mark.parametrize(
    "ddl",
    [
        "CREATE TABLE fanin.t (bucket smallint, id uuid, PRIMARY KEY (id, bucket))",
        "CREATE TABLE fanin.t (bucket smallint, id uuid PRIMARY KEY)",
        "CREATE TABLE fanin.t (bucket smallint, id uuid)",
        "CREATE TABLE fanin.t (id uuid PRIMARY KEY)",
        "CREATE TABLE fanin.t (bucket smallint, id uuid, k text UNIQUE, PRIMARY KEY (bucket, id))",
        "CREATE TABLE fanin.t (bucket smallint, id uuid, k text, PRIMARY KEY (bucket, id), UNIQUE (id, k))",
        "CREATE TABLE fanin.t (bucket smallint, id uuid, PRIMARY KEY (bucket, id));"
        "CREATE UNIQUE INDEX i ON fanin.t (id)",
    ],
    ids=[
        "bucket not first",
        "id alone",
        "no key",
        "no bucket",
        "unique column",
        "unique columns",
        "unique index",
    ],
)
def test_a_key_without_its_bucket_is_caught(tmp_path: Path, ddl: str) -> None:
    path = tmp_path / "0001.pg.sql"
    path.write_text(f"{ddl};\n")
    assert [finding.rule for finding in lint_migration(path)[0]] == ["key"]


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 2


def test_the_lint_reads_what_the_loader_loads() -> None:
    rooms = [path.stem for path in PROTOCOL.glob("*.sql")]
    for room in rooms:
        loaded = {query.name for query in steps.parse(room, steps.read(room))}
        assert {text.name for text in cut(PROTOCOL / f"{room}.sql")} == loaded
    assert "submit" in rooms


def test_the_rooms_of_the_protocol_pass() -> None:
    findings, rooms, _ = lint(PROTOCOL)
    assert [f"{f.path.name}:{f.line} [{f.rule}] {f.name}: {f.message}" for f in findings] == []
    assert rooms >= 3


def test_every_room_has_its_transactions_beside_its_statements() -> None:
    rooms = {path.stem for path in PROTOCOL.glob("*.sql")}
    assert rooms == {path.stem for path in PROTOCOL.glob("*.py")} - {
        "__init__",
        "steps",
        "exchange",
    }  # made of other rooms' own
