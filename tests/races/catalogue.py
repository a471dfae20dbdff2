"""All races by name: importing this module gathers them."""

from __future__ import annotations

from tests.races import races_creating, races_ends, races_leases, races_outbox, races_runs
from tests.races.scenarios import RACES

MODULES = (races_ends, races_runs, races_leases, races_creating, races_outbox)
__all__ = ["MODULES", "RACES"]
