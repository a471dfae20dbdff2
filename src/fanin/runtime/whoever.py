"""Who does something, where nobody says it: the user and the host of this process."""

from __future__ import annotations

import getpass
import socket

from fanin.domain import limits


def whoever() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in many containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"[: limits.NAME_CHARS]
