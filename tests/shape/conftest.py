"""The clock of the protocol's tests."""

from __future__ import annotations

from tests.protocol.helpers import clock

__all__ = ["clock"]
