"""What is in store for a process of the torture, drawn before it is born."""

from __future__ import annotations

import random

from fanin.testing import crashpoints

LONGEST_LIFE_SECONDS = 3.0
_DRIVERS_POINTS = ("submit.job", "submit.before_commit", "submit.after_commit", "redrive.locked",
                   "redrive.before_commit", "giveup.locked", "giveup.before_commit")  # fmt: skip
POINTS = tuple(crashpoints.POINTS)
_WORKERS_POINTS = tuple(name for name in POINTS if not name.startswith(("submit", "redrive")))
_RARE = ("reap.parts", "sweep.parts", "giveup.locked", "giveup.before_commit")


class Life:
    """One process, and what is in store for it. Times are of the monotonic clock, and begin when it is ready."""

    def __init__(self, tag: int = 0, *, kill: float = LONGEST_LIFE_SECONDS) -> None:
        self.tag = tag
        self.crash = ""
        """Its crash points, as `fanin.testing.crashpoints` reads them."""
        self.kill_in = kill
        self.freeze_in: float | None = None
        self.drain_in: float | None = None
        self.dies_at_point = False
        self.holds_work = False
        """It freezes with finished parts in its hands."""
        self.ready = False
        self.kill_at = 0.0
        self.freeze_at: float | None = None
        self.drain_at: float | None = None
        self.frozen_since: float | None = None
        self.thaw_at = 0.0

    def begin(self, now: float) -> None:
        self.ready = True
        self.kill_at = now + self.kill_in
        self.freeze_at = None if self.freeze_in is None else now + self.freeze_in
        self.drain_at = None if self.drain_in is None else now + self.drain_in


def of_worker(draw: random.Random) -> Life:
    """Dies at a crash point, freezes with work in its hands, is killed, is stopped, or drains."""
    life = Life()
    luck = draw.random()
    if luck < 0.4:
        name = draw.choice(_WORKERS_POINTS)
        life.crash = f"{name}=kill@{1 if name in _RARE else draw.randrange(1, 6)}"
        life.dies_at_point = True
    elif luck < 0.62:
        life.crash = f"work.done=freeze@{draw.randrange(1, 6)}"
        life.holds_work = True
    elif luck < 0.84:
        life.kill_in = draw.uniform(0.1, 1.5)
    elif luck < 0.9:
        life.freeze_in = draw.uniform(0.2, 1.2)
    else:
        life.drain_in = draw.uniform(0.3, 1.5)
    return life


def of_driver(draw: random.Random) -> Life:
    """Is killed, at a crash point or at some moment."""
    life = Life(kill=draw.uniform(2.0, 6.0))
    if draw.random() < 0.6:
        life.crash = f"{draw.choice(_DRIVERS_POINTS)}=kill@{draw.randrange(1, 5)}"
        life.dies_at_point = True
    return life
