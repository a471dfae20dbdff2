"""How large the cases are run: small as a rule, ten times as large with ``FANIN_LONG=1``."""

from __future__ import annotations

import os

TIMES = 10 if os.environ.get("FANIN_LONG") == "1" else 1


def scaled(number: int) -> int:
    return number * TIMES
