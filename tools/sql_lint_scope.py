"""Which tables does each level of a statement touch, how, and is each tied to its bucket?

A level is one SELECT, UPDATE, DELETE or INSERT with its own FROM; a sub-select sees the aliases around it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pglast import ast, enums

Side = str | None
"""An alias, or None for an unqualified column."""


@dataclass
class Source:
    """A table in a FROM, or the target of a write."""

    alias: str
    table: str | None
    """None for a CTE, a function or a sub-select: those are judged at their own level."""
    use: str = "read"
    """``read``, ``locked`` or ``written``."""
    cte: str | None = None
    """The name after FROM, where it has no schema."""


@dataclass
class Level:
    outer: Level | None
    sources: dict[str, Source] = field(default_factory=dict)
    parameter: set[Side] = field(default_factory=set)
    """Sides with ``side.bucket = $n``."""
    equal: list[tuple[Side, Side]] = field(default_factory=list)
    """Pairs with ``a.bucket = b.bucket``."""
    places: list[tuple[Side, Side, str]] = field(default_factory=list)
    """(a, b, column) with ``a.ctid = b.column``."""
    conditions: list[Any] = field(default_factory=list)
    """What AND joins in the WHERE and in the ON of joins."""

    @property
    def written(self) -> Source | None:
        return next((s for s in self.sources.values() if s.use == "written"), None)

    def guards(self) -> set[str]:
        """The columns of the written table that a condition names."""
        target = self.written
        refs = [_column(node) for condition in self.conditions for node in walk(condition)]
        return {name for side, name in filter(None, refs) if target and side in (None, target.alias)}

    def bound_lock(self, tables: set[str]) -> str | None:
        """The one table whose rows this level locks, each in the bucket of the parameter."""
        locked = [s for s in self.sources.values() if s.use == "locked"]
        open_ones = {s.alias for s in self.unbound(tables, reads=True)}
        return locked[0].table if len(locked) == 1 and locked[0].alias not in open_ones else None

    def unbound(self, tables: set[str], *, reads: bool) -> Iterator[Source]:
        """The tables with a bucket column that this level leaves open. Reads are looked at only if asked."""
        mine = [s for s in self.sources.values() if s.table in tables]
        strict = self._named(self.parameter, mine)
        tied = self._tied(strict, mine)
        for source in mine:
            if source.use == "read":
                if reads and source.alias not in tied:
                    yield source
            elif source.alias not in strict:
                yield source

    def visible(self) -> set[str]:
        """The aliases whose bucket an inner level may lean on."""
        return set(self.sources) | (self.outer.visible() if self.outer else set())

    def _named(self, sides: set[Side], mine: list[Source]) -> set[str]:
        named = {side for side in sides if side is not None}
        if None in sides:  # unqualified: the target of the write, or the only table that has the column
            targets = [s for s in mine if s.use == "written"] or mine
            if len(targets) == 1:
                named.add(targets[0].alias)
        return named

    def _tied(self, strict: set[str], mine: list[Source]) -> set[str]:
        tied = strict | {s.alias for s in self.sources.values() if s.table is None}
        if self.outer:
            tied |= self.outer.visible()
        tied -= {s.alias for s in mine} - strict
        pairs = [(a or self._single(mine), b or self._single(mine)) for a, b in self.equal]
        for _ in self.sources:
            for a, b in pairs:
                if a in tied or b in tied:
                    tied |= {x for x in (a, b) if x is not None}
        return tied

    @staticmethod
    def _single(mine: list[Source]) -> str | None:
        return mine[0].alias if len(mine) == 1 else None


def levels(node: Any, outer: Level | None = None) -> Iterator[Level]:
    """All levels of a statement, the outermost first."""
    level = Level(outer)
    inner: list[Any] = []
    if isinstance(node, ast.SelectStmt) and node.op != enums.SetOperation.SETOP_NONE:
        yield from levels(node.larg, outer)
        yield from levels(node.rarg, outer)
        for part in (node.withClause, node.sortClause):
            inner += _selects(part)
    else:
        _target(level, node)
        for item in getattr(node, "fromClause", None) or getattr(node, "usingClause", None) or ():
            _from(level, item, inner)
        _conjuncts(level, getattr(node, "whereClause", None))
        _locks(level, node)
        yield level
        for name in node:
            if name not in ("fromClause", "usingClause"):
                inner += _selects(getattr(node, name))
    for select in inner:
        yield from levels(select, level)


def _target(level: Level, node: Any) -> None:
    if isinstance(node, (ast.UpdateStmt, ast.DeleteStmt)):
        _add(level, node.relation, "written")


def _add(level: Level, table: Any, use: str) -> None:
    alias = table.alias.aliasname if table.alias else table.relname
    ours = table.schemaname == "fanin"
    level.sources[alias] = Source(alias, table.relname if ours else None, use, None if ours else table.relname)


def _from(level: Level, item: Any, inner: list[Any]) -> None:
    if isinstance(item, ast.RangeVar):
        _add(level, item, "read")
    elif isinstance(item, ast.JoinExpr):
        before = set(level.sources)
        _from(level, item.larg, inner)
        left = set(level.sources) - before
        _from(level, item.rarg, inner)
        if any(column.sval == "bucket" for column in item.usingClause or ()):
            right = set(level.sources) - before - left
            level.equal += [(a, b) for a in left for b in right]
        _conjuncts(level, item.quals)
        inner += _selects(item.quals)
    else:
        alias = item.alias.aliasname if getattr(item, "alias", None) else ""
        level.sources[alias] = Source(alias, None)
        inner += _selects(item)


def _locks(level: Level, node: Any) -> None:
    for clause in getattr(node, "lockingClause", None) or ():
        named = [relation.relname for relation in clause.lockedRels or ()]
        for source in level.sources.values():
            if source.use == "read" and (not named or source.alias in named):
                source.use = "locked"


def _conjuncts(level: Level, node: Any) -> None:
    if isinstance(node, ast.BoolExpr) and node.boolop == enums.BoolExprType.AND_EXPR:
        for part in node.args:
            _conjuncts(level, part)
        return
    if node is not None:
        level.conditions.append(node)
    if isinstance(node, ast.A_Expr) and node.kind == enums.A_Expr_Kind.AEXPR_OP and node.name[-1].sval == "=":
        _equality(level, node.lexpr, node.rexpr)


def _equality(level: Level, left: Any, right: Any) -> None:
    if isinstance(left, ast.RowExpr) and isinstance(right, ast.RowExpr):
        for a, b in zip(left.args, right.args, strict=True):
            _equality(level, a, b)
        return
    for place, other in ((_column(left), _column(right)), (_column(right), _column(left))):
        if place and other and place[1] == "ctid":
            level.places.append((place[0], *other))
    a, b = _bucket_side(left), _bucket_side(right)
    if a and b:
        level.equal.append((a[0], b[0]))
    elif a and _is_parameter(right):
        level.parameter.add(a[0])
    elif b and _is_parameter(left):
        level.parameter.add(b[0])


def _bucket_side(node: Any) -> tuple[Side] | None:
    column = _column(node)
    return (column[0],) if column and column[1] == "bucket" else None


def _column(node: Any) -> tuple[Side, str] | None:
    """The alias, if there is one, and the name of a column."""
    if not isinstance(node, ast.ColumnRef):
        return None
    fields = [f.sval for f in node.fields if isinstance(f, ast.String)]
    if not fields:
        return None
    return (fields[-2] if len(fields) > 1 else None, fields[-1])


def located(statement: Any, tables: set[str]) -> dict[tuple[str, str], str]:
    """(CTE, column) to table, where the column is the place of a row that the CTE has locked in its bucket.

    Only a MATERIALIZED CTE: another one may be evaluated again, after the lock. It names the place of its own
    table, or that of a lateral sub-select, which is evaluated row by row whatever the statistics say.
    """
    found: dict[tuple[str, str], str] = {}
    for cte in walk(statement):
        if not isinstance(cte, ast.CommonTableExpr) or not isinstance(cte.ctequery, ast.SelectStmt):
            continue
        if cte.ctematerialized != enums.CTEMaterialize.CTEMaterializeAlways:
            continue
        holders: dict[Side, str] = {}
        level = next(levels(cte.ctequery))
        if (table := level.bound_lock(tables)) is not None:
            holders |= {None: table} | {s.alias: table for s in level.sources.values() if s.use == "locked"}
        for lateral in laterals(cte.ctequery):
            if (table := next(levels(lateral.subquery)).bound_lock(tables)) is not None:
                holders[lateral.alias.aliasname] = table
        for target in cte.ctequery.targetList or ():
            column = _column(target.val)
            if column and column[1] == "ctid" and column[0] in holders:
                found[cte.ctename, target.name or "ctid"] = holders[column[0]]
    return found


def laterals(select: Any) -> list[Any]:
    """The lateral sub-selects in the FROM of a SELECT."""
    found: list[Any] = []
    for item in getattr(select, "fromClause", None) or ():
        found += [n for n in _joined(item) if isinstance(n, ast.RangeSubselect) and n.lateral]
    return found


def _joined(item: Any) -> list[Any]:
    return _joined(item.larg) + _joined(item.rarg) if isinstance(item, ast.JoinExpr) else [item]


def _is_parameter(node: Any) -> bool:
    while isinstance(node, ast.TypeCast):
        node = node.arg
    return isinstance(node, ast.ParamRef)


_STATEMENTS = (ast.SelectStmt, ast.UpdateStmt, ast.DeleteStmt, ast.InsertStmt)


def _selects(node: Any) -> list[Any]:
    """The nearest statements below a node, not those inside them."""
    if isinstance(node, _STATEMENTS):
        return [node]
    return [found for child in children(node) for found in _selects(child)]


def children(node: Any) -> list[Any]:
    if isinstance(node, tuple):
        return list(node)
    if isinstance(node, ast.Node):
        return [value for name in node if (value := getattr(node, name)) is not None]
    return []


def walk(node: Any) -> Iterator[Any]:
    """A node and everything below it."""
    yield node
    for child in children(node):
        yield from walk(child)
