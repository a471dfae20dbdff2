"""Outputs that count are noted as decided; those that never can are removed, twice, and forgotten."""

from __future__ import annotations

import logging
import random

import msgspec

from fanin.domain.errors import BadOption, BrokenOutput, Unavailable
from fanin.protocol import outputs
from fanin.protocol.outputs import Placed
from fanin.runtime.background import Background
from fanin.runtime.objects import objects
from fanin.stores.base import Store

log = logging.getLogger("fanin")

GRACE_SECONDS = 3600.0
"""How old an output must be before it is looked at."""
LONGEST_SECONDS = 86_400.0
"""The longest upload: a zombie may finish its own so late, after the object was removed once."""
PERIOD_SECONDS = 60.0


class Swept(msgspec.Struct):
    """What a sweep did: outputs decided to be kept, removed, removed for the second time, and not reachable."""

    kept: int = 0
    removed: int = 0
    forgotten: int = 0
    unreachable: int = 0


def sweep(store: Store, grace: float = GRACE_SECONDS, longest: float = LONGEST_SECONDS) -> Swept:
    """One pass over all buckets, in bounded portions. Safe beside workers and other sweeps.

    Where nothing is undecided nothing is written: idle workers look for all.
    """
    swept = Swept()
    for bucket in range(store.buckets):
        if not store.read(lambda: outputs.undecided(bucket))[0]:
            continue
        swept.kept += store.run(lambda: outputs.keep(bucket, grace))
        while found := store.read(lambda: outputs.lost(bucket, grace)):
            gone = _remove(found)
            swept.removed += store.run(lambda: outputs.mark_swept(bucket, gone))
            if len(gone) < len(found):
                swept.unreachable += len(found) - len(gone)
                break
        while found := store.read(lambda: outputs.swept_before(bucket, longest)):
            gone = _remove(found)
            swept.forgotten += store.run(lambda: outputs.forget(bucket, gone))
            if len(gone) < len(found):
                swept.unreachable += len(found) - len(gone)
                break
    return swept


def _remove(found: list[Placed]) -> list[Placed]:
    """Those whose object is gone now. It is noted afterwards: a crash between leaves something to remove once more."""
    gone: list[Placed] = []
    for one in found:
        try:
            objects(one.root).remove(one.path)
        except (BadOption, BrokenOutput, OSError, Unavailable) as problem:
            log.warning("outputs: %s/%s cannot be removed: %s", one.root, one.path, problem)
        else:
            gone.append(one)
    return gone


def background(store: Store) -> Background:
    """`sweep`, about every minute, in a worker."""

    def step() -> float:
        swept = sweep(store)
        if swept.removed:
            log.info("outputs: %d of lost attempts were removed", swept.removed)
        return PERIOD_SECONDS * random.uniform(0.5, 1.0)

    return Background("sweeper", step, every=PERIOD_SECONDS, first=random.uniform(0, PERIOD_SECONDS))
