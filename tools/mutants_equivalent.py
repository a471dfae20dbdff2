"""Mutants that no test can tell from the protocol, and why: the reason must be one that can be checked by reading."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {}
"""Name of the mutant (`tools.mutants`) to the reason."""
