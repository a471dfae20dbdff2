"""The schema as text, read from the database's own catalogue: what a migration has really made."""

from __future__ import annotations

from typing import Any

import apsw

COLUMNS = """
SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid),
    a.attstorage <> t.typstorage AND a.attstorage = 'e'
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""
CONSTRAINTS = """
SELECT c.relname, pg_get_constraintdef(k.oid) FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
WHERE k.connamespace = to_regnamespace(%(schema)s) AND k.contype <> 'n' ORDER BY c.relname, k.contype DESC, 2
"""
INDEXES = """
SELECT c.relname, pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE c.relnamespace = to_regnamespace(%(schema)s) ORDER BY c.relname, 2
"""
OPTIONS = """
SELECT relname, array_to_string(reloptions, ', ') FROM pg_class
WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind = 'r' AND reloptions IS NOT NULL ORDER BY relname
"""
FUNCTIONS = (
    "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s) ORDER BY proname"
)
OTHERS = """
SELECT relkind::text || ' ' || relname FROM pg_class
WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind NOT IN ('r', 'i') ORDER BY 1
"""


def of_postgres(connection: Any, schema: str) -> str:
    """Tables with their columns, constraints, options and indexes, and the functions. The schema is called fanin."""
    named = {"schema": f'"{schema}"'}

    def rows(query: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = connection.execute(query, named).fetchall()
        return found

    tables: dict[str, list[str]] = {}
    for table, name, kind, required, default, external in rows(COLUMNS):
        words = [f"    {name} {kind}", "not null" if required else "", f"default {default}" if default else ""]
        tables.setdefault(table, []).append(" ".join(filter(None, [*words, "external" if external else ""])))
    for query in (CONSTRAINTS, INDEXES):
        for table, text in rows(query):
            tables[table].append(f"    {text}")
    for table, options in rows(OPTIONS):
        tables[table].append(f"    with ({options})")
    pieces = [f"{table}\n" + "\n".join(lines) for table, lines in sorted(tables.items())]
    pieces += [text.strip() for (text,) in rows(FUNCTIONS)]
    pieces += [text for (text,) in rows(OTHERS)]
    return "\n\n".join(pieces).replace(f"{schema}.", "fanin.") + "\n"


def of_sqlite(connection: apsw.Connection) -> str:
    """The statements that made what stands in the file."""
    found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY tbl_name, type DESC, name")
    return "\n\n".join(str(text) for (text,) in found) + "\n"
