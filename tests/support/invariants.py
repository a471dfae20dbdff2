"""The invariants of the protocol, asked after every test that used a store."""

from __future__ import annotations

from functools import partial

from fanin.protocol import repair
from fanin.stores import open_store


def violations(url: str) -> list[str]:
    """What ``fanin check`` finds in a database, one line per broken rule; empty when all is well."""
    store = open_store(url)
    try:
        return [
            f"{name}: {sentence} {finding}"
            for name, sentence in repair.CHECKS.items()
            for finding in store.run(partial(repair.check, name))
        ]
    finally:
        store.close()
