"""Old trees of ended jobs go: out of sight in one transaction each, then their rows, and files if that was asked."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial

from fanin.domain.errors import BadOption, BrokenOutput, Unavailable
from fanin.domain.purged import Purged
from fanin.protocol import purge as room
from fanin.protocol.outputs import Placed
from fanin.protocol.purge import Member, Tree
from fanin.runtime.background import Background
from fanin.runtime.objects import objects
from fanin.runtime.outputs import RESULT
from fanin.stores.base import Store

log = logging.getLogger("fanin")

PERIOD_SECONDS = 600.0


Tell = Callable[[Purged], None]


def purge(
    store: Store,
    age: float,
    *,
    unsent: bool = False,
    outputs: bool = False,
    dry_run: bool = False,
    tell: Tell = lambda _: None,
    stop: threading.Event | None = None,
) -> Purged:
    """One pass over all trees of which every job ended ``age`` seconds ago. Safe beside workers and other purges.

    unsent: also those with events that no relay has delivered, and effects that wait for a person. outputs: also remove
    the files that their parts left. dry_run: only look. tell: called after each tree. stop: ends the pass early.

    What an earlier purge has left is removed first.
    """
    purged = Purged()
    if not dry_run:
        _clear(store, purged, stop)
    for bucket in range(store.buckets):
        for root, flow in _roots(store, bucket, age):
            if stop is not None and stop.is_set():
                return purged
            find = room.tree if flow is None else room.flow_tree
            members = store.read(partial(find, range(store.buckets), root))
            if dry_run:
                found = store.read(partial(room.assess, members, age, unsent, flow))
                purged.outputs += found.outputs if found.kept is None else 0
            else:
                found = store.run(partial(room.purge, range(store.buckets), members, age, unsent, outputs, flow))
            _add(purged, found)
            purged.flows += flow is not None and found.kept is None
            tell(purged)
            if not dry_run and found.kept is None:
                for home in members if flow is None else [*members, flow]:
                    _clear_job(store, home, purged)
    return purged


def _add(purged: Purged, tree: Tree) -> None:
    if tree.kept is not None:
        purged.kept[tree.kept] += 1
        return
    purged.trees += 1
    purged.jobs += tree.jobs
    purged.parts += tree.parts
    purged.events += tree.events
    purged.events_unsent += tree.unsent


def _roots(store: Store, bucket: int, age: float) -> Iterator[tuple[Member, Member | None]]:
    """Jobs, then flows, the oldest first: each as the root of its tree, and once more if it is a flow."""
    for pages in (room.old_roots, room.old_flows):
        page = store.read(partial(pages, bucket, age))
        while page:
            for _, found in page:
                yield (bucket, found), (bucket, found) if pages is room.old_flows else None
            page = store.read(partial(pages, bucket, age, page[-1]))


def _clear(store: Store, purged: Purged, stop: threading.Event | None) -> None:
    """What a purge that was cut has left."""
    for bucket in range(store.buckets):
        page = store.read(partial(room.leftovers, bucket))
        while page:
            for job_id in page:
                if stop is not None and stop.is_set():
                    return
                _clear_job(store, (bucket, job_id), purged)
            page = store.read(partial(room.leftovers, bucket, page[-1]))


def _clear_job(store: Store, home: Member, purged: Purged) -> None:
    """What one job has left, then what is to go after it."""
    bucket, job_id = home
    while True:
        found, outputs = store.read(partial(room.left_outputs, bucket, job_id))
        if not found:
            break
        gone = []
        for one in found:
            if not outputs and one.name != RESULT:
                purged.objects_left += 1
                gone.append(one)
            elif _remove(one):
                purged.objects_removed += 1
                gone.append(one)
            else:
                purged.unreachable += 1
        forgotten = store.run(partial(room.forget_outputs, bucket, job_id, gone)) if gone else 0
        purged.outputs += forgotten
        if not forgotten or len(gone) < len(found):
            return  # another purge is at it, or its place is not reached from here
    going: Member | None = home
    while going is not None:
        going = store.run(partial(room.portion, store.buckets, going))


def _remove(output: Placed) -> bool:
    try:
        objects(output.root).remove(output.path)
    except (BadOption, BrokenOutput, OSError, Unavailable) as problem:
        log.warning("purge: %s/%s cannot be removed: %s", output.root, output.path, problem)
        return False
    return True


def background(store: Store, age: float) -> Background:
    """`purge`, about every ten minutes, in a worker."""

    def step() -> float:
        purged = purge(store, age, stop=loop.closing)
        if purged.jobs:
            log.info("purge: %d jobs with %d parts were removed", purged.jobs, purged.parts)
        return PERIOD_SECONDS * random.uniform(0.5, 1.0)

    loop = Background("purge", step, every=PERIOD_SECONDS, first=random.uniform(0, 60.0))
    return loop
