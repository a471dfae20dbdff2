"""The invariants of the protocol, asked after every test that used a store."""

from __future__ import annotations

from importlib.util import find_spec


def violations(url: str) -> list[str]:
    """What ``fanin check`` finds in a database, one line per broken rule; empty when all is well."""
    if find_spec("fanin.protocol.repair") is None:
        return []
    from fanin.protocol import repair
    from fanin.stores import open_store

    store = open_store(url)
    try:
        return [str(finding) for finding in store.run(repair.check)]
    finally:
        store.close()
