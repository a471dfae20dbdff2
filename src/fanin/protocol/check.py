"""The invariants as queries: ``fanin check``, and the judge of every test."""

from __future__ import annotations

from fanin.protocol.steps import Room, Statement

SQL = Room("check")

CHECKS: dict[str, str] = {
    "c1": "The counters equal the parts.",
    "c2": "A sealed job has as many parts as were planned and sealed.",
    "c3": "A part that was not planned was spawned in a job that grows, by a part that has run.",
    "c5": "A job that grows has a key for each of its parts, and no more than its width; no other job has keys.",
    "c4": "A job without live parts ends in the transaction that seals or empties it.",
    "c7": "Every part belongs to a stripe of its job, or to a job that was purged.",
    "c8": "A job of which rows are left is gone, with its counters and events and what was above it.",
    "t1": "The counts written at the end equal the stripes.",
    "t3": "No part runs past its allowance, however it dies.",
    "t4": "The event of an end carries the outcome and all counts.",
    "j2": "Each run that ended has exactly one event, a run that goes on has none.",
    "j3": "A completed run has its successor, and no run has two.",
    "j5": "Each run that ended has one job for each listener, and no run has two.",
    "j4": "A job that was not closed early has no live part when it ends.",
    "j7": "A pending part has an attempt left.",
    "j8": "An ended job is closed or empty.",
    "f7": "A checkpoint was written by an attempt that was current then.",
    "f5": "An output that counts was not removed, and only outputs that count are kept.",
    "f6": "An output belongs to an attempt that its part has had.",
    "e2": "An effect belongs to an attempt that its part has had, and one never called to the attempt that succeeded.",
    "e3": "An effect is not called more often than it may be.",
    "e4": "An effect that is being called has its claim, and one that was called has a call that was begun.",
    "o1": "An event's key says its job and one of its runs.",
    "o2": "A part that failed has an event, where the job tells its failures.",
    "o3": "A job that tells its progress has a moment for it exactly while it is live.",
    "o4": "An event has been published exactly if it says when.",
    "o5": "A claimed event has its claim and a try.",
    "o6": "A job's events are numbered from 1 without holes.",
    "o7": "A job's events are published in their order, unless one was parked.",
    "o8": "A parked event says since when and why.",
    "s1": "A running job's open stripes are those that are not closed and still have live parts.",
    "s2": "The stripes of a job are sealed together and closed together.",
    "s3": "A running job's stripes are sealed, an open job's are not.",
    "l2": "A running job has a live part.",
    "n1": "A part that waits has a job that goes on for it.",
    "n2": "A nested job that goes on has a part that waits for it, or will be cancelled.",
    "k1": "The job of a slot is a job of its schedule.",
    "k2": "No slot is decided beyond its schedule's mark.",
    "k3": "Each slot that was fired has a job of its own.",
    "w1": "A flow counts the steps whose job goes on.",
    "w2": "The job of a step that runs goes on, and so does what undoes one.",
    "w3": "An ended flow has no step that runs, waits or is being undone.",
    "w4": "A compensated flow has undone, found nothing to undo in, or given up by a person, all that had ended.",
    "w5": "Each run of a flow that ended has exactly one event, a run that goes on has none.",
    "w6": "Each event of a flow has one job for each task that listens to it.",
    "e5": "What a step that is undone had done outside is cancelled or reversed, also what its nested jobs had.",
    "i7": "A live part is ready, or waits for a stated moment, or for a nested job and then for no moment.",
    "h1": "A part is held back only while its job is paused, or until it is let go.",
}
"""Name of the query to the sentence that it checks; the order is the order of the report."""


def statement(name: str) -> Statement:
    """The query of one invariant."""
    query = getattr(SQL, name)
    found: Statement = query()
    return found
