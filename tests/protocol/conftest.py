"""A clock beside the store of ``tests/conftest.py``."""

from __future__ import annotations

from tests.protocol.helpers import clock

__all__ = ["clock"]
