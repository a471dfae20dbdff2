"""Counted renewals, beside the stores of ``tests/conftest.py``."""

from __future__ import annotations

from tests.runtime.working import renewals

__all__ = ["renewals"]
