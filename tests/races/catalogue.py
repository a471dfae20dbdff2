"""All races by name: importing this module gathers them."""

from __future__ import annotations

from tests.races import (
    races_again,
    races_crowded,
    races_deadlines,
    races_effects,
    races_ends,
    races_exchanges,
    races_flows,
    races_graph,
    races_growth,
    races_leases,
    races_nested,
    races_operators,
    races_outbox,
    races_policies,
    races_purge,
    races_repairs,
    races_rising,
    races_runs,
    races_schedules,
    races_split,
    races_stale,
    races_streams,
)
from tests.races.scenarios import CROWDS, RACES

MODULES = (
    races_ends, races_policies, races_runs, races_leases, races_operators, races_outbox, races_effects, races_exchanges,
    races_streams, races_growth, races_nested, races_rising, races_crowded, races_purge, races_schedules, races_flows,
    races_graph, races_split, races_stale, races_deadlines, races_repairs, races_again,
)  # fmt: skip
__all__ = ["CROWDS", "MODULES", "RACES"]
