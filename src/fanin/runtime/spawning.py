"""The parts that a handler adds to its own job: their keys, and the buffer of those that wait for the part's commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fanin.domain import identity, limits
from fanin.domain.errors import BadOption, LimitExceeded, shown
from fanin.domain.model import Claim
from fanin.protocol import growth, read
from fanin.protocol.growth import Item
from fanin.runtime.codec import check_items, encode
from fanin.runtime.payloads import bounded
from fanin.runtime.task import Task
from fanin.stores.base import Store

Key = Callable[[Any], str] | str | None
"""A function of the item, or the text for a single item; None for the task's own."""


class Spawns:
    """What one attempt adds. ``items`` wait for its commit."""

    def __init__(self, claim: Claim, task: Task[..., Any] | None, store: Store) -> None:
        self._claim = claim
        self._task = task
        self._store = store
        self._grows = False
        self._bytes = 0
        self.items: list[Item] = []

    def add(self, items: Iterable[Any], key: Key) -> None:
        """With the part's commit."""
        for item in self._wanted(items, key):
            self.items.append(item)
            self._bytes += len(item[1])
            if len(self.items) > limits.SPAWN_PARTS or self._bytes > limits.SPAWN_BYTES:
                raise LimitExceeded(
                    f"part {self._claim.idx} of job {self._claim.job_id} adds more than {limits.SPAWN_PARTS} parts, or "
                    f"{limits.SPAWN_BYTES} bytes, in its own commit: use spawn(…, now=True)"
                )

    def add_now(self, items: Iterable[Any], key: Key) -> Iterator[int | None]:
        """One transaction after the other: how many parts were new, or None if the claim is lost."""
        for chunk in bounded(self._wanted(items, key)):
            yield self._spawn(chunk)

    def flush(self) -> Iterator[int | None]:
        """What waits for a commit, now: the part ends without one of its own."""
        for chunk in bounded(self.items):
            yield self._spawn(chunk)

    def _spawn(self, chunk: list[Item]) -> int | None:
        return self._store.run(lambda: growth.spawn(self._claim, chunk))

    def _wanted(self, items: Iterable[Any], key: Key) -> Iterator[Item]:
        assert self._task is not None, "a part whose handler runs knows its task"
        items = check_items(items)
        if not self._grows:
            row = self._store.read(lambda: read.job(self._claim.bucket, self._claim.job_id))
            if row is None or row.width is None:
                raise growth.does_not_grow(self._claim.job_id)
            self._grows = True
        if isinstance(key, str):
            items = list(items)
            if len(items) > 1:
                raise BadOption(f"key={shown(key)} for {len(items)} items: give a function of the item")
        for number, item in enumerate(items):
            payload = self._task.signature.encode_item(item, number)
            yield item_key(self._task, item, payload, key), payload


def item_key(task: Task[..., Any], item: Any, payload: str, key: Key = None) -> str:
    """What makes ``item`` the same as another in a job that grows. Raises `BadOption` for a key that is no text.

    A text stands for the item that it would be: ``"u"`` is the key of the item ``"u"``.
    """
    chosen = task.item_key if key is None else key
    if chosen is None:
        return identity.item_key(payload)
    text: Any = chosen(item) if callable(chosen) else chosen
    if not isinstance(text, str) or not text:
        raise BadOption(f"the key of the item {shown(item)} is {shown(text)}: a text is needed")
    return identity.item_key("[" + encode(text, "a key", limits.PAYLOAD_BYTES) + "]")
