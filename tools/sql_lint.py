"""Hold the rules of the protocol's SQL: python tools/sql_lint.py [directory of the rooms].

The rules are those that a reader forgets and a database forgives until the day of the race:

claim       a LIMIT inside an UPDATE or DELETE stands in a MATERIALIZED CTE that locks FOR NO KEY UPDATE SKIP
            LOCKED; anywhere else the limit can be evaluated again and more rows change than it says
lock        rows are locked FOR NO KEY UPDATE: foreign-key checks hold KEY SHARE, and no lock is upgraded
place       parts that a list or a LIMIT chooses are written by `p.ctid = x.place`, where x is a MATERIALIZED
            CTE that has locked them in this bucket (itself, or in a lateral sub-select), and with a guard on
            status or ready; a join on a list may be planned as a scan of all parts of a job
bucket      a write or a lock names its bucket by a parameter (a write by place: its CTE does), a read names
            it or is joined to it, unless its heading says `-- all buckets`; an INSERT and its ON CONFLICT
            list the column
time        time is read through fanin.clock() alone, so that tests can move it
volatile    no volatile function in an UPDATE or DELETE: a sharded database refuses it
key         the primary key of a table begins with bucket, a unique index contains it
tags        at most four lines of a statement are for one database only
why         a statement has a comment that says why
used        each statement is used by the room's Python file, and each name used there exists
parse       the text is one PostgreSQL statement

Exit status: 0 clean, 1 with findings, 2 when there was nothing to read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.sql_lint_rules import Finding, lint_migration, lint_room

PROTOCOL = Path(__file__).resolve().parent.parent / "src" / "fanin" / "protocol"


def lint(directory: Path) -> tuple[list[Finding], int, int]:
    """The findings of all rooms and migrations below a directory, the number of rooms and of statements."""
    findings: list[Finding] = []
    tables: set[str] = set()
    for path in sorted(directory.glob("migrations/*.sql")):
        if path.name.endswith(".lite.sql"):
            continue  # the same keys by the golden schemas; PostgreSQL's parser cannot read it
        found, with_bucket = lint_migration(path)
        findings += found
        tables |= with_bucket
    rooms = statements = 0
    for path in sorted(directory.glob("*.sql")):
        found, count = lint_room(path, tables)
        findings += found
        statements += count
        rooms += 1
    return findings, rooms, statements


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0]) if arguments else PROTOCOL
    findings, rooms, statements = lint(directory)
    for line in _report(findings):
        print(line)
    if not statements:
        print(f"sql lint: no statement found in {directory}/*.sql", file=sys.stderr)
        return 2
    print(f"sql lint: {statements} statements in {rooms} rooms, {len(findings)} findings")
    return 1 if findings else 0


def _report(findings: list[Finding]) -> Iterator[str]:
    for finding in sorted(findings, key=lambda f: (str(f.path), f.line)):
        yield f"{finding.path}:{finding.line}: [{finding.rule}] {finding.name}: {finding.message}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
