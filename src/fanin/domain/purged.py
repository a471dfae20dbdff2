"""What a purge did, and why trees of jobs stay."""

from __future__ import annotations

import msgspec

REASONS = ("live", "flow", "events", "outputs", "effects")
"""Why a tree that is old enough stays. The first that holds is counted. ``flow``: it is of a flow that stays, because a
person has to undo something."""


class Purged(msgspec.Struct):
    """What a purge did, or would do: trees, jobs, parts and events that are gone, events among them that had not left.
    ``flows`` are those of the trees that were flows with all of their jobs.

    ``outputs`` are those of which nothing is known any more, ``objects_removed`` the files and large results that were
    removed, ``objects_left`` those that stay where they lie, ``unreachable`` those that this host could not remove;
    the next purge tries them again. ``kept`` counts the trees that are old enough and stay, by the reason.
    """

    trees: int = 0
    flows: int = 0
    jobs: int = 0
    parts: int = 0
    events: int = 0
    events_unsent: int = 0
    outputs: int = 0
    objects_removed: int = 0
    objects_left: int = 0
    unreachable: int = 0
    kept: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
