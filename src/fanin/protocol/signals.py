"""Counters for operators, from the rows of the history, the outbox, the outputs and the effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fanin.domain.signals import Signals
from fanin.protocol.steps import Room, Row, Txn, one

SQL = Room("signals")


def signals(buckets: Iterable[int], since: float) -> Txn[Signals]:
    """What happened in the last ``since`` seconds, and what waits now, over all buckets."""
    at = float(one((yield SQL.now()))[0])
    rows: list[Row] = []
    for bucket in buckets:
        attempts = one((yield SQL.attempts(bucket=bucket, since=since)))
        outputs = one((yield SQL.outputs(bucket=bucket, since=since)))
        events = one((yield SQL.events(bucket=bucket)))
        effects = one((yield SQL.effects(bucket=bucket)))
        rows.append((*attempts, *outputs, *events, *effects))
    names = Signals.__struct_fields__[2:]
    found = {name: _over_all(name, values) for name, *values in zip(names, *rows, strict=True)}
    return msgspec.convert({"at": at, "since": float(since), **found}, Signals)


def _over_all(name: str, values: Sequence[float | None]) -> float | None:
    """The age of the oldest, or the sum."""
    if name.endswith("_seconds"):
        return max((float(value) for value in values if value is not None), default=None)
    return sum(value or 0 for value in values)
