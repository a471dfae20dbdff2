"""T17: trees of ended jobs are removed, each as a whole: first out of sight, then their rows in small portions.

A tree is a job and all that followed it or was started by its parts; or a flow with the trees of all its jobs. As long
as one of them goes on, or waits for a relay, a sweep or a person, all of them stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from fanin.domain.identity import NIL, bucket_of
from fanin.domain.purged import REASONS
from fanin.domain.states import FLOW_LIVE
from fanin.protocol.outputs import Placed
from fanin.protocol.steps import Again, Room, Row, Txn, one

SQL = Room("purge")

PAGE_ROOTS = 100
PORTION_PARTS = 2_000
PORTION_OUTPUTS = 500
ALL_PARTS = 2**31 - 1

Member = tuple[int, str]
"""(bucket, job id)"""


class Tree(msgspec.Struct, frozen=True):
    """What a tree has: jobs, parts, events (those that have not left too), outputs. ``kept``: why it stays, or None."""

    jobs: int
    parts: int
    events: int
    unsent: int
    outputs: int
    kept: str | None


def old_roots(bucket: int, age: float, after: tuple[float, str] = (0.0, NIL)) -> Txn[list[tuple[float, str]]]:
    """(created at, id) of jobs without a parent that ended ``age`` seconds ago: a page of them, after this one."""
    rows = yield SQL.old_roots(bucket=bucket, age=age, after=after[0], after_id=after[1], limit=PAGE_ROOTS)
    return [(float(created), job_id) for job_id, created in rows]


def old_flows(bucket: int, age: float, after: tuple[float, str] = (0.0, NIL)) -> Txn[list[tuple[float, str]]]:
    """(created at, id) of flows that ended ``age`` seconds ago: a page of them, after this one."""
    rows = yield SQL.old_flows(bucket=bucket, age=age, after=after[0], after_id=after[1], limit=PAGE_ROOTS)
    return [(float(created), flow_id) for flow_id, created in rows]


def tree(buckets: Iterable[int], root: Member) -> Txn[list[Member]]:
    """The job and all jobs below it, sorted."""
    return (yield from _below(buckets, {root}))


def flow_tree(buckets: Iterable[int], flow: Member) -> Txn[list[Member]]:
    """The jobs of a flow and all jobs below them, sorted."""
    return (yield from _below(buckets, (yield from _jobs_of(flow))))


def _jobs_of(flow: Member) -> Txn[set[Member]]:
    rows = yield SQL.jobs_of_flow(bucket=flow[0], flow_id=flow[1])
    return {(flow[0], job_id) for row in rows for job_id in row if job_id is not None}


def _below(buckets: Iterable[int], roots: set[Member]) -> Txn[list[Member]]:
    everywhere = list(buckets)
    found = set(roots)
    level = sorted(job_id for _, job_id in roots)
    while level:
        fresh: set[Member] = set()
        for bucket in everywhere:
            fresh |= {(bucket, job_id) for (job_id,) in (yield SQL.children(bucket=bucket, jobs=level))}
        fresh -= found
        found |= fresh
        level = sorted(job_id for _, job_id in fresh)
    return sorted(found)


def assess(members: Sequence[Member], age: float, unsent: bool, flow: Member | None = None) -> Txn[Tree]:
    """What a tree has, and whether it may go. ``flow``: the one to which its jobs belong, and which may go too."""
    rows: list[Row] = []
    flow_id = flow[1] if flow is not None else None
    for bucket, ids in _by_bucket(_with_events(members, flow)):
        rows.append(one((yield SQL.assess(bucket=bucket, jobs=ids, age=age, flow_id=flow_id))))
    flow_lives = flow_waits = False
    if flow is not None:
        standing = yield SQL.standing_flow(bucket=flow[0], flow_id=flow[1], age=age)
        flow_lives = not standing or standing[0][0] in FLOW_LIVE or not standing[0][1]
        flow_waits = bool(standing) and standing[0][0] == "needs_attention"
    old, flows, parts, live, events, claimed, unpublished, outputs, undecided, effects, stuck = map(
        sum, zip(*rows, strict=True)
    )
    reasons = {
        "live": old < len(members) or live > 0 or flow_lives,
        "flow": flows > 0 or flow_waits,
        "events": claimed > 0 or (unpublished > 0 and not unsent),
        "outputs": undecided > 0,
        "effects": effects > 0 or (stuck > 0 and not unsent),
    }
    kept = next((reason for reason in REASONS if reasons[reason]), None)
    return Tree(len(members), int(parts), events, unpublished, outputs, kept)


def purge(
    buckets: Iterable[int],
    members: Sequence[Member],
    age: float,
    unsent: bool = False,
    outputs: bool = False,
    flow: Member | None = None,
) -> Txn[Tree]:
    """Take a tree out of sight: its jobs, counters and events are gone, `portion` removes the rest. Nothing is written
    if it has to stay, or has changed since ``members`` was read (then it counts as live).

    unsent: also with events that no relay has delivered, and effects that wait for a person. outputs: the files that
    its parts left are to be removed too. flow: it goes with its jobs, which are the ``members``.
    """

    def again() -> Txn[Tree]:
        return purge(everywhere, members, age, unsent, outputs, flow)

    everywhere = list(buckets)
    stripes = 0
    for bucket, jobs in _by_bucket(members):
        stripes += len((yield SQL.lock_tree_stripes(bucket=bucket, jobs=jobs)))
    if flow is not None:
        yield SQL.lock_flow(bucket=flow[0], flow_id=flow[1])
    found = yield from assess(members, age, unsent, flow)
    if found.kept is not None:
        return found
    if flow is not None and (yield from _jobs_of(flow)) - set(members):  # it has gone on meanwhile
        return msgspec.structs.replace(found, kept="live")
    ids = [job_id for _, job_id in members]
    if (yield from _grown(everywhere, ids, members)):  # a handler of a closed job may have started one meanwhile
        return msgspec.structs.replace(found, kept="live")
    events = 0
    above: dict[str, str | None] = {flow[1]: None} if flow is not None else {}
    for bucket, jobs in _by_bucket(members):
        stripes -= len((yield SQL.remove_stripes(bucket=bucket, jobs=jobs)))
        gone = yield SQL.remove_jobs(bucket=bucket, jobs=jobs, age=age)
        if len(gone) != len(jobs):  # the clock was set back meanwhile
            raise Again(again)
        above.update(gone)
    if (yield from _grown(everywhere, ids, members)):  # and may have held its job until we took it away
        raise Again(again)
    if flow is not None:
        yield SQL.remove_steps(bucket=flow[0], flow_id=flow[1])
        one((yield SQL.remove_flow(bucket=flow[0], flow_id=flow[1])))
        yield SQL.remove_log(bucket=flow[0], job_id=flow[1])
    assert stripes == 0, "a stripe that we hold changed under us"
    for bucket, tellers in _by_bucket(_with_events(members, flow)):
        events += len((yield SQL.remove_events(bucket=bucket, jobs=tellers, unsent=unsent)))
    if events < found.events:  # a relay has just taken one
        raise Again(again)
    for bucket, ids in _by_bucket(_with_events(members, flow)):
        yield SQL.leave(bucket=bucket, rows=[(one_id, above[one_id]) for one_id in ids], outputs=outputs)
    return found


def _grown(buckets: Iterable[int], ids: list[str], members: Sequence[Member]) -> Txn[bool]:
    """Whether there is a job below these that is not one of them."""
    for bucket in buckets:
        if {(bucket, job_id) for (job_id,) in (yield SQL.children(bucket=bucket, jobs=ids))} - set(members):
            return True
    return False


def leftovers(bucket: int, after: str = NIL) -> Txn[list[str]]:
    """Jobs, and flows, that are gone and still have rows: a page of them."""
    return [job_id for (job_id,) in (yield SQL.leftovers(bucket=bucket, after=after, limit=PAGE_ROOTS))]


def left_outputs(bucket: int, job_id: str) -> Txn[tuple[list[Placed], bool]]:
    """A page of the outputs of a job that is gone, and whether they are to be removed."""
    rows = yield SQL.left_outputs(bucket=bucket, job_id=job_id, limit=PORTION_OUTPUTS)
    found = [Placed(job_id, idx, attempt, claim, name, root) for idx, claim, name, attempt, root, _ in rows]
    return found, any(remove for *_, remove in rows)


def forget_outputs(bucket: int, job_id: str, gone: Sequence[Placed]) -> Txn[int]:
    """Drop the rows of outputs whose objects were removed, or stay. How many; 0 if another purge is at this job."""
    if not (yield SQL.lock_leftover(bucket=bucket, job_id=job_id)):
        return 0
    rows = sorted((output.idx, output.claim_id, output.name) for output in gone)
    return len((yield SQL.remove_outputs(bucket=bucket, job_id=job_id, rows=rows)))


def portion(buckets: int, home: Member) -> Txn[Member | None]:
    """Remove a portion of what a purged job has left, its outputs excepted. ``buckets``: how many the database has.

    Where to go on: here, while there may be more; then at the job above, or the flow, if this was the last below it. A
    job stays among the leftovers as long as one below it does: their ids follow from its own, so that a new job with
    its id would meet them.
    """
    bucket, job_id = home
    mine = yield SQL.lock_leftover(bucket=bucket, job_id=job_id)
    if not mine:
        return None
    first, outputs = one((yield SQL.first_left(bucket=bucket, job_id=job_id)))
    if outputs:
        return None  # an output without its part could not be told from one that was never known
    past = ALL_PARTS if first is None else min(first + PORTION_PARTS, ALL_PARTS)
    yield SQL.remove_parts(bucket=bucket, job_id=job_id, past=past)
    yield SQL.remove_history(bucket=bucket, job_id=job_id, past=past)
    yield SQL.remove_effects(bucket=bucket, job_id=job_id, past=past)
    if first is not None:
        return home
    if keys := (yield SQL.next_keys(bucket=bucket, job_id=job_id, limit=PORTION_PARTS)):
        yield SQL.remove_keys(bucket=bucket, job_id=job_id, last=one(keys)[0])
        return home
    yield SQL.remove_log(bucket=bucket, job_id=job_id)
    yield SQL.remove_repairs(bucket=bucket, job_id=job_id)
    if (yield SQL.left_below(job_id=job_id)):
        return None  # whoever removes the last of them goes on here
    ((parent_id,),) = mine
    above = (bucket_of(parent_id, buckets), parent_id) if parent_id is not None else None
    if above is not None:
        yield SQL.hold_above(bucket=above[0], job_id=parent_id)
    one((yield SQL.remove_leftover(bucket=bucket, job_id=job_id)))
    return above if above is not None and not (yield SQL.left_below(job_id=parent_id)) else None


def _with_events(members: Sequence[Member], flow: Member | None) -> Sequence[Member]:
    """All that may have events: a flow has its own."""
    return members if flow is None else sorted([*members, flow])


def _by_bucket(members: Sequence[Member]) -> Iterable[tuple[int, list[str]]]:
    return [(bucket, [job_id for _, job_id in group]) for bucket, group in groupby(members, key=lambda m: m[0])]
