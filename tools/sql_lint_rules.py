"""The rules of sql_lint, one function each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pglast import ast, enums, parse_sql
from pglast.parser import ParseError

from tools.sql_lint_scope import Level, laterals, levels, located, walk
from tools.sql_lint_text import Text, cut, names_used

MOST_TAGGED_LINES = 4
CLOCKS = {"now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timeofday"}
VOLATILE = {
    "random",
    "gen_random_uuid",
    "uuidv4",
    "uuidv7",
    "nextval",
    "setval",
    "txid_current",
    "pg_current_xact_id",
}
GUARDS = {"status", "ready"}
"""What a write by place must look at again: the row may have changed between the snapshot and the lock."""
WITHOUT_BUCKET = {"migration", "setting"}
ALLOWED_LOCKS = {("submit", "hold_parent")}
"""(room, statement) that may lock otherwise than FOR NO KEY UPDATE."""
ALLOWED_LIMITS: set[tuple[str, str]] = set()
"""(room, statement) that may limit inside a write without the claim form."""

Said = tuple[str, str]
"""A rule and what it has to say."""


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    name: str
    rule: str
    message: str


def lint_room(path: Path, tables: set[str]) -> tuple[list[Finding], int]:
    """The findings of one room, and how many statements it has. ``tables`` are those with a bucket column."""
    texts = cut(path)
    findings = [
        Finding(path, text.line, text.name, rule, message)
        for text in texts
        for rule, message in _lint_text(path.stem, text, tables)
    ]
    for (name, only), count in Counter((t.name, t.only) for t in texts).items():
        if count > 1 or (only and any(t.name == name and t.only is None for t in texts)):
            findings.append(Finding(path, 1, name, "used", "the name is given twice"))
    sibling = path.with_suffix(".py")
    written, mentioned = names_used(sibling) if sibling.exists() else (set(), set())
    for text in texts:
        if text.name not in written | mentioned:
            findings.append(Finding(path, text.line, text.name, "used", f"{sibling.name} never says SQL.{text.name}"))
    for name in sorted(written - {t.name for t in texts}):
        findings.append(Finding(sibling, 1, name, "used", f"{path.name} has no such statement"))
    return findings, len(texts)


def lint_migration(path: Path) -> tuple[list[Finding], set[str]]:
    """The findings of one migration for PostgreSQL, and its tables that have a bucket column."""
    try:
        statements = [raw.stmt for raw in parse_sql(path.read_text("utf-8"))]
    except ParseError as error:
        return [Finding(path, 1, path.stem, "parse", str(error))], set()
    created = [s for s in statements if isinstance(s, ast.CreateStmt)]
    tables = {s.relation.relname for s in created if "bucket" in _columns(s)}
    findings = [
        Finding(path, 1, s.relation.relname, rule, message) for s in created for rule, message in _table_keys(s)
    ]
    for s in statements:
        if isinstance(s, ast.IndexStmt) and s.unique and s.relation.relname in tables:
            names = [p.name for p in s.indexParams]
            if "bucket" not in names:
                findings.append(Finding(path, 1, s.idxname, "key", f"unique index on {names} without bucket"))
    return findings, tables


def _lint_text(room: str, text: Text, tables: set[str]) -> Iterator[Said]:
    if len(text.tagged) > MOST_TAGGED_LINES:
        yield "tags", f"{len(text.tagged)} lines are for one database only, the limit is {MOST_TAGGED_LINES}"
    if not any(comment for comment in text.comments if not comment.startswith("all buckets")):
        yield "why", "no comment says why"
    if text.only == "lite":
        return
    try:
        statements = [raw.stmt for raw in parse_sql(text.for_postgres())]
    except ParseError as error:
        yield "parse", str(error)
        return
    if len(statements) != 1 or not text.for_postgres().endswith(";"):
        yield "parse", f"{len(statements)} statements under one name, or no ';' at the end"
    key = (room, text.name)
    for statement in statements:
        if key not in ALLOWED_LIMITS:
            yield from _claim_form(statement)
        if key not in ALLOWED_LOCKS:
            yield from _lock_strength(statement)
        yield from _bucket(statement, tables, reads=not text.all_buckets)
        yield from _place(statement, tables)
        yield from _functions(statement)


def _claim_form(statement: Any) -> Iterator[Said]:
    nodes = list(walk(statement))
    if not any(isinstance(node, (ast.UpdateStmt, ast.DeleteStmt)) for node in nodes):
        return
    # A CTE beside the write belongs to it as well: the write may read it, however deep it is nested.
    claims = {id(c.ctequery) for c in _ctes(statement) if _is_claim(c)}
    materialised = {id(c.ctequery) for c in _ctes(statement) if _is_materialised(c)}
    # Row by row in a lateral sub-select of such a CTE: as if the CTE itself had locked.
    materialised |= {
        id(lateral.subquery) for c in _ctes(statement) if _is_materialised(c) for lateral in laterals(c.ctequery)
    }
    for select in nodes:
        if not isinstance(select, ast.SelectStmt):
            continue
        if select.limitCount is not None and id(select) not in claims:
            yield (
                "claim",
                "LIMIT inside a write, not in a MATERIALIZED CTE with FOR NO KEY UPDATE SKIP LOCKED",
            )
        elif select.lockingClause and id(select) not in materialised:
            yield "claim", "rows are locked inside a write, not in a MATERIALIZED CTE"


def _ctes(statement: Any) -> list[Any]:
    return [node for node in walk(statement) if isinstance(node, ast.CommonTableExpr)]


def _is_materialised(cte: Any) -> bool:
    return bool(cte.ctematerialized == enums.CTEMaterialize.CTEMaterializeAlways)


def _is_claim(cte: Any) -> bool:
    clauses = getattr(cte.ctequery, "lockingClause", None) or ()
    return _is_materialised(cte) and any(
        c.strength == enums.LockClauseStrength.LCS_FORNOKEYUPDATE and c.waitPolicy == enums.LockWaitPolicy.LockWaitSkip
        for c in clauses
    )


def _lock_strength(statement: Any) -> Iterator[Said]:
    for node in walk(statement):
        if isinstance(node, ast.LockingClause) and node.strength != enums.LockClauseStrength.LCS_FORNOKEYUPDATE:
            yield "lock", f"{node.strength.name} instead of FOR NO KEY UPDATE"


def _bucket(statement: Any, tables: set[str], *, reads: bool) -> Iterator[Said]:
    found = located(statement, tables)
    for level in levels(statement):
        placed = _placed(level, found)
        for source in level.unbound(tables, reads=reads):
            if placed and source.use == "written":
                continue
            yield (
                "bucket",
                f"{source.table} AS {source.alias} is {source.use} without {source.alias}.bucket = :bucket",
            )
    for node in walk(statement):
        if isinstance(node, ast.InsertStmt) and node.relation.relname in tables:
            if "bucket" not in [column.name for column in node.cols or ()]:
                yield "bucket", f"INSERT INTO {node.relation.relname} does not list bucket"
            conflict = node.onConflictClause
            if conflict and conflict.infer and "bucket" not in [e.name for e in conflict.infer.indexElems or ()]:
                yield "bucket", f"ON CONFLICT of {node.relation.relname} does not list bucket"


def _place(statement: Any, tables: set[str]) -> Iterator[Said]:
    found = located(statement, tables)
    for level in levels(statement):
        target = level.written
        if target is None:
            continue
        if level.places:
            if not _placed(level, found):
                yield (
                    "place",
                    "written by a place that no MATERIALIZED CTE has locked in this bucket",
                )
            elif not level.guards() & GUARDS:
                yield (
                    "place",
                    f"written by place without a guard on {' or '.join(sorted(GUARDS))}",
                )
        elif target.table == "part" and len(level.sources) > 1:
            yield (
                "place",
                "parts joined to a list: write them by the place under lock",
            )


def _placed(level: Level, found: dict[tuple[str, str], str]) -> bool:
    """Whether the written rows are found by their place, under a lock that this statement has taken."""
    target = level.written
    return target is not None and any(
        side == target.alias
        and other in level.sources
        and found.get((level.sources[other].cte or "", column)) == target.table
        for side, other, column in level.places
        if other is not None
    )


def _functions(statement: Any) -> Iterator[Said]:
    for node in walk(statement):
        if isinstance(node, ast.SQLValueFunction) or _called(node) in CLOCKS:
            yield "time", f"{_called(node) or 'CURRENT_...'} instead of fanin.clock()"
        if isinstance(node, (ast.UpdateStmt, ast.DeleteStmt)):
            for name in sorted({name for n in walk(node) if (name := _called(n)) in VOLATILE}):
                yield "volatile", f"{name}() inside an UPDATE or DELETE"


def _called(node: Any) -> str | None:
    return node.funcname[-1].sval if isinstance(node, ast.FuncCall) else None


def _columns(table: Any) -> list[str]:
    return [e.colname for e in table.tableElts if isinstance(e, ast.ColumnDef)]


def _table_keys(table: Any) -> Iterator[Said]:
    name = table.relation.relname
    if "bucket" not in _columns(table):
        if name not in WITHOUT_BUCKET:
            yield "key", "the table has no bucket column"
        return
    primary = 0
    for kind, names in _constraints(table):
        if kind == enums.ConstrType.CONSTR_PRIMARY:
            primary += 1
            if names[0] != "bucket":
                yield "key", f"the primary key {names} does not begin with bucket"
        elif kind == enums.ConstrType.CONSTR_UNIQUE and "bucket" not in names:
            yield "key", f"UNIQUE {names} without bucket"
    if not primary:
        yield "key", "the table has no primary key"


def _constraints(table: Any) -> Iterator[tuple[Any, list[str]]]:
    for element in table.tableElts:
        if isinstance(element, ast.Constraint) and element.keys:
            yield element.contype, [key.sval for key in element.keys]
        elif isinstance(element, ast.ColumnDef):
            for constraint in element.constraints or ():
                yield constraint.contype, [element.colname]
