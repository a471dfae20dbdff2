"""Take one guard out of the protocol's own SQL, to show that the tests would notice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fanin.protocol.steps import Query


@contextmanager
def replaced(query: Query, *changes: tuple[str, str]) -> Iterator[None]:
    """Run the block with pieces of a statement's text replaced, on both databases.

    ``changes`` are pairs of old text and new text. Raises LookupError for an old text that stands in neither rendering:
    a mutation that changes nothing would prove nothing.
    """
    before = dict(query.texts)
    after = dict(before)
    for old, new in changes:
        if not any(old in text for text in after.values()):
            raise LookupError(f"{query!r} does not contain {old!r}")
        after = {dialect: text.replace(old, new) for dialect, text in after.items()}
    _put(query, after)
    try:
        yield
    finally:
        _put(query, before)


def without(query: Query, *guards: str) -> AbstractContextManager[None]:
    """`replaced` with nothing in the place of each guard."""
    return replaced(query, *((guard, "") for guard in guards))


def _put(query: Query, texts: dict[str, str]) -> None:
    query.texts = texts
    query._rendered.clear()  # the texts are rendered once per schema and kept
