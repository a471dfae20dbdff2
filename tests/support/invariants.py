"""The invariants of the protocol, asked after every test that used a store."""

from __future__ import annotations

from fanin.stores import open_store


def violations(url: str) -> list[str]:
    """What ``fanin check`` finds in a database, one line per row that breaks a rule; or nothing."""
    store = open_store(url)
    try:
        return [f"{name}: {sentence} {f.row}" for name, sentence, found in store.check() for f in found]
    finally:
        store.close()
